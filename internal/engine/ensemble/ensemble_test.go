package ensemble

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shoal-serving/shoal/internal/access"
	"github.com/shoal-serving/shoal/internal/buf"
	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/explain"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/leak"
	"github.com/shoal-serving/shoal/internal/modelconfig"
	"github.com/shoal-serving/shoal/tensor"
)

func TestMain(m *testing.M) { leak.Main(m) }

// members are models that compute with bytes. Each has its configuration by its name, and a
// function that computes an output from its inputs.
type members struct {
	configs map[string]string
	compute func(ctx context.Context, req *infer.Request) (map[string]byte, error)

	mu       sync.Mutex
	calls    []*infer.Request
	down     map[string]bool
	nested   map[string]*instance // that are loaded themselves
	pinned   []infer.ModelVersion // by the last call of Pin
	released int
}

func (m *members) Pin(all []infer.ModelVersion) (pinned any, release func()) {
	m.pinned = all
	return m, func() { m.released++ }
}

func (m *members) MemberConfig(model, _ string) (*modelconfig.Config, error) {
	text, ok := m.configs[model]
	if !ok {
		return nil, infer.Errorf(infer.NotFound, "unknown model %q", model)
	}
	return modelconfig.Parse("", []byte(text))
}

func (m *members) ModelReady(model, _ string) bool {
	if i := m.nested[model]; i != nil {
		return i.Ready()
	}
	return !m.down[model]
}

func (m *members) Call(ctx context.Context, req *infer.Request, resp *infer.Response) error {
	m.mu.Lock()
	m.calls = append(m.calls, req)
	m.mu.Unlock()
	made, err := m.compute(ctx, req)
	if err != nil {
		return err
	}
	resp.Memory = buf.Get(len(req.Outputs))
	for i, name := range req.Outputs {
		b, ok := made[name]
		if !ok {
			continue
		}
		resp.Memory.B[i] = b
		resp.Outputs = append(resp.Outputs, tensor.Tensor{Name: name, Type: tensor.Uint8, Shape: []int64{1, 1}, Data: resp.Memory.B[i : i+1]})
	}
	return nil
}

// ran returns the models that were called, in order.
func (m *members) ran() (names []string) {
	for _, req := range m.calls {
		names = append(names, req.Model)
	}
	return names
}

// one has the configuration of a member with a row of one byte in each tensor.
func one(inputs, outputs string) string {
	var text strings.Builder
	text.WriteString("max_batch_size: 8\n")
	for name := range strings.FieldsSeq(inputs) {
		optional := strings.HasSuffix(name, "?")
		fmt.Fprintf(&text, "input { name: %q data_type: TYPE_UINT8 dims: 1 optional: %t }\n", strings.TrimSuffix(name, "?"), optional)
	}
	for name := range strings.FieldsSeq(outputs) {
		fmt.Fprintf(&text, "output { name: %q data_type: TYPE_UINT8 dims: 1 }\n", name)
	}
	return text.String()
}

// steps has the configuration of an ensemble. A step is "MODEL IN=tensor … > OUT=tensor …".
func steps(inputs, outputs string, each ...string) string {
	var text strings.Builder
	text.WriteString("name: \"e\"\nplatform: \"ensemble\"\n" + one(inputs, outputs))
	text.WriteString("ensemble_scheduling {\n")
	for _, s := range each {
		model, links, _ := strings.Cut(s, " ")
		fmt.Fprintf(&text, "step { model_name: %q model_version: -1", model)
		field := "input_map"
		for link := range strings.FieldsSeq(links) {
			name, made, ok := strings.Cut(link, "=")
			if !ok {
				field = "output_map"
				continue
			}
			fmt.Fprintf(&text, " %s { key: %q value: %q }", field, name, made)
		}
		text.WriteString(" }\n")
	}
	return text.String() + "}\n"
}

