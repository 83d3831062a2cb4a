package servable

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/engine/enginetest"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/machine"
	"github.com/shoal-serving/shoal/internal/modelconfig"
	"github.com/shoal-serving/shoal/internal/pacer"
	"github.com/shoal-serving/shoal/tensor"
)

// A fake is an engine that counts what is open, and fails where a test says.
type fake struct {
	enginetest.Echo

	size    int64                           // of each version
	loading func(ctx context.Context) error // called by each load; nil means that it succeeds
	open    func(n int) (engine.Instance, error)

	mu                       sync.Mutex // guards the following
	loads, models, instances int        // loads that were tried; models and instances that are open
}

func (f *fake) Load(ctx context.Context, _ engine.Source) (engine.Model, error) {
	f.count(&f.loads, 1)
	if f.loading != nil {
		if err := f.loading(ctx); err != nil {
			return nil, err
		}
	}
	f.count(&f.models, 1)
	return fakeModel{f}, nil
}

func (f *fake) Size(engine.Source) (int64, error) { return f.size, nil }

func (f *fake) count(what *int, n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	*what += n
}

// check fails the test unless the given numbers of models and instances are open.
func (f *fake) check(t *testing.T, models, instances int) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.models != models || f.instances != instances {
		t.Errorf("%d models and %d instances are open, want %d and %d", f.models, f.instances, models, instances)
	}
}

type fakeModel struct{ f *fake }

func (m fakeModel) Instance(ctx context.Context) (engine.Instance, error) {
	inst, err := m.f.Echo.Instance(ctx)
	if m.f.open != nil {
		inst, err = m.f.open(m.f.instances)
	}
	if err != nil {
		return nil, err
	}
	m.f.count(&m.f.instances, 1)
	if p, ok := inst.(*fakeProcess); ok {
		p.closed = func() { m.f.count(&m.f.instances, -1) }
		return p, nil
	}
	return fakeInstance{inst, m.f}, nil
}

func (m fakeModel) Close() error {
	m.f.count(&m.f.models, -1)
	return nil
}

type fakeInstance struct {
	engine.Instance

	f *fake
}

func (i fakeInstance) Close() error {
	i.f.count(&i.f.instances, -1)
	return nil
}

// A fakeProcess is an instance that can be scaled. It answers with the inputs.
type fakeProcess struct {
	died     chan struct{}
	runs     func() // called by each batch; nil means that it takes no time
	abort    func() // called by Abort; nil means that it has no effect
	closed   func()
	closeErr error
}

func newProcess(int) (engine.Instance, error) { return &fakeProcess{died: make(chan struct{})}, nil }

func (p *fakeProcess) Run(context.Context, []tensor.Tensor, *engine.Outputs) error {
	if p.runs != nil {
		p.runs()
	}
	return errors.New("a process takes requests one by one")
}

func (p *fakeProcess) RunEach(_ context.Context, calls []engine.Call) error {
	if p.runs != nil {
		p.runs()
	}
	for i := range calls {
		calls[i].Outputs.Tensors = append(calls[i].Outputs.Tensors, calls[i].Request.Inputs...)
	}
	return nil
}

func (p *fakeProcess) Died() <-chan struct{}         { return p.died }
func (p *fakeProcess) Restart(context.Context) error { return errors.New("it never dies") }
func (p *fakeProcess) Failing() *infer.Error         { return nil }
func (p *fakeProcess) Process() int                  { return 7 }
func (p *fakeProcess) Abort(string) {
	if p.abort != nil {
		p.abort()
	}
}

func (p *fakeProcess) Close() error {
	p.closed()
	return p.closeErr
}

const plain = `
backend: "fake"
max_batch_size: 4
input [ { name: "x" data_type: TYPE_FP32 dims: [ 2 ] } ]
output [ { name: "x" data_type: TYPE_FP32 dims: [ 2 ] } ]
instance_group { count: 2 }
`

const sample = `model_warmup { name: "w" batch_size: 1 inputs { key: "x" value { data_type: TYPE_FP32 dims: 2 zero_data: true } } }`

