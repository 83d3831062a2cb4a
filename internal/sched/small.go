package sched

import (
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
)

// smallLogInterval is the shortest time between two logs of small batches.
const smallLogInterval = time.Minute

// A smallCounter is a policy that counts batches that are far smaller than they should be.
type smallCounter interface{ SmallBatches() uint64 }

// smallWatch notices that such a policy has counted further batches. The scheduler's lock
// guards it.
type smallWatch struct {
	policy smallCounter // nil if the policy does not count them
	seen   uint64
	logged batching.Time // when it was last logged; 0 if never
}

// more returns the number of small batches since the last log if it is time to log them,
// otherwise 0.
func (w *smallWatch) more(now batching.Time) uint64 {
	if w.policy == nil {
		return 0
	}
	count := w.policy.SmallBatches()
	if count == w.seen || w.logged > 0 && now < w.logged+smallLogInterval {
		return 0
	}
	n := count - w.seen
	w.seen, w.logged = count, max(1, now)
	return n
}
