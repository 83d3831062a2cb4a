//go:build e2e && linux

package proofs

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/client"
	"github.com/shoal-serving/shoal/test/servertest"
)

var rounds = flag.Int("rounds", 3, "how often Python workers are brought into each kind of trouble")

// troublesome is a model that does to itself what the first number of a request says.
const troublesome = `
import struct

class TritonPythonModel:
    def execute(self, requests):
        arrays = [pb_utils.get_input_tensor_by_name(r, "INPUT").as_numpy() for r in requests]
        what = max(int(a[0, 0]) for a in arrays)
        answers = [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", a)]) for a in arrays]
        if what == 101:
            while True: pass
        if what == 102: os._exit(3)
        if what == 103:
            garbage = []
            for _ in range(32):
                garbage.append(b"x" * (64 << 20))
                time.sleep(0.05)
            time.sleep(30)
        if what == 104: return answers + answers[:1]
        if what == 105: os.write(3, b"torn")
        if what == 106: os.write(3, struct.pack("<HHIQQQ", 18, 0, 0, 0, 1 << 40, 0) + b"more than it should be")
        if what > 104: time.sleep(30)
        return answers
`

// A fault is a way of bringing a worker into trouble: by a request with a number, or
// from outside.
type fault struct {
	name   string
	number float32
	signal syscall.Signal
	says   string // what those are told who were in its batch
	lives  bool   // the worker goes on
}

var faults = []fault{
	{name: "kill -9", signal: syscall.SIGKILL, says: "ended by signal 9"},
	{name: "SIGSTOP", signal: syscall.SIGSTOP, says: "stopped by a signal"},
	{name: "an endless loop", number: 101, says: "execute_timeout_seconds"},
	{name: "os._exit", number: 102, says: "exit code 3"},
	{name: "2 GB of garbage", number: 103, says: "memory_limit_mib"},
	{name: "an answer too many", number: 104, says: "do not match", lives: true},
	{name: "a torn frame", number: 105, says: "violated the protocol"},
	{name: "a frame of the wrong length", number: 106, says: "violated the protocol"},
}

// TestWorkersInTroubleUnderManyClients brings the one worker of a model into each
// kind of trouble, again and again, while 64 clients ask. Nobody but the requests of
// one batch is told of it, the worker is back soon, the server is ready when and only
// when there is a worker, and nothing piles up. A strict run that was ended goes on
// where it was, with another server.
func TestWorkersInTroubleUnderManyClients(t *testing.T) {
	back := servertest.Samples(t, "python-faults") // seconds, by fault
	// The others are to be found out before it ends, also where others use the machine.
	limit := servertest.StrictOr("1.2", "4")
	began := time.Now()
	s := servertest.Start(t, servertest.PythonRepository(t, `
		parameters { key: "execute_timeout_seconds" value { string_value: "`+limit+`" } }
		parameters { key: "memory_limit_mib" value { string_value: "200" } }`, troublesome))
	starts := time.Since(began).Seconds() // a server and a worker, without clients
	const clients = 64
	culprit := s.Client()
	crowd := newAskers(t, s, clients)
	defer crowd.leave()
	truth := watchReadiness(t, s, crowd)
	defer truth.end()

	var first footprint
	done := len(back.Of(faults[len(faults)-1].name))
	for round := done; round < *rounds; round++ {
		for _, f := range faults {
			servertest.Add(t, back, f.name, f.cause(t, s, culprit, crowd).Seconds())
			if t.Failed() {
				t.Fatal(s.Log()[max(0, len(s.Log())-4000):])
			}
		}
		if round == done {
			first = footprintOf(t, s)
		}
	}
	// What clients hold varies a little.
	last := footprintOf(t, s)
	t.Logf("after the first of %d rounds %+v, after the last %+v; %d answers", *rounds-done, first, last, crowd.good.Load())
	if done < *rounds && (last.descriptors > first.descriptors+8 || last.processes > first.processes || last.resident > first.resident*5/4+32<<20) {
		t.Errorf("after the first of %d rounds %+v, after the last %+v", *rounds-done, first, last)
	}
	for _, f := range faults {
		took := slices.Sorted(slices.Values(back.Of(f.name)))
		middle, longest := took[len(took)/2], took[len(took)-1]
		t.Logf("%-28s back after %.2f s in the median, %.2f s at most, of %d", f.name, middle, longest, len(took))
		// The promise is 2 s at most. Where others use the machine as well, a worker takes longer
		// to start, and the clients' share of the machine is less.
		most, half := servertest.StrictOr(2.0, 8+8*starts), servertest.StrictOr(2.0, 4+4*starts)
		if longest > most || middle > half {
			t.Errorf("%s: the worker was back after %.2f s, and %.2f s in the median, want at most %.1f and %.1f", f.name, longest, middle, most, half)
		}
	}
}

