package python

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/tensor"
)

const decoupledConfig = identityConfig + ` model_transaction_policy { decoupled: true }`

// sending returns a model that runs code with a response sender for each request.
func sending(body string) string {
	return `
import threading
FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
def response(x, **more):
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", np.full((1, 4), x, np.float32)), pb_utils.Tensor("OTHER", np.zeros(1))], **more)
class TritonPythonModel:
    def execute(self, requests):
        for r in requests:
            sender = r.get_response_sender()
            assert sender is r.get_response_sender()
` + strings.ReplaceAll("\n"+strings.TrimSpace(body), "\n", "\n            ") + "\n"
}

// opened lets the calls open senders, and returns the channels that receive them.
func opened(all []engine.Call) []chan infer.ResponseStream {
	var senders []chan infer.ResponseStream
	for i := range all {
		senders = append(senders, make(chan infer.ResponseStream, 1))
		all[i].Opened = senders[i]
	}
	return senders
}

// story reads everything that a sender sends, as words.
func story(t testing.TB, more infer.ResponseStream) (words []string) {
	t.Helper()
	defer more.Close()
	for {
		var resp infer.Response
		err := more.Next(t.Context(), &resp)
		switch {
		case err != nil:
			words = append(words, "error: "+err.Error())
		case resp.Empty:
			words = append(words, "bare")
		default:
			values, err := tensor.View[float32](&resp.Outputs[0])
			if err != nil || len(resp.Outputs) != 1 {
				t.Fatalf("%v, outputs %v", err, resp.Outputs)
			}
			words = append(words, fmt.Sprint(values[0], resp.Parameters))
			resp.Release()
		}
		if resp.Last {
			return words
		}
	}
}

func TestAModelAnswersAsOftenAsItLikes(t *testing.T) {
	for _, tt := range []struct {
		body string
		want []string
	}{
		{`sender.send(flags=FINAL)`, []string{"bare"}},
		{`sender.send(response(1), flags=FINAL)`, []string{"1 []"}},
		{`
for x in range(300): sender.send(response(x))
sender.send(flags=FINAL)`, append(numbers(300), "bare")},
		{`
def later(sender):
    time.sleep(0.05)
    for x in range(3): sender.send(response(x))
    sender.send(response(3, parameters={"n": 1, "s": "x"}), FINAL)
threading.Thread(target=later, args=(sender,)).start()`, append(numbers(3), "3 [{n 1} {s x}]")},
		{`
sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("not yet", pb_utils.TritonError.INVALID_ARG)))
sender.send(response(2), FINAL)`, []string{"error: not yet", "2 []"}},
		{`
sender.send(response(1), FINAL)
try: sender.send(response(2))
except pb_utils.TritonModelException as e: assert str(e) == "Unable to send response. Response sender has been closed.", e
else: assert False`, []string{"1 []"}},
		{`
sender.send(response(1))
for mistake in (
    lambda: response(1, parameters={"x": float("nan")}), lambda: pb_utils.InferenceResponse(2 * response(1).output_tensors()),
    lambda: pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", np.broadcast_to(np.float32(0), (1, 1 << 28)))]),
):
    try: sender.send(mistake())
    except (pb_utils.TritonModelException, ValueError): continue
    raise AssertionError("not refused")
sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("no such code", -1)))
sender.send(response(2), FINAL)`, []string{"1 []", "error: no such code", "2 []"}},
		{`
sender.send(response(1))
raise KeyError("lost")`, []string{"1 []", "error: Failed to process the request(s) for model 'm_0', message: KeyError: 'lost'"}},
		{`
sender.send(response(1))
self.kept = None
return []`, []string{"1 []", "error: Failed to process the request(s) for model 'm_0', message: Python model 'm_0' is using the decoupled mode and the execute function must return None."}},
		{`sender.send(response(1))`, []string{"1 []", "error: Failed to process the request(s) for model 'm_0', message: its response sender is gone"}},
		{`
sender.send(response(1))
os._exit(3)`, []string{"1 []", "error: Failed to process the request(s) for model 'm_0', message: the instance died"}},
	} {
		t.Run(tt.body, func(t *testing.T) {
			t.Parallel()
			inst := newFixture(t, decoupledConfig, sending(tt.body)).open(t)
			batch := calls(1)
			senders := opened(batch)
			told := make(chan []string, 1)
			go func() { told <- story(t, <-senders[0]) }() // while the model may still run
			_ = inst.RunEach(t.Context(), batch)
			got := <-told
			release(batch)
			same := slices.EqualFunc(got, tt.want, func(a, b string) bool { return a == b || strings.HasPrefix(b, "error") && strings.HasPrefix(a, b) })
			if !same {
				t.Errorf("it sent %q, want %q", got, tt.want)
			}
		})
	}
}

