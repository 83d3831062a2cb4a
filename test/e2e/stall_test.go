//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/bench"
)

// runBench runs `shoal bench` and returns its text and its figures.
func runBench(t *testing.T, s *server, protocol string, args ...string) (string, bench.Report) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "figures.json")
	cmd := benchCommand(s, protocol, append(args, "--json", file)...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v\n%s", cmd.Args, err, out)
	}
	figures, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var r bench.Report
	if err := json.Unmarshal(figures, &r); err != nil || len(r.Levels) == 0 {
		t.Fatalf("%v: %s", err, figures)
	}
	return string(out), r
}

// percentile returns the latency of a level in seconds.
func percentile(t *testing.T, l bench.Level, percent float64) float64 {
	t.Helper()
	for _, p := range l.Client.Percentiles {
		if p.Percent == percent {
			return p.Latency.Seconds()
		}
	}
	t.Fatalf("found no p%v in %+v", percent, l.Client.Percentiles)
	return 0
}

// TestBenchSeesAStall stops the server for a second while it is measured. Who comes
// at a rate waits for its end, and then for those who came meanwhile: at a share ρ of
// the capacity, the request that comes t after the begin of a stall S is answered
// S-(1-ρ)t later, until that is nothing. So a share of S/(1-ρ) of the time is late, by
// up to S. Clients that wait for answers have one slow request each, which no
// percentile shows.
func TestBenchSeesAStall(t *testing.T) {
	const rows, clients = 4, 4
	// A busy machine has less than the device's capacity.
	share := choose(0.8, 0.5)
	stall, window := choose(time.Second, 400*time.Millisecond), choose(5*time.Second, time.Second)
	rate := share * 8 / seedCurve.Takes(8).Seconds() / rows
	s := start(t, smallSeed(t))
	// measure stops the server when a fifth of the time is over.
	measure := func(protocol string, args ...string) (string, bench.Level) {
		stopped := make(chan struct{})
		stop := time.AfterFunc(3*window/5, func() {
			defer close(stopped)
			if err := s.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
				t.Error(err)
			}
			time.Sleep(stall)
			if err := s.cmd.Process.Signal(syscall.SIGCONT); err != nil {
				t.Error(err)
			}
		})
		defer stop.Stop()
		// No window is like another, and that is no reason to go on.
		text, r := runBench(t, s, protocol, append(args, "-m", "small", "-b", strconv.Itoa(rows), "-p", strconv.FormatInt(window.Milliseconds(), 10), "-s", "1000000")...)
		<-stopped
		return text, r.Levels[0]
	}
	for protocol, high := range choose(map[string]float64{
		"http": 1.1,
		// A connection takes 256 requests at once. Those beyond wait in the client, and
		// not in line: the first may be the last.
		"grpc": 2,
	}, map[string]float64{"http": 2.5}) {
		hold(t, fmt.Sprintf("%s at %.0f requests a second, the percentile furthest from what it should be", protocol, rate), choose(0.9, 0.7), high, func() float64 {
			text, l := measure(protocol, "--request-rate-range", strconv.FormatFloat(rate, 'f', 1, 64))
			if l.Client.Failed > 0 {
				t.Errorf("requests failed: %s", text)
			}
			within(t, "the report", text, "A closed loop would have missed this: its p99 would have been ")
			furthest := 1.0
			for _, percent := range choose([]float64{90, 95, 99}, []float64{99}) {
				got, want := percentile(t, l, percent), stall.Seconds()-(1-percent/100)*(3*window).Seconds()*(1-share)
				t.Logf("p%v is %.3f s, and should be %.3f s", percent, got, want)
				if math.Abs(math.Log(got/want)) > math.Abs(math.Log(furthest)) {
					furthest = got / want
				}
			}
			return furthest
		})
		hold(t, fmt.Sprintf("%s with %d clients, p99 as a share of the stall", protocol, clients), 0, 0.5, func() float64 {
			_, l := measure(protocol, "--concurrency-range", strconv.Itoa(clients))
			return percentile(t, l, 99) / stall.Seconds()
		})
	}
}

// smallSeed returns a repository with the seed device for requests of some bytes, as the
// model small: what comes at once is in the queue at once, in the order in which it was
// sent, and nothing is refused.
func smallSeed(t *testing.T) string {
	return repositoryOf(t, map[string]string{"small": config(seedCurve.Fixed, "1", `
		dynamic_batching { max_queue_delay_microseconds: 0 default_queue_policy { max_queue_size: 10000 } }
		parameters { key: "per_row_us" value { string_value: "59.3" } }
	`)})
}