// The members of most tests: they add 1, double, and add two numbers, of which the second
// is optional.
func arithmetic() *members {
	m := &members{configs: map[string]string{"inc": one("A", "B"), "dbl": one("A", "B"), "sum": one("P Q?", "S D")}}
	m.compute = func(_ context.Context, req *infer.Request) (map[string]byte, error) {
		in := map[string]byte{}
		for _, t := range req.Inputs {
			in[t.Name] = t.Data[0]
		}
		switch req.Model {
		case "inc":
			return map[string]byte{"B": in["A"] + 1}, nil
		case "dbl":
			return map[string]byte{"B": 2 * in["A"]}, nil
		}
		return map[string]byte{"S": in["P"] + in["Q"], "D": in["P"] - in["Q"]}, nil
	}
	return m
}

// load loads an ensemble and opens an instance.
func load(t *testing.T, m *members, text string) *instance {
	t.Helper()
	cfg, err := modelconfig.Parse("config.pbtxt", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	loaded, err := (&Engine{Members: m, Log: slog.New(slog.DiscardHandler)}).Load(t.Context(), engine.Source{Config: cfg})
	if err != nil {
		t.Fatal(err)
	}
	inst, err := loaded.Instance(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return inst.(*instance)
}

// request returns a request with a row of one byte for each input; the memory is pooled,
// and released with the test.
func request(t *testing.T, inputs map[string]byte) *infer.Request {
	t.Helper()
	req := &infer.Request{ID: "r", Memory: buf.Get(len(inputs))}
	t.Cleanup(req.Memory.Release)
	for name, b := range inputs {
		at := len(req.Inputs)
		req.Memory.B[at] = b
		req.Inputs = append(req.Inputs, tensor.Tensor{Name: name, Type: tensor.Uint8, Shape: []int64{1, 1}, Data: req.Memory.B[at : at+1]})
	}
	return req
}

// runOnce runs a request, and returns the outputs.
func runOnce(ctx context.Context, t *testing.T, i *instance, req *infer.Request) (map[string]byte, error) {
	t.Helper()
	calls := []engine.Call{{Request: req}}
	if err := i.RunEach(ctx, calls); err != nil {
		return nil, err
	}
	made := map[string]byte{}
	for _, out := range calls[0].Outputs.Tensors {
		made[out.Name] = out.Data[0]
	}
	calls[0].Outputs.Memory.Release()
	return made, calls[0].Err
}

func TestStepsRunWhenTheirInputsExist(t *testing.T) {
	for _, c := range []struct {
		name, config string
		asks         []string
		want         map[string]byte
		ran          []string // sorted
	}{
		{"a chain, written backwards", steps("X", "Y", "dbl A=t > B=Y", "inc A=X > B=t"), nil, map[string]byte{"Y": 8}, []string{"dbl", "inc"}},
		{"branches that join", steps("X", "Y D", "inc A=X > B=t", "dbl A=X > B=u", "sum P=t Q=u > S=Y D=D"), nil, map[string]byte{"Y": 10, "D": 254}, []string{"dbl", "inc", "sum"}},
		{"a model twice", steps("X", "Y", "inc A=X > B=t", "inc A=t > B=Y"), nil, map[string]byte{"Y": 5}, []string{"inc", "inc"}},
		{"an output that is an input of a step", steps("X", "t Y", "inc A=X > B=t", "dbl A=t > B=Y"), nil, map[string]byte{"t": 4, "Y": 8}, []string{"dbl", "inc"}},
		{"an output that needs one step of two", steps("X", "t Y", "inc A=X > B=t", "dbl A=t > B=Y"), []string{"t"}, map[string]byte{"t": 4}, []string{"inc"}},
		{"an output that needs another branch", steps("X", "t u", "inc A=X > B=t", "dbl A=X > B=u"), []string{"u"}, map[string]byte{"u": 6}, []string{"dbl"}},
		{"an optional input that is missing", steps("X Z?", "Y", "sum P=X Q=Z > S=Y"), nil, map[string]byte{"Y": 3}, []string{"sum"}},
		{"an input that is an output, too", steps("X", "X Y", "inc A=X > B=Y"), nil, map[string]byte{"X": 3, "Y": 4}, []string{"inc"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := arithmetic()
			req := request(t, map[string]byte{"X": 3})
			req.Outputs = c.asks
			got, err := runOnce(t.Context(), t, load(t, m, c.config), req)
			if err != nil || !reflect.DeepEqual(got, c.want) {
				t.Errorf("got %v and %v, want %v", got, err, c.want)
			}
			if ran := slices.Sorted(slices.Values(m.ran())); !slices.Equal(ran, c.ran) {
				t.Errorf("these ran: %v, want %v", ran, c.ran)
			}
		})
	}
}

func TestBranchesRunAtTheSameTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := arithmetic()
		compute := m.compute
		m.compute = func(ctx context.Context, req *infer.Request) (map[string]byte, error) {
			time.Sleep(100 * time.Millisecond)
			return compute(ctx, req)
		}
		began := time.Now()
		_, err := runOnce(t.Context(), t, load(t, m, steps("X", "Y", "inc A=X > B=t", "dbl A=X > B=u", "sum P=t Q=u > S=Y")), request(t, map[string]byte{"X": 3}))
		if took := time.Since(began); err != nil || took != 200*time.Millisecond {
			t.Errorf("it took %v and returned %v, want 200 ms: one step beside the other, and one after both", took, err)
		}
	})
}

func TestAStepThatFailsEndsTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := arithmetic()
		m.compute = func(ctx context.Context, req *infer.Request) (map[string]byte, error) {
			if req.Model == "inc" {
				time.Sleep(10 * time.Millisecond)
				return nil, &infer.Error{Code: infer.Overloaded, Text: "the queue is full", RetryAfter: time.Second}
			}
			<-ctx.Done() // a long one
			return nil, ctx.Err()
		}
		began := time.Now()
		_, err := runOnce(t.Context(), t, load(t, m, steps("X", "Y", "inc A=X > B=t", "dbl A=X > B=u", "sum P=t Q=u > S=Y")), request(t, map[string]byte{"X": 3}))
		if took := time.Since(began); took != 10*time.Millisecond {
			t.Errorf("it took %v, want 10 ms: the branch that still runs is cancelled", took)
		}
		e, ok := errors.AsType[*infer.Error](err)
		if !ok || e.Code != infer.Overloaded || e.RetryAfter != time.Second || e.Text != "in ensemble 'e', the queue is full" {
			t.Errorf("it returned %+v, want that of the step that failed first, with its code and when to retry", err)
		}
		if slices.Contains(m.ran(), "sum") {
			t.Error("the step behind both ran all the same")
		}
	})
}

func TestAClientThatLeavesEndsTheSteps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := arithmetic()
		m.compute = func(ctx context.Context, _ *infer.Request) (map[string]byte, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		began := time.Now()
		_, err := runOnce(ctx, t, load(t, m, steps("X", "Y", "inc A=X > B=t", "dbl A=t > B=Y")), request(t, map[string]byte{"X": 3}))
		if took := time.Since(began); took != 50*time.Millisecond || !errors.Is(err, context.DeadlineExceeded) || len(m.calls) != 1 {
			t.Errorf("it took %v, returned %v and called %v, want the end of the context after 50 ms, in the first step", took, err, m.ran())
		}
	})
}

func TestAStepHasWhatTheRequestHas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := arithmetic()
		compute := m.compute
		caller := &access.Caller{Address: "192.0.2.1:50000"}
		var others atomic.Int32
		m.compute = func(ctx context.Context, req *infer.Request) (map[string]byte, error) {
			if at, ok := ctx.Deadline(); access.CallerOf(ctx) != caller || !ok || time.Until(at) > time.Minute {
				others.Add(1)
			}
			time.Sleep(100 * time.Millisecond)
			return compute(ctx, req)
		}
		req := request(t, map[string]byte{"X": 3})
		req.Caller, req.Client, req.Priority, req.Timeout, req.Correlation, req.Flags = caller, 7, 2, time.Second, 9, infer.SequenceStart
		req.Parameters, req.Deadline = []infer.Parameter{{Name: "p", Value: int64(1)}}, time.Now().Add(time.Minute)
		if _, err := runOnce(t.Context(), t, load(t, m, steps("X", "Y", "inc A=X > B=t", "dbl A=t > B=Y")), req); err != nil {
			t.Fatal(err)
		}
		for i, got := range m.calls {
			left := time.Second - time.Duration(i)*100*time.Millisecond
			if got.ID != "r" || got.Client != 7 || got.Priority != 2 || got.Timeout != left || got.Correlation != 9 || got.Flags != infer.SequenceStart || !reflect.DeepEqual(got.Parameters, req.Parameters) {
				t.Errorf("the request of step %d is %+v, want the fields of the client's, and %v left", i, got, left)
			}
		}
		if others.Load() != 0 {
			t.Error("a step was run for another caller, or with another deadline")
		}
	})
}