// cause brings the worker into trouble, and returns how long it took until another
// answered: from the signal on, or from when the request was answered that asked for
// trouble.
func (f fault) cause(t *testing.T, s *servertest.Server, culprit *client.Client, crowd *askers) time.Duration {
	t.Helper()
	good := crowd.good.Load()
	servertest.Eventually(t, "answers", func() bool { return crowd.good.Load() > good+200 })
	workers := servertest.Children(s.Cmd.Process.Pid)
	if len(workers) != 1 {
		t.Fatalf("%s: %d workers, want 1", f.name, len(workers))
	}
	crowd.expect(f.says)
	began := time.Now()
	if f.signal != 0 {
		if err := syscall.Kill(workers[0], f.signal); err != nil {
			t.Fatal(err)
		}
	} else {
		req := servertest.SmallRequest("m", 1)
		req.Inputs[0].Data = servertest.Floats(f.number, 0, 0, 0)
		if _, err := culprit.Infer(t.Context(), req); !crowd.expected(err) {
			t.Errorf("%s: the request that asked for it got %v", f.name, err)
		}
		began = time.Now()
	}
	var took time.Duration
	if !f.lives {
		servertest.Eventually(t, "the worker ended", func() bool { return !servertest.Alive(workers[0]) })
		servertest.Eventually(t, "another worker", func() bool {
			now := servertest.Children(s.Cmd.Process.Pid)
			return len(now) == 1 && now[0] != workers[0]
		})
		good = crowd.good.Load()
		servertest.Eventually(t, "answers of the other worker", func() bool { return crowd.good.Load() > good })
		took = time.Since(began)
	} else if now := servertest.Children(s.Cmd.Process.Pid); !slices.Equal(now, workers) {
		t.Errorf("%s: another worker", f.name)
	}
	// A worker that was idle when it was killed had no batch.
	if told := crowd.told(); told > 8 {
		t.Errorf("%s: %d requests were told of it, want at most the 8 of one batch", f.name, told)
	}
	return took
}

// askers ask for one row, over and over, and check that they get it.
type askers struct {
	cancel  context.CancelFunc
	asking  sync.WaitGroup
	good    atomic.Int64
	failed  atomic.Int64
	allowed atomic.Pointer[string] // what an error may say at the moment
}

func newAskers(t *testing.T, s *servertest.Server, count int) *askers {
	ctx, cancel := context.WithCancel(t.Context())
	a := &askers{cancel: cancel}
	a.expect("nothing")
	for n := range count {
		c := s.Client()
		a.asking.Go(func() {
			req := servertest.SmallRequest("m", 1)
			req.Inputs[0].Data = servertest.Floats(float32(n), 1, 2, 3)
			for ctx.Err() == nil {
				a.ask(ctx, t, c, req)
				time.Sleep(10 * time.Millisecond) // the machine is not only for them
			}
		})
	}
	return a
}

func (a *askers) ask(ctx context.Context, t *testing.T, c *client.Client, req *client.Request) {
	resp, err := c.Infer(ctx, req)
	switch {
	case ctx.Err() != nil:
	case err == nil && bytes.Equal(resp.Outputs[0].Data, req.Inputs[0].Data):
		a.good.Add(1)
	case a.expected(err):
		a.failed.Add(1)
	default:
		t.Errorf("a request got %v %v", resp, err)
	}
}

// expect says what errors may say from now on.
func (a *askers) expect(text string) {
	a.failed.Store(0)
	a.allowed.Store(&text)
}

func (a *askers) expected(err error) bool {
	return (errors.Is(err, client.Unavailable) || errors.Is(err, client.Internal)) && strings.Contains(err.Error(), *a.allowed.Load())
}

// told returns how many requests failed since expect.
func (a *askers) told() int64 { return a.failed.Load() }

func (a *askers) leave() {
	a.cancel()
	a.asking.Wait()
}

// A readiness is what the server said of itself, held against its processes.
type readiness struct {
	stop chan struct{}
	over sync.WaitGroup
}

// watchReadiness asks every few milliseconds whether the server is ready, and holds
// that against whether there is a living worker. The server may be told of a change
// a little later than the test sees it, and the other way round; later on a machine
// that others use as well.
func watchReadiness(t *testing.T, s *servertest.Server, crowd *askers) *readiness {
	slack := servertest.StrictOr(time.Second, 5*time.Second)
	r := &readiness{stop: make(chan struct{})}
	r.over.Go(func() {
		var wrong, down time.Time // since when what is said is not so, and since when it is not ready
		var good int64            // answers by then
		ticker := time.NewTicker(5 * time.Millisecond)
		defer ticker.Stop()
		for {
			select {
			case <-r.stop:
				return
			case <-ticker.C:
			}
			there := len(servertest.Children(s.Cmd.Process.Pid)) > 0
			code, _ := s.Get("/v2/health/ready")
			model, _ := s.Get("/v2/models/m/ready")
			ready := code == http.StatusOK
			if ready || down.IsZero() {
				down, good = time.Now(), crowd.good.Load()
			} else if answers := crowd.good.Load() - good; answers > 100 && time.Since(down) > slack {
				t.Errorf("for %v the server said that it is not ready, and gave %d answers", time.Since(down), answers)
				return
			}
			switch {
			case ready == (model == http.StatusOK) && (!ready || there):
				wrong = time.Time{}
			case wrong.IsZero():
				wrong = time.Now()
			case time.Since(wrong) > slack:
				t.Errorf("for %v the server said %d, of its model %d, and had a worker: %v", slack, code, model, there)
				return
			}
		}
	})
	return r
}

func (r *readiness) end() {
	close(r.stop)
	r.over.Wait()
}

// A footprint is what a server holds of the machine.
type footprint struct {
	resident               int64
	descriptors, processes int
}

func footprintOf(t *testing.T, s *servertest.Server) footprint {
	t.Helper()
	pid := s.Cmd.Process.Pid
	descriptors, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	return footprint{int64(s.Resident()) << 10, len(descriptors), len(servertest.Children(pid))}
}