func newTestEnv(t *testing.T, f *fake, opts Options) *Env {
	t.Helper()
	p := pacer.NewPortable()
	t.Cleanup(p.Close)
	opts.Runners = map[string]Runner{"fake": {Engine: f}}
	opts.Pacer, opts.Log = p, slog.New(slog.DiscardHandler)
	return NewEnv(opts)
}

func source(config string) Source {
	return Source{Model: "m", Number: 1, Config: func() (*modelconfig.Config, error) {
		cfg, err := modelconfig.Parse("config.pbtxt", []byte(config))
		if err == nil {
			cfg.Name = "m"
		}
		return cfg, err
	}}
}

func mustClose(t *testing.T, v *Version) {
	t.Helper()
	if err := v.Close(); err != nil {
		t.Error(err)
	}
}

func TestAFailedLoadIsRetried(t *testing.T) {
	for failing, want := range map[int]int{0: 1, 2: 3, 3: 3} {
		f := &fake{}
		f.loading = func(context.Context) error {
			if f.loads <= failing {
				return errors.New("not yet")
			}
			return nil
		}
		v, err := newTestEnv(t, f, Options{Retries: 2}).Open(t.Context(), source(plain))
		if (err == nil) != (failing < 3) || f.loads != want {
			t.Errorf("%d loads fail: %d were tried, want %d: %v", failing, f.loads, want, err)
		}
		if err == nil {
			f.check(t, 1, 2)
			mustClose(t, v)
		}
		f.check(t, 0, 0)
	}
}

func TestALoadThatFailsLeavesNothingOpen(t *testing.T) {
	for name, tt := range map[string]struct {
		fake   *fake
		config string
		want   string
	}{
		"the second instance": {&fake{open: func(n int) (engine.Instance, error) {
			if n == 1 {
				return nil, errors.New("no second instance")
			}
			return new(enginetest.Echo).Instance(context.Background())
		}}, plain, "no second instance"},
		"the warm-up":       {&fake{Echo: enginetest.Echo{Fails: func([]tensor.Tensor) error { return errors.New("cold") }}}, plain + sample, "cold"},
		"an optional input": {&fake{}, strings.Replace(plain, "dims: [ 2 ]", "dims: [ 2 ] optional: true", 1), "input[0].optional"},
		"a decoupled model": {&fake{}, plain + "model_transaction_policy { decoupled: true }", "answer a request once; remove it, or use a Python model"},
	} {
		_, err := newTestEnv(t, tt.fake, Options{}).Open(t.Context(), source(tt.config))
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %s", name, err, tt.want)
		}
		tt.fake.check(t, 0, 0)
	}
}

func TestALoadThatIsCancelledOpensNoFurtherInstances(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	last := 0
	f := &fake{open: func(n int) (engine.Instance, error) {
		if last = n; n == 1 {
			cancel()
		}
		return new(enginetest.Echo).Instance(context.Background())
	}}
	_, err := newTestEnv(t, f, Options{}).Open(ctx, source(strings.Replace(plain, "count: 2", "count: 5", 1)))
	if !errors.Is(err, context.Canceled) || last != 1 {
		t.Errorf("%v after %d instances, want 2", err, last+1)
	}
	f.check(t, 0, 0)
}

func TestLoadsAtTheSameTimeShareTheFreeMemory(t *testing.T) {
	loading, goOn := make(chan struct{}), make(chan struct{})
	f := &fake{size: 60, loading: func(context.Context) error {
		loading <- struct{}{}
		<-goOn
		return nil
	}}
	env := newTestEnv(t, f, Options{Memory: func() machine.Memory { return machine.Memory{Limit: 100, Free: 100} }})
	first := make(chan *Version)
	go func() {
		v, err := env.Open(context.Background(), source(plain))
		if err != nil {
			t.Error(err)
		}
		first <- v
	}()
	<-loading
	if _, err := env.Open(t.Context(), source(plain)); infer.CodeOf(err) != infer.Unavailable || !strings.Contains(err.Error(), "needs about") {
		t.Errorf("a load of 60 bytes beside another, with 100 free: %v", err)
	}
	goOn <- struct{}{}
	mustClose(t, <-first)
	f.loading = nil
	v, err := env.Open(t.Context(), source(plain))
	if err != nil {
		t.Fatalf("after the first load has ended: %v", err)
	}
	mustClose(t, v)
}

func TestALoadHasATimeLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{loading: func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		}}
		env := newTestEnv(t, f, Options{Timeout: 5 * time.Second, Retries: 3})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		began := time.Now()
		_, err := env.Open(ctx, source(plain))
		if took := time.Since(began); took != 5*time.Second || infer.CodeOf(err) != infer.Deadline || !strings.Contains(err.Error(), "--model-load-timeout-secs") || f.loads != 1 {
			t.Errorf("ended after %v and %d loads with %v", took, f.loads, err)
		}
	})
}

func TestFilesAreKeptWhileAnInstanceMayBeRestarted(t *testing.T) {
	for name, c := range map[string]struct {
		open   func(int) (engine.Instance, error)
		always bool
		want   int
	}{"a process": {newProcess, false, 1}, "an instance in this process": {nil, false, 0}, "one whose files are fetched": {nil, true, 1}} {
		kept, released := 0, 0
		src := source(plain)
		src.AlwaysKeep = c.always
		src.KeepFiles = func() func() {
			kept++
			return func() { released++ }
		}
		f := &fake{open: c.open}
		v, err := newTestEnv(t, f, Options{}).Open(t.Context(), src)
		if err != nil {
			t.Fatal(err)
		}
		want := c.want
		if kept != want || released != 0 {
			t.Errorf("%s: kept %d times and released %d times while it serves", name, kept, released)
		}
		mustClose(t, v)
		if released != want {
			t.Errorf("%s: released %d times, want %d", name, released, want)
		}
		f.check(t, 0, 0)
	}
}

func TestTheFileOfASampleHasAtLeastTheSizeOfItsRow(t *testing.T) {
	dir := t.TempDir()
	in := modelconfig.SampleInput{Tensor: modelconfig.Tensor{Name: "x", Type: tensor.FP32, Dims: []int64{2}}, File: "w"}
	for content, want := range map[string]string{"12345678": "", "1234567": "found 7 bytes, expected at least 8", "123456789": ""} {
		if err := os.WriteFile(filepath.Join(dir, "w"), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		data, err := sampleData(in, 2, dir, maxSample)
		if want == "" && (err != nil || string(data) != "1234567812345678") || want != "" && (err == nil || !strings.HasSuffix(err.Error(), want)) {
			t.Errorf("%q: %q, %v, want %q", content, data, err, want)
		}
	}
}

func TestALoadEndsAlthoughTheModelDoesNotReturnFromItsWarmUp(t *testing.T) {
	unloaded := errors.New("the model was unloaded")
	for _, tt := range []struct {
		what, config string
		limit        time.Duration
		want         string
	}{
		{"a sample, and the time limit", plain + sample, time.Minute, "the load has not ended after 1m0s"},
		{"a sample, and an unload", plain + sample, time.Hour, unloaded.Error()},
		{"a generated row", plain + "dynamic_batching { }", time.Hour, unloaded.Error()},
		{"the check whether rows are independent", plain, time.Hour, unloaded.Error()},
	} {
		t.Run(tt.what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fake{open: func(int) (engine.Instance, error) {
					hang := make(chan struct{})
					return &fakeProcess{died: make(chan struct{}), runs: func() { <-hang }, abort: func() { close(hang) }}, nil
				}}
				env := newTestEnv(t, f, Options{Timeout: tt.limit, Automatic: true, Cores: 2})
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				if tt.limit == time.Hour {
					time.AfterFunc(time.Minute, func() { cancel(unloaded) })
				}
				began := time.Now()
				src := source(tt.config)
				if tt.config == plain {
					read := src.Config
					src.Config = func() (*modelconfig.Config, error) { // as if the file of the model allowed it
						cfg, err := read()
						cfg.Dynamic = &modelconfig.Dynamic{Added: true}
						return cfg, err
					}
				}
				v, err := env.Open(ctx, src)
				if took := time.Since(began); err == nil || !strings.Contains(err.Error(), tt.want) || took != time.Minute {
					t.Errorf("opened %t with %v after %v, want %q after a minute", v != nil, err, took, tt.want)
				}
				f.check(t, 0, 0)
			})
		})
	}
}

