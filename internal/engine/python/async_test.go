package python

import (
	"slices"
	"strings"
	"testing"
)

// An async execute and what it creates have one event loop: here a task that computes all
// answers.
func TestWhatAnAsyncModelCreatesInABatchWorksInTheNext(t *testing.T) {
	inst := newFixture(t, identityConfig, `
import asyncio
class TritonPythonModel:
    queue = None
    async def execute(self, requests):
        if self.queue is None:
            self.queue = asyncio.Queue()
            self.task = asyncio.ensure_future(self.compute())
        ended = asyncio.get_running_loop().create_future()
        await self.queue.put((requests[0].inputs()[0].as_numpy() * 2, ended))
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", await ended)])]
    async def compute(self):
        while True:
            x, ended = await self.queue.get()
            ended.set_result(x)
            del x, ended
`).open(t)
	for i := float32(0); i < 3; i++ {
		batch := calls(i)
		if err := inst.RunEach(t.Context(), batch); err != nil {
			t.Fatal(err)
		}
		if got := first(t, &batch[0]); got != 2*i {
			t.Errorf("batch %v has the answer %v", i, got)
		}
		release(batch)
		if inst.worker.inputsHeld {
			t.Errorf("the worker says that the model keeps the inputs of batch %v", i)
		}
	}
}

func TestErrorsOfAnAsyncModelNameItsOwnLines(t *testing.T) {
	for _, tt := range []struct{ body, want string }{
		{`raise ValueError("boom")`, "message: ValueError: boom\n\nAt:\n  m/1/model.py(7): execute\n"},
		{`raise SystemExit(3)`, "message: RuntimeError: the model called sys.exit(3)\n\nAt:\n  m/1/model.py(7): execute\n"},
	} {
		inst := newFixture(t, identityConfig, `
class TritonPythonModel:
    async def execute(self, requests):
        `+tt.body+"\n").open(t)
		for range 2 { // the event loop goes on
			batch := calls(1)
			err := inst.RunEach(t.Context(), batch)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %q", err, tt.want)
			}
			release(batch)
			if inst.worker.inputsHeld {
				t.Error("the worker says that the model keeps the inputs of a batch that failed")
			}
		}
	}
}

func TestAnAsyncDecoupledModelRunsManyBatchesAtOnce(t *testing.T) {
	inst := newFixture(t, decoupledConfig, `
import asyncio
FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
class TritonPythonModel:
    came = None
    async def execute(self, requests):
        sender, x = requests[0].get_response_sender(), requests[0].inputs()[0].as_numpy()
        if x[0, 0] == 1:  # answered when the next request has come
            self.came = asyncio.Event()
            await self.came.wait()
        else:
            self.came.set()
        sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", x)]))
        if x[0, 0] == 3: raise KeyError("lost")
        if x[0, 0] == 4: return []
        sender.send(flags=FINAL)
`).open(t)
	var stories []chan []string
	for i := range 4 {
		batch := calls(float32(i + 1))
		senders := opened(batch)
		if err := inst.RunEach(t.Context(), batch); err != nil {
			t.Fatal(err)
		}
		told := make(chan []string, 1)
		go func() {
			told <- story(t, <-senders[0])
			release(batch)
		}()
		stories = append(stories, told)
	}
	const failed = "error: Failed to process the request(s) for model 'm_0', message: "
	for i, want := range [][]string{
		{"1 []", "bare"},
		{"2 []", "bare"},
		{"3 []", failed + "KeyError: 'lost'\n\nAt:\n  m/1/model.py(17): execute\n"},
		{"4 []", failed + "Python model 'm_0' is using the decoupled mode and the execute function must return None."},
	} {
		if got := <-stories[i]; !slices.Equal(got, want) {
			t.Errorf("request %d got %q, want %q", i+1, got, want)
		}
	}
}
