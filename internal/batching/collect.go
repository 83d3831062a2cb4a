package batching

import "time"

// Collect is the rule of MMS and TorchServe: a free worker takes the first request,
// and then waits for company, up to MaxDelay from that moment. A request that had to
// wait for a worker is held once more, where Triton's rule counts from its arrival.
// One worker collects at a time, and the next begins when that one has left.
//
// It is one model's own: it remembers when the collection began.
type Collect struct {
	Size     int           // requests of the largest batch, at least 1
	MaxDelay time.Duration // how long a batch is collected; 0 takes what is there

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
	leave := since + p.MaxDelay
	switch {
	case n == p.Size:
		return Decision{Take: n, Why: Full}
	case line.Cut():
		return Decision{Take: n, Why: Unfit}
	case p.MaxDelay == 0:
		return Decision{Take: n, Why: Idle}
	case now >= leave:
		return Decision{Take: n, Why: Waited}
	case line.Closing():
		return Decision{Take: n, Why: Closing}
	}
	return Decision{Until: leave}
}

// Backlog says what it makes of a long queue.
func (p *Collect) Backlog() (rows, running int) { return p.Size, 0 }

// Arrived implements [Watcher].
func (p *Collect) Arrived(Time, *Item) { p.waiting++ }

// Left implements [Watcher].
func (p *Collect) Left(Time, *Item) { p.gone(1) }

// Held implements [Watcher]. The collection begins when a free instance first waits.
func (p *Collect) Held(now Time, _ Decision) {
	if !p.collecting {
		p.collecting, p.since = true, now
	}
}

// Began implements [Watcher].
func (p *Collect) Began(_ Time, run *Action) {
	p.gone(len(run.Items))
	p.collecting = false
}

// Ended implements [Watcher].
func (p *Collect) Ended(Time, int, []*Item, bool) {}

// gone notes that so many wait no more. Without any, nothing is collected.
func (p *Collect) gone(n int) {
	p.waiting -= n
	p.collecting = p.collecting && p.waiting > 0
}
