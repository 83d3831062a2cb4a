package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/shoal-serving/shoal/internal/arrivals"
	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/engine/enginetest"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/kserve"
	"github.com/shoal-serving/shoal/internal/leak"
	"github.com/shoal-serving/shoal/internal/modelconfig"
	"github.com/shoal-serving/shoal/internal/pacer"
	"github.com/shoal-serving/shoal/internal/servable"
	"github.com/shoal-serving/shoal/internal/stats"
	"github.com/shoal-serving/shoal/tensor"
)

// Protocols check for Explainer and Stopper at run time, so the compiler does so here.
var (
	_ kserve.Backend   = (*Server)(nil)
	_ kserve.Catalog   = (*Server)(nil)
	_ kserve.Explainer = (*Server)(nil)
	_ kserve.Stopper   = (*Server)(nil)
)

func TestMain(m *testing.M) { leak.Main(m) }

const config = `
backend: "echo"
max_batch_size: 4
input [ { name: "x" data_type: TYPE_FP32 dims: [ 2 ] }, { name: "y" data_type: TYPE_INT64 dims: [ -1 ] } ]
output [ { name: "x" data_type: TYPE_FP32 dims: [ 2 ] label_filename: "labels.txt" }, { name: "y" data_type: TYPE_INT64 dims: [ -1 ] } ]
dynamic_batching { }
`

func start(t testing.TB) *Server {
	t.Helper()
	return startWith(t, Options{Log: slog.New(slog.DiscardHandler)})
}

func startWith(t testing.TB, opts Options) *Server {
	t.Helper()
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "echo", "3"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "echo", "labels.txt"), []byte("first\nsecond\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	p := pacer.New()
	t.Cleanup(p.Close)
	s := New(env(&enginetest.Echo{}, p), opts)
	t.Cleanup(func() { closeServer(t, s) })
	load(t, s, servable.Source{Model: "echo", Number: 3, Dir: filepath.Join(dir, "echo", "3"), ModelDir: filepath.Join(dir, "echo")}, config)
	s.MarkStarted()
	return s
}

// env returns one with one engine, echo.
func env(eng engine.Engine, p *pacer.Pacer) *servable.Env {
	return servable.NewEnv(servable.Options{Runners: map[string]servable.Runner{"echo": {Engine: eng}}, Pacer: p, Log: slog.New(slog.DiscardHandler)})
}

func closeServer(t testing.TB, s *Server) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// load loads a version with a configuration beside those that serve.
func load(t testing.TB, s *Server, src servable.Source, text string) {
	t.Helper()
	if err := s.Load(src.Model, "the test", also(src, text)); err != nil {
		t.Fatal(err)
	}
}

// also desires one more version than serve.
func also(src servable.Source, text string) Desired {
	src.Config = func() (*modelconfig.Config, error) {
		cfg, err := modelconfig.Parse("config.pbtxt", []byte(text))
		if err == nil {
			cfg.Name = src.Model
		}
		return cfg, err
	}
	return func(_ context.Context, have []*servable.Version) (all []servable.Source, err error) {
		for _, v := range have {
			all = append(all, v.Source)
		}
		return append(all, src), nil
	}
}

func request() *infer.Request {
	return &infer.Request{Model: "echo", Inputs: []tensor.Tensor{
		{Name: "y", Type: tensor.Int64, Shape: []int64{2, 1}, Data: tensor.Data([]int64{5, 6})},
		{Name: "x", Type: tensor.FP32, Shape: []int64{2, 2}, Data: tensor.Data([]float32{1, 2, 3, 4})},
	}}
}

func names(outputs []tensor.Tensor) (all []string) {
	for _, o := range outputs {
		all = append(all, o.Name)
	}
	return all
}

func TestARequestIsAnsweredByItsModel(t *testing.T) {
	s := start(t)
	var resp infer.Response
	if err := s.Infer(t.Context(), request(), &resp); err != nil {
		t.Fatal(err)
	}
	if resp.Model != "echo" || resp.Version != "3" || !slices.Equal(names(resp.Outputs), []string{"x", "y"}) {
		t.Errorf("answered by %s %s with %v", resp.Model, resp.Version, names(resp.Outputs))
	}
	resp.Release()
}

