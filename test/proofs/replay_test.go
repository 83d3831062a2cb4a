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
	"github.com/shoal-serving/shoal/test/measure"
	"github.com/shoal-serving/shoal/test/servertest"
)

// recorded runs a server that writes down what arrives, and returns the file and what
// is in it.
func recorded(t *testing.T, during func(s *servertest.Server)) (string, []arrivals.Arrival) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "trace.txt")
	s := servertest.Start(t, servertest.SmallSeed(t), "--record-arrivals", file)
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

// mixed sends requests of one to four rows to the seed device: some alone, as chance
// has it, and ten times a second a crowd of 16 at once, which keeps the device busy
// for some 12 ms.
func mixed(t *testing.T, s *servertest.Server, lasting time.Duration) {
	t.Helper()
	const alone, crowds, crowd = 60, 10, 16
	chance := rand.New(rand.NewPCG(1, 1))
	c := s.Client()
	var sent sync.WaitGroup
	defer sent.Wait()
	for began := time.Now(); time.Since(began) < lasting; {
		time.Sleep(time.Duration(chance.ExpFloat64() * float64(time.Second) / (alone + crowds)))
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
	trace, want := recorded(t, func(s *servertest.Server) { mixed(t, s, servertest.StrictOr(time.Minute, 2*time.Second)) })
	predicted := servertest.SimulateSeed(t, trace).Latency.Mean
	var before []arrivals.Arrival
	var apart, ratios []float64
	// Other work on the machine makes a replay slower now and then, and a defect each one.
	good := func() bool {
		return len(apart) > 0 && slices.Min(apart) <= 10_000 && slices.Min(ratios) >= 0.5 && slices.Min(ratios) <= 3
	}
	for n := 0; n < servertest.StrictOr(1+servertest.Rounds(), 6) && (*servertest.Strict || !good()); n++ {
		_, got := recorded(t, func(s *servertest.Server) {
			text, r := servertest.RunBench(t, s, "grpc", "-m", "small", "--request-trace", trace)
			l := r.Levels[0]
			if l.Client.Requests != len(want) || l.Client.Failed != 0 {
				t.Errorf("%d requests, want the %d that were recorded\n%s", l.Client.Requests, len(want), text)
			}
			each := l.Server.Each()
			t.Logf("the mean latency is %v, of which %v is outside of queue and model; the simulator says %v", l.Client.Mean,
				l.Client.Mean-each.Queue-each.Infer, predicted)
			ratios = append(ratios, l.Client.Mean.Seconds()/predicted.Seconds())
		})
		// What came before is there to make the connection.
		got = got[max(0, len(got)-len(want)):]
		if !maps.Equal(sizes(got), sizes(want)) {
			t.Fatalf("requests of these sizes: %v, want %v", sizes(got), sizes(want))
		}
		if n > 0 {
			// A machine that is busy with something else now and then leaves the other half.
			all, percent := differences(before, got), servertest.StrictOr(99, 50)
			t.Logf("arrivals of two replays are apart by %v half of the time, and by %v at p%d", all[len(all)/2], all[len(all)*percent/100], percent)
			apart = append(apart, all[len(all)*percent/100].Seconds()*1e6)
		}
		before = got
	}
	if *servertest.Strict {
		servertest.Judge(t, "bench-replay: p99 between the arrivals of two replays, µs", measure.AtMost(100), apart)
		servertest.Judge(t, "bench-replay: mean latency, times the simulator's", measure.Between(0.95, 1.05), ratios)
		return
	}
	if !good() {
		t.Errorf("half of the arrivals of two replays are apart by %.0f µs at best, want 10,000 at the most; "+
			"the mean latency is %.3f times what the simulator says, want 0.5 to 3", slices.Min(apart), slices.Min(ratios))
	}
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
