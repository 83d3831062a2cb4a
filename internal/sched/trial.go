package sched

import (
	"cmp"
	"context"
	"math"
	"sync/atomic"
	"time"

	"github.com/shoal-serving/shoal/internal/infer"
)

// A trial is a request that instances run although no client asked for it: to be
// warm, or to see how long it takes. The core knows nothing of it: for the core an
// instance that takes part is parked, and what it is called for waits until it
// has stopped. Nothing of it is counted.
type trial struct {
	s       *Scheduler
	number  uint64 // which instances run it under, in place of a batch's
	req     *infer.Request
	runs    int
	began   chan struct{} // closed when all who take part are there
	halted  chan struct{} // closed when it makes way, or nobody wants to know any more
	isOver  atomic.Bool   // halted is closed, or about to be
	outcome chan outcome  // with room for everybody
}

// An outcome is what one instance has to say.
type outcome struct {
	took []time.Duration // each run
	err  error
}

// Warm runs a request on every living instance, count times, and returns when all are
// done, or the first error. It waits for those that are busy, and ends early if one
// that takes part is removed. req has been checked.
func (s *Scheduler) Warm(ctx context.Context, req *infer.Request, count int) error {
	_, err := s.newTrial(req, count).run(ctx, math.MaxInt)
	return err
}

// Try runs a request on so many instances at once, so many times on each, and
// returns how long each run took. It makes way as soon as a request comes, to this
// model or to any that shares its [Spare], and returns nothing then. req has been
// checked.
func (s *Scheduler) Try(ctx context.Context, req *infer.Request, instances, runs int) ([]time.Duration, error) {
	t := s.newTrial(req, runs)
	if !s.opts.Spare.use(t.halt) {
		return nil, nil
	}
	defer s.opts.Spare.leave()
	return t.run(ctx, instances)
}

func (s *Scheduler) newTrial(req *infer.Request, runs int) *trial {
	return &trial{s: s, number: firstTrial + s.tried.Add(1), req: req, runs: runs, began: make(chan struct{}), halted: make(chan struct{}), outcome: make(chan outcome, len(s.workers()))}
}

// run has the trial run on the given number of instances, or on all if fewer live.
func (t *trial) run(ctx context.Context, instances int) ([]time.Duration, error) {
	unwatch := context.AfterFunc(ctx, t.halt)
	defer unwatch()
	here := t.invite(instances)
	close(t.began)
	var all outcome
	for range here {
		o := <-t.outcome
		all.took = append(all.took, o.took...)
		all.err = cmp.Or(all.err, o.err) // of a bad request all have the same to say
	}
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case t.isOver.Load():
		return nil, nil // whatever was run had less than it needed
	}
	return all.took, all.err
}

// invite waits until the given number of instances, or all that live, take part, and
// returns how many do. One that takes part is not parked any more, so that each does
// once. Instances may come, leave and die meanwhile.
func (t *trial) invite(instances int) (here int) {
	for {
		changed := *t.s.changed.Load() // before the number is read, or a change might be missed
		if here >= min(instances, t.s.Living()) {
			return here
		}
		select {
		case t.s.trials <- t:
			here++
		case <-changed:
		case <-t.halted:
			return here
		}
	}
}

// halt ends the trial.
func (t *trial) halt() {
	if t.isOver.Swap(true) {
		return
	}
	close(t.halted)
	for _, w := range t.s.workers() {
		w.stop.end(t.number)
	}
}

// firstTrial is where the numbers of trials start. The core numbers its batches from 1
// and does not get that far. Each trial has a number of its own, so that the end of one
// that is over stops no other.
const firstTrial = 1 << 63

// try runs a trial, and throws away what comes of it.
func (w *worker) try(t *trial) {
	w.stop.begin(t.number)
	select {
	case <-t.began:
	case <-t.halted:
	}
	var o outcome
	for range t.runs {
		// An order that is there was given before the trial could be told to make way.
		if t.isOver.Load() || len(w.orders) > 0 {
			t.halt()
			break
		}
		c := w.s.newCall(t.req)
		from := time.Since(w.s.began)
		active := w.s.opts.Batching.Active // it counts on its device as a batch does
		w.exclusive = active != nil && active.Begin()
		_, o.err = w.together([]*call{c}, w.taken)
		if active != nil {
			active.End()
		}
		o.took = append(o.took, time.Since(w.s.began)-from)
		c.letGo()
		c.letGo()
		if o.err != nil {
			break
		}
	}
	t.outcome <- o
}