func TestOnlyTheOutputsAskedForAreGiven(t *testing.T) {
	s := start(t)
	req := request()
	req.Outputs = []string{"y"}
	var resp infer.Response
	if err := s.Infer(t.Context(), req, &resp); err != nil {
		t.Fatal(err)
	}
	if got := names(resp.Outputs); !slices.Equal(got, []string{"y"}) {
		t.Errorf("got %v, want y", got)
	}
	resp.Release()
}

func TestAnOutputThatTheModelDoesNotReturnIsAnError(t *testing.T) {
	cfg, err := modelconfig.Parse("config.pbtxt", []byte(`backend: "echo" max_batch_size: 2 input { name: "x" data_type: TYPE_INT8 dims: 1 }
		output { name: "x" data_type: TYPE_INT8 dims: 1 } output { name: "z" data_type: TYPE_INT8 dims: 1 }`))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"x": "", "z": "the model returned no output 'z', which the request asks for"} {
		resp := &infer.Response{Outputs: []tensor.Tensor{{Name: "x", Type: tensor.Int8, Shape: []int64{1, 1}, Data: []byte{1}}}}
		err := buildResponse(&servable.Version{Config: cfg, Stats: stats.New(2)}, &infer.Request{Outputs: []string{name}}, resp)
		if got := fmt.Sprint(err); (err == nil) != (want == "") || err != nil && (got != want || infer.CodeOf(err) != infer.Internal) {
			t.Errorf("output %s: %v, want %q", name, err, want)
		}
	}
}

func TestClassesAreGivenInThePlaceOfAnOutput(t *testing.T) {
	s := start(t)
	req := request()
	var c kserve.Classes
	c.AddOutput(req, "x", 1)
	var resp infer.Response
	if err := s.Infer(t.Context(), req, &resp); err != nil {
		t.Fatal(err)
	}
	out := &resp.Outputs[0]
	if got := slices.Collect(out.Strings()); out.Type != tensor.Bytes || !slices.Equal(out.Shape, []int64{2, 1}) ||
		string(got[0]) != "2.000000:1:second" || string(got[1]) != "4.000000:1:second" {
		t.Errorf("%v %v %q", out.Type, out.Shape, got)
	}
	resp.Release()
}

func TestABadRequestIsRefusedBeforeItIsQueued(t *testing.T) {
	s := start(t)
	unknown, wrong := request(), request()
	unknown.Model = "nobody"
	wrong.Inputs[0].Type = tensor.Int32
	var resp infer.Response
	if err := s.Infer(t.Context(), unknown, &resp); infer.CodeOf(err) != infer.NotFound {
		t.Errorf("an unknown model: %v", err)
	}
	if err := s.Infer(t.Context(), wrong, &resp); infer.CodeOf(err) != infer.Invalid {
		t.Errorf("an input of the wrong type: %v", err)
	}
}

func TestTheCatalogTellsWhatThereIs(t *testing.T) {
	s := start(t)
	m, err := s.Model(t.Context(), "echo", "")
	if err != nil {
		t.Fatal(err)
	}
	if m.Platform != "echo" || !slices.Equal(m.Versions, []string{"3"}) || !slices.Equal(m.Inputs[0].Shape, []int64{-1, 2}) {
		t.Errorf("the catalog tells %+v", m)
	}
	if _, err := s.Model(t.Context(), "echo", "1"); infer.CodeOf(err) != infer.NotFound {
		t.Errorf("an unknown version: %v", err)
	}
	for _, tt := range []struct {
		model, version string
		want           bool
	}{{"echo", "", true}, {"echo", "3", true}, {"echo", "1", false}, {"nobody", "", false}} {
		if got := s.ModelReady(tt.model, tt.version); got != tt.want {
			t.Errorf("%s %q is ready: %v", tt.model, tt.version, got)
		}
	}
}