func TestASecondStepReadsTheMemoryOfTheFirst(t *testing.T) {
	m := arithmetic()
	compute := m.compute
	var made, read *byte
	m.compute = func(ctx context.Context, req *infer.Request) (map[string]byte, error) {
		if req.Model == "dbl" {
			read = &req.Inputs[0].Data[0]
		}
		return compute(ctx, req)
	}
	i := load(t, m, steps("X", "t Y", "inc A=X > B=t", "dbl A=t > B=Y"))
	calls := []engine.Call{{Request: request(t, map[string]byte{"X": 3})}}
	if err := i.RunEach(t.Context(), calls); err != nil || calls[0].Err != nil {
		t.Fatal(err, calls[0].Err)
	}
	made = &calls[0].Outputs.Tensors[0].Data[0] // t, which the ensemble returns, too
	if made != read {
		t.Error("the output of a step was copied before the next step")
	}
	calls[0].Outputs.Memory.Release()
}

func TestAModelThatOmitsAnOutputLeavesItOut(t *testing.T) {
	m := arithmetic()
	m.compute = func(_ context.Context, req *infer.Request) (map[string]byte, error) {
		if req.Model == "sum" {
			return map[string]byte{"S": 1}, nil
		}
		if len(req.Inputs) == 0 {
			return nil, infer.Errorf(infer.Invalid, "no input")
		}
		return map[string]byte{"B": 1}, nil
	}
	got, err := runOnce(t.Context(), t, load(t, m, steps("X", "Y D", "sum P=X > S=Y D=D")), request(t, map[string]byte{"X": 3}))
	if err != nil || !reflect.DeepEqual(got, map[string]byte{"Y": 1}) {
		t.Errorf("got %v and %v, want what the model returned", got, err)
	}
	_, err = runOnce(t.Context(), t, load(t, m, steps("X", "Y", "sum P=X > D=t", "inc A=t > B=Y")), request(t, map[string]byte{"X": 3}))
	if want := "in ensemble 'e', no input"; err == nil || err.Error() != want {
		t.Errorf("a step without its input: %v, want %q", err, want)
	}
}

func TestAPanicInAStepFailsTheRequest(t *testing.T) {
	m := arithmetic()
	m.compute = func(context.Context, *infer.Request) (map[string]byte, error) { panic("oops") }
	_, err := runOnce(t.Context(), t, load(t, m, steps("X", "Y", "inc A=X > B=t", "dbl A=X > B=u", "sum P=t Q=u > S=Y")), request(t, map[string]byte{"X": 3}))
	if infer.CodeOf(err) != infer.Internal || !strings.Contains(err.Error(), "internal error") {
		t.Errorf("got %v, want an internal error", err)
	}
}

func TestAllStepsUseTheVersionsThatServedAtTheStart(t *testing.T) {
	m := arithmetic()
	i := load(t, m, steps("X", "Y Z", "inc A=X > B=t", "dbl A=t > B=Y", "sum P=t > S=Z"))
	req := request(t, map[string]byte{"X": 3})
	req.Outputs = []string{"Y"}
	if _, err := runOnce(t.Context(), t, i, req); err != nil {
		t.Fatal(err)
	}
	if want := []infer.ModelVersion{{Model: "inc"}, {Model: "dbl"}}; !slices.Equal(m.pinned, want) || m.released != 1 {
		t.Errorf("pinned %v and released %d times, want %v, which are needed, and once", m.pinned, m.released, want)
	}
	for _, c := range m.calls {
		if c.Pinned != m {
			t.Errorf("the step of %s has %v pinned", c.Model, c.Pinned)
		}
	}
	m.pinned, req.Pinned = nil, "those of an ensemble around it"
	if _, err := runOnce(t.Context(), t, i, req); err != nil || m.pinned != nil || m.calls[3].Pinned != req.Pinned {
		t.Errorf("%v: a step of another ensemble pinned %v, and its own step has %v", err, m.pinned, m.calls[3].Pinned)
	}
}

