package batching

import "time"

// Collect is the batching rule of MMS and TorchServe: a free worker takes the first
// request, and then waits up to MaxDelay for more. A request that had to wait for a
// worker is thus held once more, while Triton's delay starts at its arrival. Only one
// worker collects at a time.
//
// A Collect keeps the state of one model and must not be shared.
type Collect struct {
	Size     int           // maximum batch size in requests, at least 1
	MaxDelay time.Duration // how long a batch is collected; 0 takes the requests that wait

	waiting    int
	collecting bool
	since      Time
}

var _ Watcher = (*Collect)(nil)

// Decide implements [Policy].
func (p *Collect) Decide(now Time, line Line) Decision {
	since := now
	if p.collecting {
		since = p.since
	}
	n := 0
	for it := line.First(); it != nil && n < p.Size; it = line.After(it) {
		n++
	}
	holdEnd := after(since, p.MaxDelay)
	switch {
	case n == p.Size:
		return Decision{Take: n, Reason: Full}
	case line.Cut():
		return Decision{Take: n, Reason: Unfit}
	case p.MaxDelay == 0:
		return Decision{Take: n, Reason: Idle}
	case now >= holdEnd:
		return Decision{Take: n, Reason: Waited}
	case line.Closing():
		return Decision{Take: n, Reason: Closing}
	}
	return Decision{Until: holdEnd}
}

// Backlog returns the batch size that works off a long queue, and 0 for any number of
// parallel batches.
func (p *Collect) Backlog(int64) (rows, running int) { return p.Size, 0 }

// Arrived implements [Watcher].
func (p *Collect) Arrived(Time, *Item) { p.waiting++ }

// Left implements [Watcher].
func (p *Collect) Left(Time, *Item) { p.removed(1) }

// Held implements [Watcher]. Collecting begins when a free instance first waits.
func (p *Collect) Held(now Time, _ Decision) {
	if !p.collecting {
		p.collecting, p.since = true, now
	}
}

// Began implements [Watcher].
func (p *Collect) Began(_ Time, run *Action) {
	p.removed(len(run.Items))
	p.collecting = false
}

// Ended implements [Watcher].
func (p *Collect) Ended(Time, int, []*Item, bool) {}

// removed records that n requests were dequeued. When none is left, collecting ends.
func (p *Collect) removed(n int) {
	p.waiting -= n
	p.collecting = p.collecting && p.waiting > 0
}
