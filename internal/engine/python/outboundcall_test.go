package python

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/access"
	"github.com/shoal-serving/shoal/internal/buf"
	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/tensor"
)

// A fakeCaller answers calls of models with its function. Without one it returns the
// inputs as outputs, twice their size.
type fakeCaller struct {
	answer func(ctx context.Context, req *infer.Request, resp *infer.Response) error

	mu     sync.Mutex // guards the following
	seen   []infer.Request
	orders []string
}

func (c *fakeCaller) Call(ctx context.Context, req *infer.Request, resp *infer.Response) error {
	c.mu.Lock()
	c.seen = append(c.seen, *req)
	c.mu.Unlock()
	if c.answer != nil {
		return c.answer(ctx, req, resp)
	}
	return twice(req, resp)
}

func (c *fakeCaller) ModelReady(model, version string) bool {
	return model == "other" && version != "9"
}

func (c *fakeCaller) LoadModel(_ context.Context, model, config string, files map[string][]byte) error {
	texts := map[string]string{}
	for path, content := range files {
		texts[path] = string(content)
	}
	c.order("load %s %q %v", model, config, texts)
	if model == "wrong" {
		return infer.Errorf(infer.NotFound, "no such model")
	}
	return nil
}

func (c *fakeCaller) UnloadModel(_ context.Context, model string) error {
	c.order("unload %s", model)
	return nil
}

func (c *fakeCaller) order(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.orders = append(c.orders, fmt.Sprintf(format, args...))
}

func twice(req *infer.Request, resp *infer.Response) error {
	resp.Memory = buf.Get(len(req.Inputs[0].Data))
	copy(resp.Memory.B, req.Inputs[0].Data)
	out := tensor.Tensor{Name: "OUT", Type: tensor.FP32, Shape: req.Inputs[0].Shape, Data: resp.Memory.B}
	data, err := tensor.View[float32](&out)
	for i := range data {
		data[i] *= 2
	}
	resp.Outputs = append(resp.Outputs, out)
	return err
}

// asking is a model that calls another model, and returns its response.
const asking = `
class TritonPythonModel:
    def execute(self, requests):
        out = []
        for r in requests:
            q = pb_utils.InferenceRequest(model_name="other", model_version=3, requested_output_names=["OUT"], request_id="inner", correlation_id=9 if r.request_id() else "nine", flags=1,
                timeout=5000, priority=2, parameters={"n": 3, "x": 0.5, "s": "text", "b": True}, inputs=[pb_utils.Tensor("IN", r.inputs()[0].as_numpy())])
            a = q.exec()
            if a.has_error():
                out.append(pb_utils.InferenceResponse(error=a.error()))
            else:
                out.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", pb_utils.get_output_tensor_by_name(a, "OUT").as_numpy())]))
        return out
`

func newAsking(t testing.TB, text string, caller engine.ModelCaller) *instance {
	t.Helper()
	f := newFixture(t, identityConfig, text)
	f.engine.opts.Caller = caller
	return f.open(t)
}

