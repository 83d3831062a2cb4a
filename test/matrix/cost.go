package matrix

import (
	"fmt"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/simulate"
	"github.com/shoal-serving/shoal/test/measure"
)

// Cost returns gate A11, the only gate that depends on the speed of the machine. It
// measures the time of a whole simulated request, of which batching is a part. The
// difference to the greedy rule, which forms the same batches on this traffic, is the cost
// of the policy and its learning. Decisions are also timed individually.
func Cost(s Subject) Verdict {
	c := &Cell{Model: mid, Device: serial, Traffic: poisson(0.5), Seed: 1}
	subject := func() batching.Watcher { return s.New(1, c.calibrate(1)).(batching.Watcher) }
	ours := c.benchmark(func() batching.Policy { return subject() })
	plain := c.benchmark(greedy(1).policy)
	var clock clock
	c.benchmark(func() batching.Policy { return &timedPolicy{subject(), &clock} })
	decision := float64(clock.took) / float64(max(1, clock.decisions))
	v := Verdict{
		Gate:     "A11",
		Requires: "at most 2 µs per request and 300 ns per decision, no allocations",
		Measured: fmt.Sprintf("%d ns per simulated request, %d with the greedy rule; %d allocations; %.0f ns per decision, including reading the clock",
			ours.NsPerOp(), plain.NsPerOp(), ours.AllocsPerOp(), decision),
	}
	v.hold(float64(ours.NsPerOp()), measure.AtMost(2_000))
	v.hold(float64(ours.AllocsPerOp()), measure.AtMost(0))
	v.hold(decision, measure.AtMost(300))
	return v
}

// benchmark runs the cell repeatedly, each time with a new policy, because each run begins
// at time zero.
func (c *Cell) benchmark(policy func() batching.Policy) testing.BenchmarkResult {
	return testing.Benchmark(func(b *testing.B) {
		b.ReportAllocs()
		var s simulate.Scenario
		if _, err := s.Measure(c.setting(policy(), MaxRows, 1, run{requests: b.N, seed: 1}), func(simulate.Answer) {}); err != nil {
			b.Fatal(err)
		}
	})
}

// A clock adds up the time of decisions.
type clock struct {
	took      time.Duration
	decisions int
}

// A timedPolicy measures the time of its decisions.
type timedPolicy struct {
	batching.Watcher
	clock *clock
}

// Decide implements [batching.Policy].
func (c *timedPolicy) Decide(now batching.Time, line batching.Line) batching.Decision {
	began := time.Now()
	d := c.Watcher.Decide(now, line)
	c.clock.took += time.Since(began)
	c.clock.decisions++
	return d
}
