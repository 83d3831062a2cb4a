package python

import (
	"slices"
	"strings"
	"testing"

	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/infer"
)

const iterativeConfig = `
	max_batch_size: 8
	input { name: "INPUT" data_type: TYPE_FP32 dims: 4 }
	output { name: "OUTPUT" data_type: TYPE_FP32 dims: 4 }
	sequence_batching { iterative_sequence: true }
`

// rescheduling returns a model that counts the runs of each request, and has it run as often
// as its input says. It runs code before that.
func rescheduling(body string) string {
	return `
FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
AGAIN = pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE
def response(x):
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", np.full((1, 4), x, np.float32))])
class TritonPythonModel:
    def initialize(self, args):
        self.runs = {}
    def execute(self, requests):
        responses = []
        for r in requests:
            key = r.correlation_id()
            if r.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START:
                self.runs[key] = 0
            self.runs[key] += 1
            run, last = self.runs[key], self.runs[key] >= r.inputs()[0].as_numpy()[0, 0]
            if not last:
                r.set_release_flags(AGAIN)
` + strings.ReplaceAll("\n"+strings.TrimSpace(body), "\n", "\n            ") + "\n"
}

// numberedCalls returns calls that are the starts of sequences, from 1.
func numberedCalls(values ...float32) []engine.Call {
	all := calls(values...)
	for i := range all {
		all[i].Request.Correlation, all[i].Request.Flags = uint64(i+1), infer.SequenceStart
	}
	return all
}

// runAgain runs the calls that the model has asked for, and returns how many there were.
func runAgain(t *testing.T, inst *instance, batch []engine.Call) (next []engine.Call, err error) {
	t.Helper()
	for _, c := range batch {
		if c.Again {
			c.Request.Flags = 0
			c.Again = false
			next = append(next, c)
		}
	}
	if len(next) == 0 {
		return nil, nil
	}
	release(next) // what they were given for the last run
	return next, inst.RunEach(t.Context(), next)
}

func TestARequestIsRescheduledUntilTheModelAnswers(t *testing.T) {
	inst := newFixture(t, iterativeConfig, rescheduling("responses.append(response(run) if last else None)")+"        return responses\n").open(t)
	batch := numberedCalls(3, 1, 2)
	err := inst.RunEach(t.Context(), batch)
	var answers []float32
	for len(batch) > 0 && err == nil {
		for i := range batch {
			if !batch[i].Again {
				answers = append(answers, first(t, &batch[i]))
				release(batch[i : i+1])
			}
		}
		batch, err = runAgain(t, inst, batch)
	}
	if want := []float32{1, 2, 3}; err != nil || !slices.Equal(answers, want) {
		t.Errorf("answers %v, %v; want %v", answers, err, want)
	}
}

func TestARescheduledRequestKeepsItsResponseSender(t *testing.T) {
	inst := newFixture(t, iterativeConfig+` model_transaction_policy { decoupled: true }`, rescheduling(`
if run == 13: raise KeyError("lost")
r.get_response_sender().send(response(run), flags=FINAL if last else 0)`)).open(t)
	batch := numberedCalls(3, 14)
	senders := opened(batch)
	err := inst.RunEach(t.Context(), batch)
	short, long := make(chan []string, 1), make(chan []string, 1)
	go func() { short <- story(t, <-senders[0]) }()
	go func() { long <- story(t, <-senders[1]) }()
	runs := 1
	for len(batch) > 0 && err == nil {
		for i := range batch {
			if !batch[i].Streaming {
				t.Errorf("run %d: the call is not said to stream", runs)
			}
			if !batch[i].Again {
				release(batch[i : i+1])
			}
		}
		batch, err = runAgain(t, inst, batch)
		runs++
	}
	if runs != 13 || err == nil || !strings.Contains(err.Error(), "KeyError: 'lost'") {
		t.Errorf("%d runs, then %v; want an exception in run 13", runs, err)
	}
	if got, want := <-short, []string{"1 []", "2 []", "3 []"}; !slices.Equal(got, want) {
		t.Errorf("it sent %q, want %q", got, want)
	}
	got := <-long
	if len(got) != 13 || got[11] != "12 []" || !strings.Contains(got[12], "message: KeyError: 'lost'") {
		t.Errorf("it sent %q, want twelve responses and the exception", got)
	}
}

func TestASenderIsForgottenWhoseRequestDoesNotRunAgain(t *testing.T) {
	inst := newFixture(t, iterativeConfig+` model_transaction_policy { decoupled: true }`, `
import gc, shoal_connections
`+rescheduling(`
kept = sum(isinstance(o, shoal_connections.ResponseConnection) and not o.closed for o in gc.get_objects())
r.get_response_sender().send(response(kept), flags=FINAL if last else 0)`)).open(t)
	for n := range 20 {
		batch := numberedCalls(2)
		batch[0].Request.Correlation = uint64(n + 1)
		senders := opened(batch)
		if err := inst.RunEach(t.Context(), batch); err != nil || !batch[0].Again {
			t.Fatalf("%v, again %t", err, batch[0].Again)
		}
		(<-senders[0]).Close() // the client leaves
		release(batch)
	}
	batch := numberedCalls(1)
	batch[0].Request.Correlation = 99
	senders := opened(batch)
	if err := inst.RunEach(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	release(batch)
	if got := story(t, <-senders[0]); got[0] != "0 []" {
		t.Errorf("%s senders are kept, want none", got[0])
	}
}

func TestOnlyIterativeModelsMayReschedule(t *testing.T) {
	for config, body := range map[string]string{
		identityConfig: `
requests[0].set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)`,
		iterativeConfig: `
requests[0].set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
return [pb_utils.InferenceResponse([])]`,
	} {
		inst := newFixture(t, config, body).open(t)
		err := inst.RunEach(t.Context(), numberedCalls(1))
		if err == nil || !strings.Contains(err.Error(), "rescheduled") {
			t.Errorf("%s: %v, want an error that says what is wrong", body, err)
		}
	}
}
