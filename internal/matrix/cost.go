package matrix

import (
	"fmt"
	"testing"

	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/simulate"
)

// Cost returns gate A11. It is a matter of the machine's speed, and the only gate
// that is. The time is that of a whole simulated request, which is more than what
// batching takes of it; what the policy adds is the difference to the greedy rule,
// on traffic of which both make the same batches.
func Cost(s Subject) Verdict {
	c := &Cell{Model: mid, Device: serial, Traffic: poisson(0.5), Seed: 1}
	counted := counting{Watcher: s.New(1, c.calibrate(1)).(batching.Watcher)}
	ours := c.benchmark(&counted)
	plain := c.benchmark(greedy(1).policy())
	decision := float64(ours.NsPerOp()-plain.NsPerOp()) * float64(counted.arrivals) / float64(max(1, counted.decisions))
	return Verdict{
		Gate:     "A11",
		Requires: "at most 2 µs a request, no allocation; a decision at most 300 ns",
		Measured: fmt.Sprintf("%d ns a simulated request, %d by the greedy rule; %d allocations; %.0f ns a decision, with all that it learns from",
			ours.NsPerOp(), plain.NsPerOp(), ours.AllocsPerOp(), decision),
		Kept: ours.NsPerOp() <= 2_000 && ours.AllocsPerOp() == 0 && decision <= 300,
	}
}

func (c *Cell) benchmark(p batching.Policy) testing.BenchmarkResult {
	return testing.Benchmark(func(b *testing.B) {
		b.ReportAllocs()
		var s simulate.Scenario
		if _, err := s.Measure(c.setting(p, MaxRows, 1, run{requests: b.N, seed: 1}), func(simulate.Answer) {}); err != nil {
			b.Fatal(err)
		}
	})
}

// counting counts what a policy is asked and told.
type counting struct {
	batching.Watcher
	decisions, arrivals int
}

// Decide implements [batching.Policy].
func (c *counting) Decide(now batching.Time, line batching.Line) batching.Decision {
	c.decisions++
	return c.Watcher.Decide(now, line)
}

// Arrived implements [batching.Watcher].
func (c *counting) Arrived(now batching.Time, it *batching.Item) {
	c.arrivals++
	c.Watcher.Arrived(now, it)
}
