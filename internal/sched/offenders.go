package sched

import (
	"sync"
	"sync/atomic"
	"time"
)

// Offenders are the clients whose requests have made batches fail. To find out
// who it was costs the others of a batch several runs, so a client that keeps
// offending runs alone, until it has behaved for a while. The zero offenders is
// nobody.
type offenders struct {
	some atomic.Bool // there is anybody, so that most requests need not look
	mu   sync.Mutex  // guards the following
	by   map[uint64]*offender
	last uint64 // shapes given out by alone
}

type offender struct {
	strikes int
	latest  time.Duration // on the scheduler's clock
}

const (
	// So many failures make a client run alone.
	maxStrikes = 3
	// After so long without one all is forgotten.
	forgiveness = time.Minute
	// So many clients are remembered; more are not told apart from good ones.
	maxOffenders = 1024
)

// strike notes that a client's request failed by itself.
func (o *offenders) strike(client uint64, now time.Duration) {
	if client == 0 {
		return // nobody knows who it is
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.by == nil {
		o.by = map[uint64]*offender{}
	}
	who := o.by[client]
	if who == nil {
		o.forgive(now)
		if len(o.by) == maxOffenders {
			return
		}
		who = &offender{}
		o.by[client] = who
		o.some.Store(true)
	}
	if now-who.latest > forgiveness {
		who.strikes = 0
	}
	who.strikes++
	who.latest = now
}

// forgive forgets those who have behaved. The caller holds the lock.
func (o *offenders) forgive(now time.Duration) {
	for client, who := range o.by {
		if now-who.latest > forgiveness {
			delete(o.by, client)
		}
	}
	o.some.Store(len(o.by) > 0)
}

// alone reports whether a client runs alone, and returns a shape for its request
// that no other has: requests of different shapes never share a batch.
func (o *offenders) alone(client uint64, now time.Duration) (shape uint64, alone bool) {
	if !o.some.Load() || client == 0 {
		return 0, false
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	who := o.by[client]
	switch {
	case who == nil:
		return 0, false
	case now-who.latest > forgiveness:
		o.forgive(now)
		return 0, false
	case who.strikes < maxStrikes:
		return 0, false
	}
	o.last++
	return ^o.last, true
}
