//go:build e2e

package e2e

import (
	"maps"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/arrivals"
)

// recorded runs a server that writes down what arrives, and returns the file and what
// is in it.
func recorded(t *testing.T, during func(s *server)) (string, []arrivals.Arrival) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "trace.txt")
	s := start(t, smallSeed(t), "--record-arrivals", file)
	during(s)
	s.signal()
	if !s.endsWithin(startPatience) || s.err != nil {
		t.Fatalf("the server did not end well: %v\n%s", s.err, s.logged())
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
func mixed(t *testing.T, s *server, lasting time.Duration) {
	t.Helper()
	const alone, crowds, crowd = 60, 10, 16
	chance := rand.New(rand.NewPCG(1, 1))
	c := s.client()
	var sent sync.WaitGroup
	defer sent.Wait()
	for began := time.Now(); time.Since(began) < lasting; {
		time.Sleep(time.Duration(chance.ExpFloat64() * float64(time.Second) / (alone + crowds)))
		together := 1
		if chance.IntN(alone+crowds) < crowds {
			together = crowd
		}
		for range together {
			req := smallRequest("small", 1+chance.IntN(4))
			sent.Go(func() {
				if _, err := c.ModelInfer(t.Context(), req); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// TestBenchReplaysARecording records a minute and replays it twice. The replays must be
// alike to 100 µs, and the simulator must say of the recording how long requests take.
// What it does not know is their way to the model and back, which is in the figure that
// it is held against.
func TestBenchReplaysARecording(t *testing.T) {
	trace, want := recorded(t, func(s *server) { mixed(t, s, choose(time.Minute, 2*time.Second)) })
	predicted := simulateSeed(t, trace).Latency.Mean
	var replays [][]arrivals.Arrival
	var mean time.Duration
	for range 2 {
		_, got := recorded(t, func(s *server) {
			text, r := runBench(t, s, "grpc", "-m", "small", "--request-trace", trace)
			l := r.Levels[0]
			if l.Client.Requests != len(want) || l.Client.Failed != 0 {
				t.Errorf("%d requests, want the %d that were recorded\n%s", l.Client.Requests, len(want), text)
			}
			each := l.Server.Each()
			t.Logf("the mean latency is %v, of which %v is outside of queue and model; the simulator says %v", l.Client.Mean,
				l.Client.Mean-each.Queue-each.Infer, predicted)
			mean += l.Client.Mean / 2
		})
		// What came before is there to make the connection.
		got = got[max(0, len(got)-len(want)):]
		if !maps.Equal(sizes(got), sizes(want)) {
			t.Fatalf("requests of these sizes: %v, want %v", sizes(got), sizes(want))
		}
		replays = append(replays, got)
	}
	// A machine that is busy with something else now and then leaves the other half.
	apart := differences(replays[0], replays[1])
	percent, limit := choose(99, 50), choose(100*time.Microsecond, 100*time.Millisecond)
	most := apart[len(apart)*percent/100]
	t.Logf("%d arrivals of two replays are apart by %v half of the time; p%d is %v, want %v at the most", len(apart), apart[len(apart)/2], percent, most, limit)
	if most > limit {
		t.Errorf("arrivals of two replays are apart by %v (p%d), want %v at the most", most, percent, limit)
	}
	ratio, low, high := mean.Seconds()/predicted.Seconds(), choose(0.95, 0.5), choose(1.05, math.Inf(1))
	t.Logf("the mean latency is %.3f times what the simulator says, want %.2f to %.2f", ratio, low, high)
	if ratio < low || ratio > high {
		t.Errorf("the mean latency is %.3f times what the simulator says, want %.2f to %.2f", ratio, low, high)
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