// Two ensembles that are loaded at the same time may contain each other when both have been checked.
func TestAReadinessCheckOfEnsemblesThatContainEachOtherEnds(t *testing.T) {
	defer debug.SetMaxStack(debug.SetMaxStack(16 << 20)) // of 1 GiB
	m := arithmetic()
	m.configs["other"] = steps("A", "B", "inc A=A > B=B")
	i := load(t, m, steps("A", "B", "inc A=A > B=t", "other A=t > B=B"))
	m.configs["e"], m.configs["other"] = steps("A", "B", "inc A=A > B=t", "other A=t > B=B"), steps("A", "B", "e A=A > B=t", "dbl A=t > B=B")
	m.nested = map[string]*instance{"e": i, "other": load(t, arithmetic(), steps("A", "B", "inc A=A > B=B"))}
	m.nested["other"].engine.Members = m
	m.nested["other"].graph.steps[0].model = "e"
	if !i.Ready() {
		t.Error("it is not ready, and all models that they end in are")
	}
	m.down = map[string]bool{"dbl": true}
	if i.Ready() {
		t.Error("it is ready, and a member of a member is not")
	}
}

func TestAnEnsembleIsReadyIfItsMembersAre(t *testing.T) {
	m := arithmetic()
	i := load(t, m, steps("X", "Y", "inc A=X > B=t", "dbl A=t > B=Y"))
	if !i.Ready() {
		t.Error("it is not ready, and its members are")
	}
	m.down = map[string]bool{"dbl": true}
	if i.Ready() {
		t.Error("it is ready, and a member is not")
	}
	if other, err := i.Instance(t.Context()); err != nil || other != engine.Instance(i) {
		t.Errorf("another instance, which would check the members again: %v", err)
	}
}

func TestOutputsOfARequestThatIsOverAreReleased(t *testing.T) {
	m := arithmetic()
	compute := m.compute
	ctx, cancel := context.WithCancel(t.Context())
	m.compute = func(ctx context.Context, req *infer.Request) (map[string]byte, error) {
		cancel() // when the step is as good as done
		return compute(ctx, req)
	}
	req, before := request(t, map[string]byte{"X": 3}), buf.Live()
	if _, err := runOnce(ctx, t, load(t, m, steps("X", "Y", "inc A=X > B=Y")), req); !errors.Is(err, context.Canceled) {
		t.Errorf("it returned %v", err)
	}
	if after := buf.Live(); after != before {
		t.Errorf("%d buffers in use, %d before", after, before)
	}
}

// The next request of a sequence may follow when each step with sequences has its place.
func TestStepsWithSequencesKeepTheOrderOfRequests(t *testing.T) {
	m := arithmetic()
	m.configs["seq"] = one("A", "B") + "sequence_batching { }\n"
	m.configs["inner"] = steps("A", "B", "seq A=A > B=B")
	var order []string
	compute := m.compute
	m.compute = func(ctx context.Context, req *infer.Request) (map[string]byte, error) {
		order = append(order, req.Model)
		if req.Queued != nil {
			req.Queued()
		}
		in := *req
		in.Model = "inc"
		return compute(ctx, &in)
	}
	for config, want := range map[string][]string{
		steps("X", "Y", "inc A=X > B=t", "dbl A=t > B=Y"):                    {"next", "inc", "dbl"},
		steps("X", "Y", "inc A=X > B=t", "seq A=t > B=u", "dbl A=u > B=Y"):   {"inc", "seq", "next", "dbl"},
		steps("X", "Y", "seq A=X > B=t", "inner A=t > B=u", "inc A=u > B=Y"): {"seq", "inner", "next", "inc"},
	} {
		order = nil
		req := request(t, map[string]byte{"X": 3})
		req.Queued = func() { order = append(order, "next") }
		if _, err := runOnce(t.Context(), t, load(t, m, config), req); err != nil || !slices.Equal(order, want) {
			t.Errorf("%v, want %v: %v", order, want, err)
		}
	}
}

