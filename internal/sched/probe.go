package sched

import (
	"cmp"
	"context"
	"math"
	"sync/atomic"
	"time"

	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/stats"
)

// A probe is a request that instances run without a client, to warm up or to measure how
// long it takes. The core does not know about probes: to the core, an instance that runs
// one is parked, and a command that it sends to the instance waits until the probe has
// stopped. Probes are not counted in statistics.
type probe struct {
	s       *Scheduler
	number  uint64 // used like a batch number, to stop the runs
	req     *infer.Request
	runs    int
	started chan struct{}    // closed when all participating instances have been recruited
	stopped chan struct{}    // closed when a request needs the instances, or the caller's context ended
	over    atomic.Bool      // stopped is closed, or about to be
	results chan probeResult // has room for the result of every instance
}

// A probeResult is the result of one instance.
type probeResult struct {
	took []time.Duration // of each run
	err  error
}

// WarmUp runs req count times on every instance that is alive, and returns when all have
// finished, with the first error. It waits for busy instances, and ends early if a
// participating instance is removed. The caller has validated req.
func (s *Scheduler) WarmUp(ctx context.Context, req *infer.Request, count int) error {
	_, err := s.newProbe(req, count).run(ctx, math.MaxInt)
	return err
}

// Probe runs req on the given number of instances at once, the given number of times on
// each, and returns how long each run took. It stops as soon as a request arrives for
// this model or any other that shares its [IdleGate], and then returns nil, nil. The
// caller has validated req.
func (s *Scheduler) Probe(ctx context.Context, req *infer.Request, instances, runs int) ([]time.Duration, error) {
	p := s.newProbe(req, runs)
	if !s.opts.IdleGate.acquire(p.stop) {
		return nil, nil
	}
	defer s.opts.IdleGate.release()
	return p.run(ctx, instances)
}

func (s *Scheduler) newProbe(req *infer.Request, runs int) *probe {
	if s.opts.Sequences != nil {
		req = s.withControls(req)
	}
	return &probe{
		s: s, number: firstProbe + s.probeCount.Add(1), req: req, runs: runs,
		started: make(chan struct{}), stopped: make(chan struct{}), results: make(chan probeResult, len(s.workers())),
	}
}

// run executes the probe on the given number of instances, or on all that are alive if
// those are fewer.
func (p *probe) run(ctx context.Context, instances int) ([]time.Duration, error) {
	unwatch := context.AfterFunc(ctx, p.stop)
	defer unwatch()
	recruited := p.recruit(instances)
	close(p.started)
	var all probeResult
	for range recruited {
		result := <-p.results
		all.took = append(all.took, result.took...)
		all.err = cmp.Or(all.err, result.err) // a bad request fails the same way on every instance
	}
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case p.over.Load():
		return nil, nil // the runs shared the cores with requests, so their times mean nothing
	}
	return all.took, all.err
}

// recruit waits until the given number of instances, or all that are alive, participate,
// and returns how many do. Only parked instances receive from the probes channel, so no
// instance is recruited twice. Instances may be added, be removed and die meanwhile.
func (p *probe) recruit(instances int) (recruited int) {
	for {
		changed := *p.s.aliveChanged.Load() // loaded before Alive, so that no change is missed
		if recruited >= min(instances, p.s.Alive()) {
			return recruited
		}
		select {
		case p.s.probes <- p:
			recruited++
		case <-changed:
		case <-p.stopped:
			return recruited
		}
	}
}

// stop ends the probe. It does not wait for runs in progress.
func (p *probe) stop() {
	if p.over.Swap(true) {
		return
	}
	close(p.stopped)
	for _, w := range p.s.workers() {
		w.stopper.cancelBatch(p.number)
	}
}

// firstProbe is where the numbers of probes start. The core numbers its batches from 1
// and never gets that far. Each probe has its own number, so that stopping a probe that
// is over does not stop another.
const firstProbe = 1 << 63

// runProbe takes part in a probe, and discards the outputs.
func (w *worker) runProbe(p *probe) {
	w.stopper.begin(p.number)
	select {
	case <-p.started:
	case <-p.stopped:
	}
	var result probeResult
	for range p.runs {
		// A command that is already queued was sent before the gate knew about the probe,
		// so nothing else stops it.
		if p.over.Load() || len(w.commands) > 0 {
			p.stop()
			break
		}
		c := w.s.newCall(p.req)
		c.probe = true
		c.item.LeaveSequence() // the call may have been used before
		from := time.Since(w.s.epoch)
		active := w.s.opts.Batching.ActiveBatches // a probe counts on its device as a batch does
		w.exclusive = active != nil && active.Begin()
		err := w.runBatch([]*call{c}, from, &stats.Run{})
		result.err = cmp.Or(err, c.err)
		if active != nil {
			active.End()
		}
		result.took = append(result.took, time.Since(w.s.epoch)-from)
		c.release() // for the caller
		c.release() // for the core
		if result.err != nil {
			break
		}
	}
	if w.panicked {
		w.replaceInstance()
	}
	p.results <- result
}