func TestASenderEndsWithItsFailedBatchAndTheWorkerLives(t *testing.T) {
	inst := newFixture(t, decoupledConfig, sending(`
if r is requests[1]: raise KeyError("lost")
self.kept = sender`)).open(t)
	batch := calls(1, 2)
	senders := opened(batch)
	if err := inst.RunEach(t.Context(), batch); err == nil {
		t.Error("the batch did not fail")
	}
	for i := range senders {
		if got := story(t, <-senders[i]); len(got) != 1 || !strings.Contains(got[0], "KeyError: 'lost'") {
			t.Errorf("request %d: %q, want the error of the batch", i, got)
		}
	}
	if cause := inst.worker.cause.Load(); cause != nil {
		t.Errorf("the worker was killed: %s", *cause)
	}
}

// streamAfter runs a batch of one request to its end, and returns the request's responses.
func streamAfter(t *testing.T, inst *instance) infer.ResponseStream {
	t.Helper()
	batch := calls(1)
	senders := opened(batch)
	if err := inst.RunEach(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	release(batch)
	return <-senders[0]
}

func TestASenderReportsHowItsWorkerDied(t *testing.T) {
	inst := newFixture(t, decoupledConfig, sending(`
def later(sender):
    while not os.path.exists(__file__ + ".ran"): time.sleep(0.001)
    os._exit(3)
threading.Thread(target=later, args=(sender,)).start()`)).open(t)
	more := streamAfter(t, inst)
	told := make(chan []string, 1)
	go func() { told <- story(t, more) }()
	if err := os.WriteFile(filepath.Join(inst.model.dir, "1", "model.py.ran"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if got := <-told; len(got) != 1 || !strings.Contains(got[0], "exit code 3") {
		t.Errorf("it sent %q, want the exit code", got)
	}
}

func numbers(n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprintf("%d []", i))
	}
	return all
}

func TestResponsesComeWhileTheBatchRuns(t *testing.T) {
	inst := newFixture(t, decoupledConfig, sending(`
sender.send(response(1))
while not sender.is_cancelled(): time.sleep(0.01)
assert r.is_cancelled()
sender.send(response(2), FINAL)  # goes nowhere`)).open(t)
	batch := calls(1)
	senders := opened(batch)
	ran := make(chan error, 1)
	go func() { ran <- inst.RunEach(t.Context(), batch) }()
	more := <-senders[0]
	var resp infer.Response
	if err := more.Next(t.Context(), &resp); err != nil {
		t.Fatal(err)
	}
	resp.Release()
	more.Close() // the client disconnects
	if err := <-ran; err != nil {
		t.Error(err)
	}
	release(batch)
}

func TestASenderIsWaitedForNoLongerThanItsClientDoes(t *testing.T) {
	inst := newFixture(t, decoupledConfig, sending(`
def later(sender):
    while not sender.is_cancelled(): time.sleep(0.01)
threading.Thread(target=later, args=(sender,)).start()`)).open(t)
	more := streamAfter(t, inst)
	defer more.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	var resp infer.Response
	if err := more.Next(ctx, &resp); !errors.Is(err, context.DeadlineExceeded) || !resp.Last {
		t.Errorf("error %v, last %v", err, resp.Last)
	}
}

// Shells and systemd give processes a soft limit of 1024 descriptors, and a much higher hard one.
func TestAModelMayHaveMoreSendersOpenThanTheSoftLimitOfDescriptors(t *testing.T) {
	f := newFixture(t, decoupledConfig, `
class TritonPythonModel:
    def execute(self, requests):
        for sender in [r.get_response_sender() for r in requests]:
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)`)
	interpreter := filepath.Join(t.TempDir(), "python")
	if err := os.WriteFile(interpreter, []byte("#!/bin/sh\nulimit -S -n 128\nexec "+f.src.Config.Parameters["python"]+` "$@"`+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	f.src.Config.Parameters["python"] = interpreter
	batch := calls(make([]float32, 200)...)
	senders := opened(batch)
	if err := f.open(t).RunEach(t.Context(), batch); err != nil {
		t.Error(err)
	}
	for i := range senders {
		select {
		case more := <-senders[i]:
			if got := story(t, more); len(got) != 1 || got[0] != "bare" {
				t.Errorf("request %d: %q", i, got)
			}
		default:
			t.Errorf("request %d has no sender", i)
		}
	}
	release(batch)
}

func TestAPlainModelMaySendItsOneResponse(t *testing.T) {
	inst := newFixture(t, identityConfig, `
class TritonPythonModel:
    def execute(self, requests):
        one, two, three = requests
        x = [r.inputs()[0].as_numpy() for r in requests]
        one.get_response_sender().send(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", x[0])]), pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        two.get_response_sender()
        return [None] + [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", a)]) for a in x[1:]]`).open(t)
	batch := calls(1, 2, 3)
	senders := opened(batch)
	if err := inst.RunEach(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"1 []", "2 []"} {
		if got := story(t, <-senders[i]); len(got) != 1 || got[0] != want {
			t.Errorf("request %d: %q, want %q", i, got, want)
		}
	}
	if len(senders[2]) != 0 || first(t, &batch[2]) != 3 {
		t.Error("the third is not answered as others are")
	}
	release(batch)
}

func TestAModelSeesThatOneClientOfItsBatchHasLeft(t *testing.T) {
	f := newFixture(t, identityConfig, `
print("running")
until = time.time() + 20
while not requests[1].is_cancelled() and time.time() < until: time.sleep(0.01)
return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", np.full((1, 4), r.is_cancelled(), np.float32))]) for r in requests]`)
	inst := f.open(t)
	batch := calls(1, 2, 3)
	left := batch[1].Request
	go func() {
		for !strings.Contains(f.log.String(), "msg=running") {
			time.Sleep(time.Millisecond)
		}
		inst.Left(&infer.Request{}) // not in the batch
		inst.Left(left)
	}()
	if err := inst.RunEach(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	for i, want := range []float32{0, 1, 0} {
		if got := first(t, &batch[i]); got != want {
			t.Errorf("request %d is cancelled: %v, want %v", i, got, want)
		}
	}
	release(batch)
}

// Responses that nothing reads fill the connection after some six of them, and the model would wait
// for ever. A stream that is delivered here has no reader.
func TestAModelThatSendsToClientsWhichHaveLeftIsNotHeldUp(t *testing.T) {
	f := newFixture(t, decoupledConfig, `
class TritonPythonModel:
    def execute(self, requests):
        r = requests[0]
        print("running")
        until = time.time() + 20
        while r.request_id() == "leaves" and not r.is_cancelled() and time.time() < until: time.sleep(0.001)
        sender = r.get_response_sender()
        for x in range(20):
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", np.full((1, 4), x, np.float32))]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)`)
	inst := f.open(t)
	ran := 0
	start := func(ctx context.Context, batch []engine.Call) (done chan error) {
		done = make(chan error, 1)
		go func() { done <- inst.RunEach(ctx, batch) }()
		for ran++; strings.Count(f.log.String(), "msg=running") < ran; {
			time.Sleep(time.Millisecond)
		}
		return done
	}
	for _, tt := range []struct {
		name  string
		leave func(req *infer.Request, cancel context.CancelFunc)
	}{
		{"one client leaves", func(req *infer.Request, _ context.CancelFunc) { inst.Left(req) }},
		{"one client left before", func(*infer.Request, context.CancelFunc) {}},
		{"all clients leave", func(_ *infer.Request, cancel context.CancelFunc) { cancel() }},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		batch := calls(1)
		batch[0].Request.ID = "leaves"
		senders := opened(batch)
		batch[0].Left = new(atomic.Bool)
		batch[0].Left.Store(tt.name == "one client left before")
		done := start(ctx, batch)
		tt.leave(batch[0].Request, cancel)
		select {
		case err := <-done:
			if err != nil || len(senders[0]) != 0 || !batch[0].Streaming {
				t.Errorf("%s: error %v, %d streams, streaming %v", tt.name, err, len(senders[0]), batch[0].Streaming)
			}
		case more := <-senders[0]:
			t.Errorf("%s: a stream is delivered to it", tt.name)
			more.Close()
			<-done
		}
		cancel()
		release(batch)
	}
	batch := calls(1) // its client stays
	senders := opened(batch)
	done := start(t.Context(), batch)
	if got := story(t, <-senders[0]); !slices.Equal(got, append(numbers(20), "bare")) {
		t.Errorf("the next batch sends %q", got)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	release(batch)
}

// The client of a request may leave after the instance took it, and before its batch begins.
func TestAModelSeesThatAClientHasLeftBeforeTheBatch(t *testing.T) {
	inst := newFixture(t, identityConfig, `
requests[1].get_response_sender()
return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", np.full((1, 4), r.is_cancelled(), np.float32))]) for r in requests]`).open(t)
	for _, leaves := range []bool{true, false} {
		batch := calls(1, 2, 3)
		senders := opened(batch)
		for i := range batch {
			batch[i].Left = new(atomic.Bool)
		}
		want := []float32{0, 0, 0}
		if leaves {
			want[2] = 1
			batch[2].Left.Store(true)
			inst.Left(batch[2].Request)
		}
		if err := inst.RunEach(t.Context(), batch); err != nil {
			t.Fatal(err)
		}
		(<-senders[1]).Close() // that of a client which stays
		for _, i := range []int{0, 2} {
			if got := first(t, &batch[i]); got != want[i] {
				t.Errorf("leaves %v: request %d is cancelled: %v, want %v", leaves, i, got, want[i])
			}
		}
		release(batch)
	}
}

func TestAModelSeesAllThatARequestSays(t *testing.T) {
	inst := newFixture(t, identityConfig, `
r = requests[0]
seen = (json.loads(r.parameters()), r.correlation_id(), r.flags(), r.timeout(), r.priority(), r.requested_output_names(), r.request_id())
assert seen == ({"a": "x", "b": True, "c": -3, "d": 0.5, "e": 18446744073709551615}, 9, 3, 7, 2, {"OUTPUT"}, "id"), seen
assert requests[1].parameters() == "{}" and requests[1].request_id() == "id" and requests[1].correlation_id() == "größer"
return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", r.inputs()[0].as_numpy())], parameters={"k": k, "f": 1.5}) for k, r in enumerate(requests)]`).open(t)
	batch := calls(1, 2)
	r := batch[0].Request
	r.Parameters = []infer.Parameter{{Name: "a", Value: "x"}, {Name: "b", Value: true}, {Name: "c", Value: int64(-3)}, {Name: "d", Value: 0.5}, {Name: "e", Value: uint64(1<<64 - 1)}}
	r.Correlation, r.Flags, r.Priority, r.Outputs = 9, infer.SequenceStart|infer.SequenceEnd, 2, []string{"OUTPUT"}
	batch[1].Request.CorrelationName = "größer"
	if err := inst.RunEach(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	for i := range batch {
		if got := fmt.Sprint(batch[i].Parameters); got != fmt.Sprintf("[{f 1.5} {k %d}]", i) || first(t, &batch[i]) != float32(i+1) {
			t.Errorf("answer %d has parameters %s", i, got)
		}
	}
	release(batch)
}