func TestAServerThatStopsIsNotReadyButAnswers(t *testing.T) {
	s := start(t)
	s.SetUnready()
	if s.Ready() || s.ModelReady("echo", "") {
		t.Error("a server that stops says that it is ready")
	}
	var resp infer.Response
	if err := s.Infer(t.Context(), request(), &resp); err != nil {
		t.Errorf("a request that was on its way: %v", err)
	}
	resp.Release()
}

func TestAServerThatDrainsSendsNewRequestsElsewhere(t *testing.T) {
	s := start(t)
	s.Drain()
	s.Drain() // once more does nothing
	<-s.Stopping()
	if s.Ready() || s.ModelReady("echo", "") {
		t.Error("a server that drains says that it is ready")
	}
	var resp infer.Response
	if err := s.Infer(t.Context(), request(), &resp); infer.CodeOf(err) != infer.Unavailable {
		t.Errorf("a request that came late: %v", err)
	}
	if n := s.InFlight(); n != 0 {
		t.Errorf("%d requests are inside", n)
	}
}

func TestRequestsThatAModelCanRunAreRecorded(t *testing.T) {
	file := filepath.Join(t.TempDir(), "trace.txt")
	log := slog.New(slog.DiscardHandler)
	w, err := arrivals.Create(file, arrivals.Options{Log: log})
	if err != nil {
		t.Fatal(err)
	}
	s := startWith(t, Options{Log: log, Arrivals: w})
	urgent, unfit, stray := request(), request(), request()
	urgent.Priority = 1
	unfit.Inputs = unfit.Inputs[:1]
	stray.Model = "nobody"
	for _, req := range []*infer.Request{request(), unfit, stray, urgent} {
		var resp infer.Response
		if err := s.Infer(t.Context(), req, &resp); err == nil {
			resp.Release()
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	got, err := arrivals.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for i := range got {
		got[i].At = 0
	}
	if want := []arrivals.Arrival{{Model: "echo", Rows: 2}, {Model: "echo", Rows: 2, Priority: 1}}; !slices.Equal(got, want) {
		t.Errorf("recorded %+v, want %+v", got, want)
	}
}

// A client that gets 404 does not ask again.
func TestAModelWhoseFirstLoadHasJustBegunIsNotUnknown(t *testing.T) {
	s := New(nil, Options{})
	s.MarkStarted()
	m, _ := s.takeTurn("m")
	if err := s.missing("m", ""); infer.CodeOf(err) != infer.Unavailable {
		t.Errorf("while files are read: %v", err)
	}
	<-m.turn
	if err := s.missing("m", ""); infer.CodeOf(err) != infer.NotFound {
		t.Errorf("afterwards: %v", err)
	}
}

// withModels returns a server whose table has a number of models, without versions.
func withModels(n int) *Server {
	s := New(nil, Options{})
	s.MarkStarted()
	table := map[string]serving{}
	for i := range n {
		table[fmt.Sprintf("model-%05d", i)] = serving{}
	}
	s.serving.Store(&table)
	return s
}

// Clients may ask often for models that do not exist, and the time of a comparison of names grows
// with the number of models.
func TestARequestForAnUnknownModelIsComparedWithFewNames(t *testing.T) {
	if e, ok := errors.AsType[*infer.Error](withModels(maxCompared).missing("model-0012x", "")); !ok || e.Hint != "did you mean 'model-00120'?" {
		t.Errorf("with %d models: %+v", maxCompared, e)
	}
	s := withModels(maxCompared + 1)
	if e, ok := errors.AsType[*infer.Error](s.missing("model-0012x", "")); !ok || e.Hint != "" || e.Reason != infer.UnknownModel {
		t.Errorf("with more: %+v", e)
	}
	if n := testing.AllocsPerRun(100, func() { _ = s.missing("model-0012x", "") }); n > 10 {
		t.Errorf("%v allocations with more than %d models", n, maxCompared)
	}
}

func BenchmarkUnknownModel(b *testing.B) {
	for _, n := range []int{10, maxCompared, 10_000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			s := withModels(n)
			for b.Loop() {
				_ = s.missing("model-0012x", "")
			}
		})
	}
}
