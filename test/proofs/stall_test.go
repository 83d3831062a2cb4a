//go:build e2e

package proofs

import (
	"fmt"
	"math"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/bench"
	"github.com/shoal-serving/shoal/test/servertest"
)

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
	share := servertest.StrictOr(0.8, 0.5)
	stall, window := servertest.StrictOr(time.Second, 400*time.Millisecond), servertest.StrictOr(5*time.Second, time.Second)
	rate := share * 8 / servertest.SeedCurve.Takes(8).Seconds() / rows
	s := servertest.Start(t, servertest.Small(t, servertest.SeedCurve))
	// measure stops the server when a fifth of the time is over.
	measure := func(protocol string, args ...string) (string, bench.Level) {
		stopped := make(chan struct{})
		stop := time.AfterFunc(3*window/5, func() {
			defer close(stopped)
			if err := s.Cmd.Process.Signal(syscall.SIGSTOP); err != nil {
				t.Error(err)
			}
			time.Sleep(stall)
			if err := s.Cmd.Process.Signal(syscall.SIGCONT); err != nil {
				t.Error(err)
			}
		})
		defer stop.Stop()
		// No window is like another, and that is no reason to go on.
		text, r := servertest.RunBench(t, s, protocol, append(args, "-m", "small", "-b", strconv.Itoa(rows), "-p", strconv.FormatInt(window.Milliseconds(), 10), "-s", "1000000")...)
		<-stopped
		return text, r.Levels[0]
	}
	for protocol, high := range servertest.StrictOr(map[string]float64{
		"http": 1.1,
		// A connection takes 256 requests at once. Those beyond wait in the client, and
		// not in line: the first may be the last.
		"grpc": 2,
	}, map[string]float64{"http": 1.6}) {
		servertest.Hold(t, fmt.Sprintf("%s at %.0f requests a second, the percentile furthest from what it should be", protocol, rate), servertest.StrictOr(0.9, 0.7), high, func() float64 {
			text, l := measure(protocol, "--request-rate-range", strconv.FormatFloat(rate, 'f', 1, 64))
			if l.Client.Failed > 0 {
				t.Errorf("requests failed: %s", text)
			}
			servertest.Contains(t, "the report", text, "A closed loop would have missed this: its p99 would have been ")
			furthest := 1.0
			for _, percent := range servertest.StrictOr([]float64{90, 95, 99}, []float64{99}) {
				got, want := percentile(t, l, percent), stall.Seconds()-(1-percent/100)*(3*window).Seconds()*(1-share)
				t.Logf("p%v is %.3f s, and should be %.3f s", percent, got, want)
				if math.Abs(math.Log(got/want)) > math.Abs(math.Log(furthest)) {
					furthest = got / want
				}
			}
			return furthest
		})
		servertest.Hold(t, fmt.Sprintf("%s with %d clients, p99 as a share of the stall", protocol, clients), 0, 0.5, func() float64 {
			_, l := measure(protocol, "--concurrency-range", strconv.Itoa(clients))
			return percentile(t, l, 99) / stall.Seconds()
		})
	}
}
