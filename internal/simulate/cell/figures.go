package cell

import (
	"math"
	"time"

	"github.com/shoal-serving/shoal/internal/placement"
)

// A Result is what came of a run. Shares are of the requests that were sent after the
// warm-up.
type Result struct {
	Balancer Balancer `json:"balancer"`
	Nodes    int      `json:"nodes"`

	Sent        int           `json:"sent"`
	InObjective float64       `json:"in_objective"` // share that was answered in the objective
	Refused     float64       `json:"refused"`      // share that nodes refused for good
	Lost        int           `json:"lost"`         // failed because of connections, or without a copy
	Retried     int           `json:"retried"`
	P50         time.Duration `json:"p50_ns"`
	P99         time.Duration `json:"p99_ns"`

	DeviceTime float64 `json:"device_time"` // busy share of the devices, in the mean
	Fullest    float64 `json:"fullest"`     // of the busiest node
	MeanBatch  float64 `json:"mean_batch"`
	Batches    int     `json:"batches"`

	Copies    int `json:"copies"` // in the last plan
	Active    int `json:"active"`
	Loads     int `json:"loads"`
	Unloads   int `json:"unloads"`
	ColdLoads int `json:"cold_loads"`

	Seconds []Second `json:"seconds"`
	Rounds  []Round  `json:"rounds,omitempty"`
	Hash    string   `json:"hash"` // of all batches: equal runs have equal hashes
}

// A Second is one second of a run, by the time at which requests were sent. It has no requests that
// may not be answered before the run ends.
type Second struct {
	Sent        int `json:"sent"`
	InObjective int `json:"in_objective"`
	Refused     int `json:"refused"`
	Lost        int `json:"lost"`
}

// A Round is one round of placement.
type Round struct {
	At     Time   `json:"at_ns"`
	Loads  int    `json:"loads"`
	Unload int    `json:"unloads"`
	Active int    `json:"active"`
	Copies int    `json:"copies"`
	Frozen string `json:"frozen,omitempty"`
}

// settling is the least time at the end of a run in which requests are sent but not counted, because
// they may not be answered before it ends. It is longer if an objective is.
const settling = 500 * time.Millisecond

// figures collects a result.
type figures struct {
	from, to  Time // requests sent from and to are counted
	end       Time
	result    Result
	latencies histogram
	busy      []time.Duration // by node
	rows      int
	hash      uint64
}

func newFigures(cfg *Config) figures {
	settles := settling
	for i := range cfg.Models {
		settles = max(settles, cfg.Models[i].Objective)
	}
	return figures{
		from: cfg.WarmUp, to: cfg.Duration - min(settles, (cfg.Duration-cfg.WarmUp)/2), end: cfg.Duration,
		busy: make([]time.Duration, len(cfg.Nodes)), hash: 14695981039346656037,
		result: Result{Balancer: cfg.Balancer, Nodes: len(cfg.Nodes), Seconds: make([]Second, int(math.Ceil(cfg.Duration.Seconds())))},
	}
}

func (f *figures) counts(sent Time) bool { return sent >= f.from && sent < f.to }

// second returns the second of a request that was sent at a time.
func (f *figures) second(sent Time) *Second {
	if sent >= f.to {
		return &Second{} // it is not counted
	}
	return &f.result.Seconds[int(sent/time.Second)]
}

func (f *figures) sent(now Time) {
	f.second(now).Sent++
	if f.counts(now) {
		f.result.Sent++
	}
}

func (f *figures) retried(now Time) {
	if f.counts(now) {
		f.result.Retried++
	}
}

func (f *figures) cold(Time) { f.result.ColdLoads++ }

func (f *figures) answered(r *request, now Time, inObjective bool) {
	if inObjective {
		f.second(r.sent).InObjective++
	}
	if !f.counts(r.sent) {
		return
	}
	f.latencies.add(now - r.sent)
	if inObjective {
		f.result.InObjective++
	}
}

func (f *figures) failed(r *request, refused bool) {
	s := f.second(r.sent)
	if refused {
		s.Refused++
	} else {
		s.Lost++
	}
	switch {
	case !f.counts(r.sent):
	case refused:
		f.result.Refused++
	default:
		f.result.Lost++
	}
}

// batch counts a batch that begins.
func (f *figures) batch(now Time, node int32, rows int, takes time.Duration) {
	f.hash = (f.hash ^ uint64(now) ^ uint64(node)<<48 ^ uint64(rows)<<32) * 1099511628211
	if now < f.from {
		return
	}
	f.busy[node] += min(takes, f.end-now)
	f.rows += rows
	f.result.Batches++
}

func (f *figures) round(now Time, plan *placement.Plan, steps []placement.Step) {
	r := Round{At: now, Frozen: plan.Frozen}
	for _, s := range steps {
		if s.Unload {
			r.Unload++
		} else {
			r.Loads++
		}
	}
	r.Active, r.Copies = countCopies(plan)
	f.result.Loads += r.Loads
	f.result.Unloads += r.Unload
	f.result.Rounds = append(f.result.Rounds, r)
}

func countCopies(plan *placement.Plan) (active, copies int) {
	for i := range plan.Models {
		copies += len(plan.Models[i].Copies)
		for _, c := range plan.Models[i].Copies {
			if c.Active {
				active++
			}
		}
	}
	return active, copies
}

// result returns the figures. They are a copy: a pointer into the cell would keep all of it in memory.
func (c *cell) result() *Result {
	f := &c.figures
	r := new(f.result)
	if r.Sent > 0 {
		r.InObjective /= float64(r.Sent)
		r.Refused /= float64(r.Sent)
	}
	r.P50, r.P99 = f.latencies.quantile(0.5), f.latencies.quantile(0.99)
	span := float64(f.end - f.from)
	for _, busy := range f.busy {
		r.DeviceTime += float64(busy) / span / float64(len(f.busy))
		r.Fullest = max(r.Fullest, float64(busy)/span)
	}
	if r.Batches > 0 {
		r.MeanBatch = float64(f.rows) / float64(r.Batches)
	}
	r.Active, r.Copies = countCopies(c.control.plan)
	r.Hash = formatHash(f.hash)
	return r
}
