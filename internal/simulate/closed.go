package simulate

import (
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/device"
)

// A ClosedLoop is one model with clients that each send a request, wait for the answer,
// think, and send the next. It is a shortcut for the most frequent kind of [Scenario].
type ClosedLoop struct {
	Config    batching.Config
	Curve     device.Curve
	Slowdown  []float64 // of the device; empty means none
	Instances int       // 0 means 1
	Clients   int       // 0 means 1
	Rows      int       // of each request; 0 means 1
	Think     []Span    // times from an answer to the client's next request, used in turn
	Seed      uint64    // of the random choice within Think
	Duration  time.Duration
}

// Run returns throughput, latencies and batch sizes. All requests that are sent before
// the end of the duration are answered and counted.
func (c ClosedLoop) Run() (Summary, error) {
	t := newTrial(Setting{Slowdown: c.Slowdown})
	t.add(ModelSetting{Config: c.Config, Curve: c.Curve, Instances: max(1, c.Instances)})
	t.send(Traffic{
		Clients: []int{max(1, c.Clients)}, Rows: []int{max(1, c.Rows)}, Think: c.Think, Seed: c.Seed, Duration: c.Duration,
	}, 0)
	run, err := t.finish()
	if err != nil {
		return Summary{}, err
	}
	return run.Total, nil
}
