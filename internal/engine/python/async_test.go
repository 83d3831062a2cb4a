package python

import (
	"strconv"
	"strings"
	"sync"
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

func TestATaskThatEndsTheProcessOrTheLoopFailsItsBatchOnly(t *testing.T) {
	inst := newFixture(t, identityConfig, `
import asyncio, sys
class TritonPythonModel:
    async def execute(self, requests):
        x = requests[0].inputs()[0].as_numpy()
        async def end(): sys.exit(3)
        if x[0, 0] == 1: await asyncio.gather(end())
        if x[0, 0] == 2: asyncio.get_running_loop().stop()
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", x)])]
`).open(t)
	for i := range 4 {
		batch := calls(float32(i))
		err := inst.RunEach(t.Context(), batch)
		if i == 1 && (err == nil || !strings.Contains(err.Error(), "the model called sys.exit(3)")) || i != 1 && err != nil {
			t.Errorf("batch %d: %v", i, err)
		}
		release(batch)
	}
}

func TestAnAsyncModelSaysWhetherItIsReadyWhileItComputes(t *testing.T) {
	inst := newFixture(t, identityConfig, `
import threading
class TritonPythonModel:
    asked = threading.Event()
    async def is_ready(self):
        self.asked.set()
        return True
    async def execute(self, requests):
        assert self.asked.wait(60)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", requests[0].inputs()[0].as_numpy())])]
`).open(t)
	var running sync.WaitGroup
	running.Go(func() {
		batch := calls(1)
		if err := inst.RunEach(t.Context(), batch); err != nil {
			t.Error(err)
		}
		release(batch)
	})
	if !inst.Ready() {
		t.Error("not ready")
	}
	running.Wait()
}

func TestAnAsyncDecoupledModelSendsItsResponses(t *testing.T) {
	inst := newFixture(t, decoupledConfig, `
import asyncio
FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
class TritonPythonModel:
    async def execute(self, requests):
        sender, x = requests[0].get_response_sender(), requests[0].inputs()[0].as_numpy()
        await asyncio.sleep(0)
        sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", x)]), flags=FINAL)
`).open(t)
	for i := range 2 {
		batch := calls(float32(i + 1))
		senders := opened(batch)
		if err := inst.RunEach(t.Context(), batch); err != nil {
			t.Fatal(err)
		}
		if got := story(t, <-senders[0]); len(got) != 1 || !strings.HasPrefix(got[0], strconv.Itoa(i+1)) {
			t.Errorf("request %d got %q", i+1, got)
		}
		release(batch)
	}
}