func TestBatchDimensionsAreAddedAndRemoved(t *testing.T) {
	row, full := []int64{2}, []int64{1, 2}
	for _, c := range []struct {
		shape []int64
		rank  int
		want  []int64
	}{{row, 1, row}, {row, 2, full}, {full, 2, full}, {full, 1, row}, {[]int64{3, 2}, 1, []int64{3, 2}}, {row, 3, row}} {
		if got := adapt(tensor.Tensor{Shape: c.shape}, c.rank); !slices.Equal(got.Shape, c.want) {
			t.Errorf("%v with rank %d: %v, want %v", c.shape, c.rank, got.Shape, c.want)
		}
	}
}

func TestClientsMaySendOtherShapesThanTheStepsGet(t *testing.T) {
	m := arithmetic()
	cfg, err := modelconfig.Parse("config.pbtxt", []byte(strings.ReplaceAll(steps("X", "Y", "inc A=X > B=Y"), "dims: 1", "dims: [ 1, 1 ] reshape { shape: 1 }")))
	if err != nil {
		t.Fatal(err)
	}
	loaded, err := (&Engine{Members: m}).Load(t.Context(), engine.Source{Config: cfg})
	if err != nil {
		t.Fatal(err)
	}
	inst, _ := loaded.Instance(t.Context())
	req := request(t, map[string]byte{"X": 3})
	req.Inputs[0].Shape = []int64{1, 1, 1}
	if err := cfg.Check(req); err != nil {
		t.Fatal(err)
	}
	calls := []engine.Call{{Request: req}}
	if err := errors.Join(inst.(*instance).RunEach(t.Context(), calls), calls[0].Err); err != nil {
		t.Fatal(err)
	}
	resp := infer.Response{Outputs: calls[0].Outputs.Tensors, Memory: calls[0].Outputs.Memory}
	if err := cfg.Restore(&resp); err != nil {
		t.Fatal(err)
	}
	if in, out := m.calls[0].Inputs[0], resp.Outputs[0]; !slices.Equal(in.Shape, []int64{1, 1}) || !slices.Equal(out.Shape, []int64{1, 1, 1}) || out.Data[0] != 4 {
		t.Errorf("the step got %v, and the client %v of %v", in.Shape, out.Data, out.Shape)
	}
	resp.Release()
}

