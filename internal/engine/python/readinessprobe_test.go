package python

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// judging is a model whose readiness is set by the last request.
const judging = `
class TritonPythonModel:
    how = 1
    def execute(self, requests):
        self.how = int(requests[0].inputs()[0].as_numpy()[0, 0])
        if self.how == 4:
            print("busy", flush=True)
            time.sleep(1)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", r.inputs()[0].as_numpy())]) for r in requests]
    %s is_ready(self):
        if self.how == 2: raise ValueError("cannot say")
        return self.how != 0
`

func TestAModelSaysWhetherItIsReady(t *testing.T) {
	for _, def := range []string{"def", "async def"} {
		f := newFixture(t, identityConfig, fmt.Sprintf(judging, def))
		inst := f.open(t)
		tell := func(how float32) {
			t.Helper()
			batch := calls(how)
			if err := inst.RunEach(t.Context(), batch); err != nil {
				t.Error(err)
			}
			release(batch)
		}
		for _, tt := range []struct {
			how  float32
			want bool
		}{{1, true}, {0, false}, {2, false}, {3, true}} {
			tell(tt.how)
			if inst.Ready() != tt.want {
				t.Errorf("%s is_ready, told %v: ready %v", def, tt.how, !tt.want)
			}
		}
		// The log uses another socket than the response.
		for began := time.Now(); !strings.Contains(f.log.String(), "cannot say"); time.Sleep(time.Millisecond) {
			if time.Since(began) > 10*time.Second {
				t.Fatal("the log does not say why the model could not tell")
			}
		}
	}
}

func TestABusyModelSaysWhetherItIsReady(t *testing.T) {
	f := newFixture(t, identityConfig, fmt.Sprintf(judging, "def"))
	inst := f.open(t)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		batch := calls(4)
		if err := inst.RunEach(t.Context(), batch); err != nil {
			t.Error(err)
		}
		release(batch)
	}()
	soon(t, "the batch runs", func() bool { return strings.Contains(f.log.String(), "msg=busy") })
	if !inst.Ready() {
		t.Error("not ready")
	}
	select {
	case <-ended:
		t.Error("it says so only after the batch")
	default:
	}
	<-ended
}

// Ready does not report a dead worker; the next worker is probed itself.
func TestADeadWorkerIsNotAskedWhetherItIsReady(t *testing.T) {
	inst := newFixture(t, identityConfig, fmt.Sprintf(judging, "def")).open(t)
	killGroup(inst.worker.cmd.Process.Pid)
	<-inst.Died()
	if !inst.Ready() {
		t.Error("not ready, although nobody was asked")
	}
	if err := inst.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	batch := calls(0)
	if err := inst.RunEach(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	release(batch)
	if inst.Ready() {
		t.Error("the next worker was not asked")
	}
}

func TestAModelThatDoesNotSayWhetherItIsReadyIs(t *testing.T) {
	if !newFixture(t, identityConfig, identity).open(t).Ready() {
		t.Error("not ready")
	}
}