func TestAModelAsksAnother(t *testing.T) {
	caller := &fakeCaller{}
	inst := newAsking(t, asking, caller)
	batch := calls(1, 2, 3)
	batch[1].Request.ID = ""
	if err := inst.RunEach(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	for i := range batch {
		if got := first(t, &batch[i]); got != 2*float32(i+1) {
			t.Errorf("answer %d is %v", i, got)
		}
	}
	release(batch)
	caller.mu.Lock() // the worker in between orders nothing for the race detector
	defer caller.mu.Unlock()
	r := caller.seen[0]
	if len(caller.seen) != 3 || r.Model != "other" || r.Version != "3" || r.ID != "inner" || r.Correlation != 9 || r.Flags != infer.SequenceStart ||
		r.Timeout != 5*time.Millisecond || r.Priority != 2 || r.Outputs[0] != "OUT" || r.AcceptStream {
		t.Errorf("it was asked %+v", r)
	}
	if second := caller.seen[1]; second.Correlation != 0 || second.CorrelationName != "nine" {
		t.Errorf("it was asked %+v", second)
	}
	want := []infer.Parameter{{Name: "b", Value: true}, {Name: "n", Value: int64(3)}, {Name: "s", Value: "text"}, {Name: "x", Value: 0.5}}
	for i, p := range r.Parameters {
		if p != want[i] {
			t.Errorf("parameter %+v, want %+v", p, want[i])
		}
	}
}

func TestAModelAsksWhetherAnotherIsReady(t *testing.T) {
	inst := newAsking(t, `
seen = [pb_utils.is_model_ready("other"), pb_utils.is_model_ready("other", "9"), pb_utils.is_model_ready(model_name="nobody")]
assert seen == [True, False, False], seen
return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", r.inputs()[0].as_numpy())]) for r in requests]`, &fakeCaller{})
	batch := calls(1)
	if err := inst.RunEach(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	release(batch)
}

func TestAModelFindsItsDirectory(t *testing.T) {
	inst := newAsking(t, `
import os
assert pb_utils.get_model_dir() == os.path.dirname(__file__), pb_utils.get_model_dir()
return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", r.inputs()[0].as_numpy())]) for r in requests]`, &fakeCaller{})
	batch := calls(1)
	if err := inst.RunEach(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	release(batch)
}

func TestAFailedCallIsReportedWithTritonsWording(t *testing.T) {
	for _, tt := range []struct {
		err  error
		ran  bool
		want string
	}{
		{infer.Errorf(infer.NotFound, "no such model"), false, "Model other - Error when running inference: Failed for execute the inference request. Model 'other' is not ready."},
		{infer.Errorf(infer.Invalid, "unexpected inference input 'IN' for model 'other'"), false, "Model other - Error when running inference: unexpected inference input 'IN' for model 'other'"},
		{infer.Errorf(infer.Unsupported, "%w", infer.ErrDecoupled), false, "Model other - Error when running inference: Model other is using the decoupled. "},
		{infer.Errorf(infer.Invalid, "inner bad"), true, "inner bad"},
	} {
		inst := newAsking(t, asking, &fakeCaller{answer: func(_ context.Context, _ *infer.Request, resp *infer.Response) error {
			if tt.ran {
				resp.Times.Taken = time.Now()
			}
			return tt.err
		}})
		batch := calls(1)
		if err := inst.RunEach(t.Context(), batch); err != nil {
			t.Fatal(err)
		}
		if err := batch[0].Err; err == nil || !strings.HasPrefix(err.Error(), tt.want) || infer.CodeOf(err) != infer.Internal {
			t.Errorf("error %v (%v), want %q", err, infer.CodeOf(err), tt.want)
		}
	}
}

func TestCallsRunAtTheSameTime(t *testing.T) {
	var all sync.WaitGroup
	all.Add(4)
	together := func(_ context.Context, req *infer.Request, resp *infer.Response) error {
		all.Done()
		all.Wait() // would block if one call waited for another
		return twice(req, resp)
	}
	for name, text := range map[string]string{
		"async": `
class TritonPythonModel:
    async def execute(self, requests):
        import asyncio
        x = requests[0].inputs()[0].as_numpy()
        answers = await asyncio.gather(*[pb_utils.InferenceRequest(model_name="other", inputs=[pb_utils.Tensor("IN", x + i)]).async_exec() for i in range(4)])
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", sum(a.output_tensors()[0].as_numpy() for a in answers))])]`,
		"tasks": `
class TritonPythonModel:
    async def execute(self, requests):
        import asyncio
        x = requests[0].inputs()[0].as_numpy()
        answers, _ = await asyncio.wait([pb_utils.InferenceRequest(model_name="other", inputs=[pb_utils.Tensor("IN", x + i)]).async_exec() for i in range(4)])
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", sum(a.result().output_tensors()[0].as_numpy() for a in answers))])]`,
		"threads": `
from concurrent.futures import ThreadPoolExecutor
class TritonPythonModel:
    def execute(self, requests):
        x = requests[0].inputs()[0].as_numpy()
        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(lambda i: pb_utils.InferenceRequest(model_name="other", inputs=[pb_utils.Tensor("IN", x + i)]).exec(), range(4)))
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", sum(a.output_tensors()[0].as_numpy() for a in answers))])]`,
	} {
		t.Run(name, func(t *testing.T) {
			all = sync.WaitGroup{}
			all.Add(4)
			inst := newAsking(t, text, &fakeCaller{answer: together})
			batch := calls(1)
			if err := inst.RunEach(t.Context(), batch); err != nil {
				t.Fatal(err)
			}
			if got := first(t, &batch[0]); got != 2*(1+2+3+4) {
				t.Errorf("the answer is %v", got)
			}
			release(batch)
		})
	}
}

func TestACallEndsWhenNobodyWaitsForItsBatch(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	inst := newAsking(t, asking, &fakeCaller{answer: func(inner context.Context, _ *infer.Request, _ *infer.Response) error {
		cancel() // the client disconnects
		<-inner.Done()
		return infer.Errorf(infer.Cancelled, "the client left")
	}})
	batch := calls(1)
	if err := inst.RunEach(ctx, batch); err != nil {
		t.Fatal(err)
	}
	if err := batch[0].Err; err == nil || !strings.Contains(err.Error(), "the client left") {
		t.Errorf("error %v", err)
	}
}

func TestACallOfAnAbandonedBatchEndsAtOnce(t *testing.T) {
	inst := newAsking(t, `
while not requests[0].is_cancelled(): time.sleep(0.001)
a = pb_utils.InferenceRequest(model_name="other", inputs=[requests[0].inputs()[0]]).exec()
return [pb_utils.InferenceResponse(error=a.error())]`, &fakeCaller{answer: func(inner context.Context, _ *infer.Request, _ *infer.Response) error {
		<-inner.Done()
		return infer.Errorf(infer.Cancelled, "the client left")
	}})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	batch := calls(1)
	if err := inst.RunEach(ctx, batch); err != nil {
		t.Fatal(err)
	}
	if err := batch[0].Err; err == nil || !strings.Contains(err.Error(), "the client left") {
		t.Errorf("error %v", err)
	}
}

func TestACallEndsWithTheWorkerAndWithItsIterator(t *testing.T) {
	for name, text := range map[string]string{
		"os._exit": `q = pb_utils.InferenceRequest(model_name="other", inputs=[requests[0].inputs()[0]]); q.exec(decoupled=True); time.sleep(0.2); os._exit(1)`,
		"cancel":   `q = pb_utils.InferenceRequest(model_name="other", inputs=[requests[0].inputs()[0]]); q.exec(decoupled=True).cancel(); time.sleep(0.2); raise KeyError()`,
	} {
		t.Run(name, func(t *testing.T) {
			ended := make(chan struct{})
			inst := newAsking(t, text, &fakeCaller{answer: func(inner context.Context, req *infer.Request, _ *infer.Response) error {
				if !req.AcceptStream {
					t.Error("one response was asked for")
				}
				<-inner.Done()
				close(ended)
				return inner.Err()
			}})
			if err := inst.RunEach(t.Context(), calls(1)); err == nil {
				t.Error("no error")
			}
			<-ended
		})
	}
}

func TestAnIteratorGivesOneResponseAfterTheOther(t *testing.T) {
	inst := newAsking(t, `
q = pb_utils.InferenceRequest(model_name="other", inputs=[pb_utils.Tensor("IN", requests[0].inputs()[0].as_numpy())])
seen = []
for a in q.exec(decoupled=True):
    seen.append(a.error().message() if a.has_error() else [t.as_numpy()[0, 0] for t in a.output_tensors()])
assert seen == [[2], "broke", [2], []], seen
return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", r.inputs()[0].as_numpy())]) for r in requests]`,
		&fakeCaller{answer: func(_ context.Context, req *infer.Request, resp *infer.Response) error {
			resp.Stream = &fakeMore{req: req}
			return nil
		}})
	batch := calls(1)
	if err := inst.RunEach(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	release(batch)
}

func TestAFunctionCallsOthersForTheCallersOfItsBatch(t *testing.T) {
	f := newApp(t, "app.py", `
import shoal, triton_python_backend_utils as pb_utils
@shoal.model(inputs={"x": ("FP32", [-1, 4])}, outputs={"y": ("FP32", [-1, 4])}, max_batch=8, name="m")
def ask(x):
    a = pb_utils.InferenceRequest(model_name="other", inputs=[pb_utils.Tensor("IN", x)]).exec()
    return pb_utils.get_output_tensor_by_name(a, "OUT").as_numpy()
`)
	var mu sync.Mutex // guards names: the worker in between orders nothing for the race detector
	var names []string
	f.engine.opts.Caller = &fakeCaller{answer: func(ctx context.Context, req *infer.Request, resp *infer.Response) error {
		mu.Lock()
		defer mu.Unlock()
		names = append(names, access.CallerOf(ctx).Name())
		return twice(req, resp)
	}}
	inst := f.instance(t)
	x := []tensor.Tensor{{Name: "x", Type: tensor.FP32, Shape: []int64{1, 4}, Data: make([]byte, 16)}}
	run := func(run func(out *engine.Outputs) error) {
		t.Helper()
		var out engine.Outputs
		if err := run(&out); err != nil {
			t.Fatalf("%v\n%s", err, f.log)
		}
		out.Memory.Release()
	}
	ann := &access.Caller{Principals: []*access.Principal{{Name: "ann"}}}
	run(func(out *engine.Outputs) error { return inst.(engine.DelegateRunner).RunFor(t.Context(), ann, x, out) })
	run(func(out *engine.Outputs) error { return inst.Run(t.Context(), x, out) })
	mu.Lock()
	defer mu.Unlock()
	if !slices.Equal(names, []string{"ann", "anonymous"}) {
		t.Errorf("the calls were made for %q", names)
	}
}

// A fakeMore returns a response, an error, a response, and the final flag.
type fakeMore struct {
	req *infer.Request
	n   int
}

func (m *fakeMore) Next(_ context.Context, resp *infer.Response) error {
	m.n++
	switch m.n {
	case 2:
		return infer.Errorf(infer.Internal, "broke")
	case 4:
		resp.Last, resp.Empty = true, true
		return nil
	}
	return twice(m.req, resp)
}

func (m *fakeMore) Close() {}

func TestAModelLoadsAndUnloadsOthers(t *testing.T) {
	caller := &fakeCaller{}
	inst := newAsking(t, `
pb_utils.load_model("plain")
pb_utils.load_model(model_name="sent", config='{"max_batch_size": 4}', files={"file:1/model.py": b"text", "file:1/empty": b""})
pb_utils.unload_model("plain")
pb_utils.unload_model("sent", unload_dependents=True)
try:
    pb_utils.load_model("wrong")
    said = ""
except pb_utils.TritonModelException as e:
    said = str(e)
assert said == "no such model", said
`+identity, caller)
	batch := calls(1)
	if err := inst.RunEach(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	release(batch)
	want := []string{`load plain "" map[]`, `load sent "{\"max_batch_size\": 4}" map[1/empty: 1/model.py:text]`, "unload plain", "unload sent", `load wrong "" map[]`}
	caller.mu.Lock() // the worker in between orders nothing for the race detector
	defer caller.mu.Unlock()
	if !slices.Equal(caller.orders, want) {
		t.Errorf("orders %q, want %q", caller.orders, want)
	}
}
