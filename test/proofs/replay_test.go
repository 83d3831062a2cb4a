//go:build e2e

package proofs

import (
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/arrivals"
	"github.com/shoal-serving/shoal/internal/device"
	"github.com/shoal-serving/shoal/test/servertest"
)

// recorded runs a server that writes down what arrives, and returns the file and what
// is in it.
func recorded(t *testing.T, during func(s *servertest.Server)) (string, []arrivals.Arrival) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "trace.txt")
	s := servertest.Start(t, servertest.Small(t, replayed()), "--record-arrivals", file)
	during(s)
	s.Terminate()
	if !s.EndsWithin(servertest.StartPatience) || s.Err != nil {
		t.Fatalf("the server did not end well: %v\n%s", s.Err, s.Log())
	}
	all, err := arrivals.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return file, all
}

// slower is how much slower than the seed device the device of these tests is, and how much less
// it has to do: what a busy machine adds to every request is then little beside what the device
// takes.
func slower() int { return servertest.StrictOr(1, 5) }

// replayed is the device of these tests.
func replayed() device.Curve {
	seed := servertest.SeedCurve
	return device.Curve{Fixed: time.Duration(slower()) * seed.Fixed, PerRow: time.Duration(slower()) * seed.PerRow}
}

// mixed sends requests of one to four rows to the device: some alone, as chance has it, and ten
// times a second, or as much less as the device is slower, a crowd of 16 at once, which keeps the
// seed device busy for some 12 ms.
func mixed(t *testing.T, s *servertest.Server, lasting time.Duration) {
	t.Helper()
	alone, crowds, crowd := 60/slower(), 10/slower(), 16
	chance := rand.New(rand.NewPCG(1, 1))
	c := s.Client()
	var sent sync.WaitGroup
	defer sent.Wait()
	for began := time.Now(); time.Since(began) < lasting; {
		time.Sleep(time.Duration(chance.ExpFloat64() * float64(time.Second) / float64(alone+crowds)))
		together := 1
		if chance.IntN(alone+crowds) < crowds {
			together = crowd
		}
		for range together {
			req := servertest.SmallRequest("small", 1+chance.IntN(4))
			sent.Go(func() {
				if _, err := c.Infer(t.Context(), req); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// TestBenchReplaysARecording records a minute, and replays it several times. Each replay must
// be like the one before to 100 µs, and the simulator must say of the recording how long requests
// take. What it does not know is the transport overhead, which is in the figure that it is held
// against.
func TestBenchReplaysARecording(t *testing.T) {
	trace, want := recorded(t, func(s *servertest.Server) { mixed(t, s, servertest.StrictOr(time.Minute, 4*time.Second)) })
	predicted := servertest.Simulate(t, replayed(), trace).Latency.Mean

	var last []arrivals.Arrival
	// replay returns the mean latency of a replay, times the simulator's, and how far its
	// arrivals are from those of the one before, in µs.
	replay := func() (latency, apart float64) {
		_, got := recorded(t, func(s *servertest.Server) {
			text, r := servertest.RunBench(t, s, "grpc", "-m", "small", "--request-trace", trace)
			l := r.Levels[0]
			if l.Client.Requests != len(want) || l.Client.Failed != 0 {
				t.Errorf("%d requests, want the %d that were recorded\n%s", l.Client.Requests, len(want), text)
			}
			each := l.Server.Each()
			t.Logf("the mean latency is %v, of which %v is outside of queue and model; the simulator says %v", l.Client.Mean,
				l.Client.Mean-each.Queue-each.Infer, predicted)
			latency = l.Client.Mean.Seconds() / predicted.Seconds()
		})
		// What came before is there to make the connection.
		got = got[max(0, len(got)-len(want)):]
		if !maps.Equal(sizes(got), sizes(want)) {
			t.Fatalf("requests of these sizes: %v, want %v", sizes(got), sizes(want))
		}
		if last != nil {
			all := differences(last, got)
			// A machine that is busy with something else now and then leaves the other half.
			apart = all[len(all)*servertest.StrictOr(99, 50)/100].Seconds() * 1e6
		}
		last = got
		return latency, apart
	}
	servertest.Hold(t, "mean latency, times the simulator's", servertest.StrictOr(0.95, 0.5), servertest.StrictOr(1.05, 3), func() float64 {
		latency, _ := replay()
		return latency
	})
	servertest.Hold(t, "µs between the arrivals of two replays", 0, servertest.StrictOr(100.0, 30_000), func() float64 {
		if last == nil { // the latencies are from an earlier run
			replay()
		}
		_, apart := replay()
		return apart
	})
}

// sizes counts requests by their rows.
func sizes(all []arrivals.Arrival) map[int]int {
	counts := map[int]int{}
	for _, a := range all {
		counts[a.Rows]++
	}
	return counts
}

// differences returns how far apart the arrivals of two recordings are, ascending.
// When a recording began does not matter: what half of the arrivals are early and
// half are late by is the same time.
func differences(a, b []arrivals.Arrival) []time.Duration {
	var apart []time.Duration
	for i := range a {
		apart = append(apart, b[i].At-a[i].At)
	}
	begin := slices.Sorted(slices.Values(apart))[len(apart)/2]
	for i := range apart {
		apart[i] = (apart[i] - begin).Abs()
	}
	slices.Sort(apart)
	return apart
}