func TestAModelWithSequencesIsWarmedUp(t *testing.T) {
	for _, id := range []string{"TYPE_UINT64", "TYPE_STRING"} {
		config := plain + `
sequence_batching {
  control_input { name: "start" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }
  control_input { name: "id" control { kind: CONTROL_SEQUENCE_CORRID data_type: ` + id + ` } }
  state { input_name: "s" output_name: "s" data_type: TYPE_FP32 dims: 1 }
}
model_warmup { name: "w" batch_size: 3
  inputs { key: "s" value { data_type: TYPE_FP32 dims: 1 zero_data: true } }
  inputs { key: "start" value { data_type: TYPE_INT32 dims: 1 zero_data: true } }
  inputs { key: "x" value { data_type: TYPE_FP32 dims: 2 zero_data: true } } }
`
		f := &fake{Echo: enginetest.Echo{Fails: func(in []tensor.Tensor) error {
			names := ""
			for i := range in {
				names += in[i].Name + " "
			}
			if names != "x start id s " {
				return errors.New("the inputs are " + names)
			}
			return nil
		}}}
		v, err := newTestEnv(t, f, Options{}).Open(t.Context(), source(config))
		if err != nil {
			t.Errorf("%s: %v", id, err)
			continue
		}
		if got := f.Batches(); !slices.Equal(got, []int{1, 1}) {
			t.Errorf("%s: batches of %v rows, want one of a row on each instance", id, got)
		}
		mustClose(t, v)
	}
}

func TestWarningsAboutAConfigurationAreLoggedOnce(t *testing.T) {
	var log bytes.Buffer
	env := newTestEnv(t, &fake{}, Options{})
	env.opts.Log = slog.New(slog.NewTextHandler(&log, nil))
	src := source(plain + "optimization { eager_batching: true }")
	first, err := env.Open(t.Context(), src)
	if err != nil {
		t.Fatal(err)
	}
	tuned, err := env.openWithRetries(t.Context(), src, tuning{threads: 2})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(first.Close(), tuned.Close()); err != nil {
		t.Error(err)
	}
	if n := strings.Count(log.String(), "eager_batching"); n != 1 {
		t.Errorf("the warning is logged %d times:\n%s", n, log.String())
	}
}

// Where the configuration sets the size of a row, its author has chosen that of a batch.
func TestABatchOfDirectSequencesIsLimitedIfClientsChooseItsSize(t *testing.T) {
	for dims, refused := range map[string]bool{"-1": true, "100": false} {
		config := strings.ReplaceAll(plain, "[ 2 ]", "[ "+dims+" ]") + "\nsequence_batching { direct {} }"
		v, err := newTestEnv(t, &fake{}, Options{InputBytes: 1000}).Open(t.Context(), source(config))
		if err != nil {
			t.Errorf("%s: %v", dims, err)
			continue
		}
		req := &infer.Request{Correlation: 1, Flags: infer.SequenceStart, Rows: 1, Inputs: []tensor.Tensor{{Name: "x", Type: tensor.FP32, Shape: []int64{1, 100}, Data: make([]byte, 400)}}}
		var resp infer.Response
		err = v.Scheduler.Submit(t.Context(), req, &resp)
		if err == nil {
			resp.Release()
		}
		if (infer.CodeOf(err) == infer.Invalid && strings.Contains(err.Error(), "decoded bytes")) != refused || err != nil && !refused {
			t.Errorf("dims %s: %v", dims, err)
		}
		mustClose(t, v)
	}
}
