package matrix

import (
	"fmt"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/simulate"
)

// Cost returns gate A11. It is a matter of the machine's speed, and the only gate
// that is. The time is that of a whole simulated request, which is more than what
// batching takes of it; what the policy adds to it, with all that it learns, is the
// difference to the greedy rule, on traffic of which both make the same batches. A
// decision is timed by itself.
func Cost(s Subject) Verdict {
	c := &Cell{Model: mid, Device: serial, Traffic: poisson(0.5), Seed: 1}
	subject := func() batching.Watcher { return s.New(1, c.calibrate(1)).(batching.Watcher) }
	ours := c.benchmark(func() batching.Policy { return subject() })
	plain := c.benchmark(greedy(1).policy)
	var clock clock
	c.benchmark(func() batching.Policy { return &clocked{subject(), &clock} })
	decision := float64(clock.took) / float64(max(1, clock.decisions))
	return Verdict{
		Gate:     "A11",
		Requires: "at most 2 µs a request, no allocation; a decision at most 300 ns",
		Measured: fmt.Sprintf("%d ns a simulated request, %d by the greedy rule; %d allocations; %.0f ns a decision, reading the clock included",
			ours.NsPerOp(), plain.NsPerOp(), ours.AllocsPerOp(), decision),
		Kept: ours.NsPerOp() <= 2_000 && ours.AllocsPerOp() == 0 && decision <= 300,
	}
}

// benchmark runs the cell as often as it takes, each time with a policy of its own:
// time begins anew.
func (c *Cell) benchmark(policy func() batching.Policy) testing.BenchmarkResult {
	return testing.Benchmark(func(b *testing.B) {
		b.ReportAllocs()
		var s simulate.Scenario
		if _, err := s.Measure(c.setting(policy(), MaxRows, 1, run{requests: b.N, seed: 1}), func(simulate.Answer) {}); err != nil {
			b.Fatal(err)
		}
	})
}

// A clock says for how long policies have thought about how many decisions.
type clock struct {
	took      time.Duration
	decisions int
}

// A clocked policy is timed while it decides.
type clocked struct {
	batching.Watcher
	clock *clock
}

// Decide implements [batching.Policy].
func (c *clocked) Decide(now batching.Time, line batching.Line) batching.Decision {
	began := time.Now()
	d := c.Watcher.Decide(now, line)
	c.clock.took += time.Since(began)
	c.clock.decisions++
	return d
}
