package matrix

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/simulate"
)

// Figures are the results of one run. Latencies are in milliseconds, without the first
// tenth of the run.
type Figures struct {
	Throughput float64 `json:"throughput"` // answers per second
	Mean       float64 `json:"mean"`
	P99        float64 `json:"p99"`
	P999       float64 `json:"p999"`
	Batch      float64 `json:"batch"` // mean size
}

// A Metric is a figure by which settings are compared.
type Metric string

// The metrics.
const (
	Throughput Metric = "throughput" // for closed loops
	Mean       Metric = "mean"       // this and the following for all others
	P99        Metric = "p99"
	P999       Metric = "p99.9"
)

// Metrics returns the metrics of the cell.
func (c *Cell) Metrics() []Metric {
	if c.Traffic.Closed() {
		return []Metric{Throughput}
	}
	return []Metric{Mean, P99, P999}
}

func (m Metric) of(f Figures) float64 {
	switch m {
	case Throughput:
		return f.Throughput
	case Mean:
		return f.Mean
	case P99:
		return f.P99
	case P999:
		return f.P999
	}
	panic("unknown metric " + string(m))
}

// compare orders values of the metric, the best first.
func (m Metric) compare(a, b float64) int {
	if m == Throughput {
		a, b = b, a
	}
	return cmp.Compare(a, b)
}

// measure runs a cell with a policy, and returns the figures.
func (c *Cell) measure(p batching.Policy, maxRows, instances int, r run) (Figures, error) {
	answers := make([]simulate.Answer, 0, r.requests)
	s := c.scenario(r)
	sum, err := s.Measure(c.setting(p, maxRows, instances, r), func(a simulate.Answer) { answers = append(answers, a) })
	if err != nil {
		return Figures{}, fmt.Errorf("%s: %w", c.Name(), err)
	}
	f := summarize(answers, c.Traffic.clients())
	f.Batch = sum.MeanBatch
	return f, nil
}

// summarize computes the figures of answers, which are in order of time. At the end of a
// closed loop, clients stop one by one, so the throughput excludes the last round.
func summarize(answers []simulate.Answer, clients int) Figures {
	first, last := len(answers)/10, max(len(answers)/2, len(answers)-2*clients)-1
	span := answers[last].At - answers[first].At
	counted := answers[first:]
	after := 0
	for _, a := range counted[:last-first+1] {
		if a.At > answers[first].At {
			after++
		}
	}
	took := make([]time.Duration, len(counted))
	sum := 0.0
	for i, a := range counted {
		took[i] = a.At - a.Arrived
		sum += float64(took[i])
	}
	slices.Sort(took)
	rank := func(p float64) float64 { return float64(took[int(math.Ceil(p*float64(len(took))))-1]) / float64(ms) }
	return Figures{
		Throughput: float64(after) / span.Seconds(),
		Mean:       sum / float64(len(counted)) / float64(ms),
		P99:        rank(0.99), P999: rank(0.999),
	}
}

func (c *Cell) measureStatic(s Static, r run) (Figures, error) {
	return c.measure(s.policy(), s.MaxRows, s.Instances, r)
}
