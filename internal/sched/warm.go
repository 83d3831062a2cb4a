package sched

import (
	"cmp"
	"context"

	"github.com/shoal-serving/shoal/internal/infer"
)

// A sample is a request that every instance runs before others come.
type sample struct {
	req   *infer.Request
	count int
	done  chan error // with room for every instance
}

// Warm runs a request on every instance, count times, and returns when all are
// done, or the first error. It is for a scheduler that nobody submits to yet, and
// req has been checked.
func (s *Scheduler) Warm(ctx context.Context, req *infer.Request, count int) error {
	all := sample{req, count, make(chan error, len(s.workers))}
	for _, w := range s.workers {
		w.sample = all
		w.stop.begin(0)
		w.orders <- warm // the core has no orders for anybody yet
	}
	unwatch := context.AfterFunc(ctx, func() {
		for _, w := range s.workers {
			w.stop.end(0)
		}
	})
	defer unwatch()
	var first error
	for range s.workers {
		first = cmp.Or(first, <-all.done) // of a bad sample all have the same to say
	}
	return first
}

// warm runs the sample, and throws away what comes of it.
func (w *worker) warm() {
	s := w.sample
	w.sample = sample{}
	var err error
	for range s.count {
		c := w.s.newCall(s.req)
		_, err = w.together([]*call{c}, w.taken) // not counted: no client asked for it
		c.letGo()
		c.letGo()
		if err != nil {
			break
		}
	}
	s.done <- err
}