func TestWhatDoesNotFitItsMembersIsNotLoaded(t *testing.T) {
	m := arithmetic()
	m.configs["wide"] = "max_batch_size: 8\ninput { name: \"A\" data_type: TYPE_UINT8 dims: 2 }\noutput { name: \"B\" data_type: TYPE_UINT8 dims: 1 }\n"
	m.configs["float"] = "max_batch_size: 8\ninput { name: \"A\" data_type: TYPE_FP32 dims: 1 }\noutput { name: \"B\" data_type: TYPE_UINT8 dims: 1 }\n"
	m.configs["any"] = "max_batch_size: 8\ninput { name: \"A\" data_type: TYPE_UINT8 dims: -1 }\noutput { name: \"B\" data_type: TYPE_UINT8 dims: -1 }\n"
	m.configs["small"] = strings.Replace(one("A", "B"), "8", "4", 1)
	m.configs["flat"] = strings.Replace(one("A", "B"), "max_batch_size: 8\n", "", 1)
	m.configs["seq"] = one("A", "B") + "sequence_batching { }\n"
	m.configs["inner"] = steps("A", "B", "seq A=A > B=B")
	m.configs["many"] = one("A", "B") + "model_transaction_policy { decoupled: true }\n"
	for _, c := range []struct {
		name, config, want string // "" means that it loads
	}{
		{"open dimensions", steps("X", "Y", "any A=X > B=t", "inc A=t > B=Y"), ""},
		{"a member without a batch dimension", steps("X", "Y", "flat A=X > B=Y"), ""},
		{"an ensemble without one", strings.Replace(steps("X", "Y", "inc A=X > B=Y"), "max_batch_size: 8\n", "", 1), ""},
		{"an unknown member", steps("X", "Y", "none A=X > B=Y"), `config.pbtxt:7: ensemble_scheduling.step[0].model_name: unknown model "none"`},
		{"another type", steps("X", "Y", "float A=X > B=Y"), `config.pbtxt:7: ensemble_scheduling.step[0].input_map: tensor "X" is UINT8, as an input of the ensemble, and cannot be used as FP32 "A"`},
		{"other dimensions", steps("X", "Y", "inc A=X > B=t", "wide A=t > B=Y"), `config.pbtxt:8: ensemble_scheduling.step[1].input_map: tensor "t" has the dimensions [1], as output "B" of model "inc", and cannot be used as "A" with [2]`},
		{"smaller batches", steps("X", "Y", "small A=X > B=Y"), `config.pbtxt:3: max_batch_size: found 8, expected at most 4, the max_batch_size of model "small"`},
		{"a scalar that the member does not take", strings.Replace(steps("X", "Y", "inc A=X > B=Y"), "dims: 1", "dims: 1 reshape { }", 1), `config.pbtxt:7: ensemble_scheduling.step[0].input_map: tensor "X" has the dimensions [], as an input of the ensemble, and cannot be used as "A" with [1]`},
		{"an input that is not mapped", steps("X", "Y", "sum Q=X > S=Y"), `config.pbtxt:7: ensemble_scheduling.step[0].input_map: input "P" of model "sum" is missing`},
		{"an input that the member lacks", steps("X", "Y", "inc A=X Z=X > B=Y"), `config.pbtxt:7: ensemble_scheduling.step[0].input_map: model "inc" has no input "Z"`},
		{"an output that the member lacks", steps("X", "Y Z", "inc A=X > B=Y C=Z"), `config.pbtxt:8: ensemble_scheduling.step[0].output_map: model "inc" has no output "C"`},
		{"a decoupled member", steps("X", "Y", "many A=X > B=Y"), `config.pbtxt:7: ensemble_scheduling.step[0].model_name: model "many" is decoupled, and ensembles with decoupled steps are not supported yet`},
		{"a cache before sequences", steps("X", "Y", "inner A=X > B=Y") + "response_cache { enable: true }\n", `config.pbtxt:9: response_cache: model "inner" has sequences, so that its answers depend on earlier requests`},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg, err := modelconfig.Parse("config.pbtxt", []byte(c.config))
			if err != nil {
				t.Fatal(err)
			}
			_, err = (&Engine{Members: m}).Load(t.Context(), engine.Source{Config: cfg})
			if got := fmt.Sprint(err); (c.want != "" || err != nil) && got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

func TestTheCriticalPathIsTheChainThatEndsLast(t *testing.T) {
	const ms = time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		m := arithmetic()
		compute := m.compute
		m.compute = func(ctx context.Context, req *infer.Request) (map[string]byte, error) {
			time.Sleep(map[string]time.Duration{"inc": 3 * ms, "dbl": 10 * ms, "sum": 2 * ms}[req.Model])
			return compute(ctx, req)
		}
		i := load(t, m, steps("X", "t Y", "inc A=X > B=t", "dbl A=X > B=u", "sum P=t Q=u > S=Y"))
		for range 2 {
			if _, err := runOnce(t.Context(), t, i, request(t, map[string]byte{"X": 3})); err != nil {
				t.Fatal(err)
			}
		}
		part := request(t, map[string]byte{"X": 3})
		part.Outputs = []string{"t"} // for which one step is enough
		if _, err := runOnce(t.Context(), t, i, part); err != nil {
			t.Fatal(err)
		}
		e := i.Explain()
		if e.Requests != 3 || e.Time != 9*ms || e.Between != 0 {
			t.Errorf("%d requests of %v, %v between steps; want 3 of 9ms, and nothing between", e.Requests, e.Time, e.Between)
		}
		for k, want := range []explain.Step{
			{Model: "inc", Requests: 3, Time: 3 * ms, Critical: 1, Share: 3. / 27},
			{Model: "dbl", Requests: 2, Time: 10 * ms, Critical: 2, Share: 20. / 27},
			{Model: "sum", Requests: 2, Time: 2 * ms, Critical: 2, Share: 4. / 27},
		} {
			if e.Steps[k] != want {
				t.Errorf("step %+v, want %+v", e.Steps[k], want)
			}
		}
	})
}
