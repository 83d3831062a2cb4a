package sched

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/explain"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/modelconfig"
	"github.com/shoal-serving/shoal/internal/pacer"
	"github.com/shoal-serving/shoal/internal/stats"
)

// Options configure a [Scheduler].
type Options struct {
	// Batching says how requests are queued and combined. Without a Predictor, the
	// policy is one, or what runs is learnt from.
	Batching batching.Config

	// Pacer wakes the scheduler at exact times. It is required.
	Pacer *pacer.Pacer

	// Device, if not nil, is shared with other models, of whose slots a batch takes
	// Width. Zero means one.
	Device *Device
	Width  int

	// Spare, if not nil, is shared with all models of the process; [Scheduler.Try]
	// needs it.
	Spare *Spare

	// Whole says that the model has no batch dimension: its requests are never
	// joined, and its outputs are handed out as they are.
	Whole bool

	// Ragged, if not nil, says how requests of different sizes share a batch.
	Ragged *modelconfig.Ragged

	// Bisect cuts a batch that failed in halves, so that only those fail who are
	// the reason. It is for engines that may be asked again without harm.
	Bisect bool

	// RetryDied runs a batch once more whose instance died, when that is back.
	RetryDied bool

	// Stats counts what runs. Nil means that nobody does.
	Stats *stats.Counters

	Log *slog.Logger // gets what clients are not told, such as an engine's panic; nil means nobody
}

// A Scheduler runs one model. Its methods may be called concurrently, except that Add,
// Remove and Close are called one at a time.
//
// It owns the model's core, its instances with a worker for each, and the stages on
// which rows of coming batches are put. What changes with every request is in the core,
// which mu guards; the fields above mu are set once, or are atomic. Goroutines take mu
// through [Scheduler.locked], hold it for a step or two of the core, and carry out what
// the core asked for when they have given it back: no engine, device or caller is
// waited for under the lock. Only locks of leaves are taken while mu is held, such as a
// stopper's and the pacer's, and none is held when mu is taken: the pacer and a device
// give theirs back before they call schedulers, so that schedulers whose turns end and
// begin together cannot deadlock.
//
// A caller does not wait for mu. With thousands of callers that did, each of them woken
// by the one before, a lock that was held too long once never recovered; now a caller
// that finds mu taken leaves its call in the intake. A goroutine of its own for deciding
// was rejected: it costs two switches for each request, and is one more thing to stop
// (ADR 2).
type Scheduler struct {
	opts     Options
	began    time.Time // where the core's clock starts
	alarm    *pacer.Alarm
	crew     atomic.Pointer[[]*worker] // by instance number, from 1. It is replaced, never changed
	trials   chan *trial
	tried    atomic.Uint64 // trials so far
	running  sync.WaitGroup
	share    batching.Share
	combines bool                          // requests may share a batch
	alive    atomic.Int64                  // instances that are not away
	changed  atomic.Pointer[chan struct{}] // closed when alive has changed, and then replaced
	calls    sync.Pool                     // of *call
	intake   intake
	bad      offenders
	way      way                         // of requests to a model with an objective
	outage   atomic.Pointer[infer.Error] // why instances could not be started; nil since one was

	mu       sync.Mutex // guards the following
	core     *batching.Core
	alarmAt  batching.Time
	out      batching.Actions // of one step
	draining bool             // Close waits for drained
	joins    bool             // rows of requests that share a batch are joined
	stages   []stage          // of the next batches
	opened   uint64           // stages so far
	drained  chan struct{}    // closed when nothing waits or runs any more
	watch    *watch           // who wants to know the shape of most batches; nil if nobody does

	alarmOut batching.Actions // of the alarm, which only ever rings once at a time
}

// New starts running the model on the given instances, which are the scheduler's
// from now on. Others may come and go; see [Scheduler.Add].
func New(instances []engine.Instance, opts Options) *Scheduler {
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	if opts.Batching.Predictor == nil {
		opts.Batching.Predictor = batching.PredictorFor(opts.Batching.Policy)
	}
	if opts.Device != nil {
		opts.Batching.Active = &opts.Device.active
	}
	s := &Scheduler{
		opts:    opts,
		began:   time.Now(),
		core:    batching.New(opts.Batching),
		alarmAt: batching.Never,
		drained: make(chan struct{}),
		trials:  make(chan *trial), // not buffered: only who is parked takes part
	}
	s.share.Owner, s.share.Width = s, opts.Width
	_, none := opts.Batching.Policy.(batching.None)
	s.combines = opts.Batching.Policy != nil && !none && opts.Batching.MaxRows > 1 && !opts.Whole
	s.alarm = opts.Pacer.Alarm(s.ring)
	s.alive.Store(int64(len(instances)))
	s.changed.Store(new(make(chan struct{})))
	var crew []*worker
	for i, inst := range instances {
		crew = append(crew, newWorker(s, i+1, inst))
	}
	s.setCrew(crew)
	for _, w := range crew {
		s.step(batching.Event{Kind: batching.Up, Instance: w.number}, &w.out)
	}
	for _, w := range crew {
		s.running.Go(w.loop)
	}
	return s
}

// Submit runs req with others of its kind and fills in resp, which the caller
// releases if the error is nil. It returns when the outcome is there, or when the
// model has begun to send responses, or when ctx ends, if that is sooner. req is kept
// no longer than its inputs are being read; see [infer.Request].
func (s *Scheduler) Submit(ctx context.Context, req *infer.Request, resp *infer.Response) error {
	c := s.newCall(req)
	c.item.Deadline = s.deadline(ctx)
	if shape, alone := s.bad.alone(req.Client, time.Since(s.began)); alone {
		c.item.Shape = shape
	}
	if s.opts.Batching.Objective > 0 {
		c.item.Way = s.way.expected()
	}
	s.intake.push(c)
	s.admit(c, &c.out)
	s.carryOut(&c.out)
	c.fill()
	defer c.letGo()
	select {
	case <-c.done:
	case more := <-c.opened:
		c.hand(more, resp)
		return nil
	case <-ctx.Done():
		// Either this answers the call, or its answer is on the way already.
		s.step(batching.Event{Kind: batching.Cancel, Item: &c.item}, &c.out)
		<-c.done
	}
	if !c.turnedAway {
		select {
		case more := <-c.opened: // before the batch ended
			c.hand(more, resp)
			return nil
		default:
		}
		if s.opts.Batching.Objective > 0 && !c.times.Split.IsZero() {
			s.way.took(time.Since(c.times.Split))
		}
	}
	return c.outcome(ctx, resp)
}

func (s *Scheduler) workers() []*worker { return *s.crew.Load() }

// Waiting returns how many requests are in the queue.
func (s *Scheduler) Waiting() (n int) {
	s.locked(nil, func(batching.Time, *batching.Actions) { n = s.core.Waiting() })
	return n
}

// Ready reports whether there is an instance that can run requests, and none that says
// of itself that it is not ready. Those are asked, which may take some seconds.
func (s *Scheduler) Ready() bool {
	if s.alive.Load() == 0 {
		return false
	}
	for _, w := range s.workers() {
		if judge, ok := w.inst.(engine.Judge); ok && !judge.Ready() {
			return false
		}
	}
	return true
}

// Outage returns why no instance can run requests, if none can and the last attempt to
// start one failed. It returns nil otherwise.
func (s *Scheduler) Outage() error {
	if outage := s.outage.Load(); outage != nil && s.alive.Load() == 0 {
		return outage
	}
	return nil
}

// Close refuses new requests, lets those run that are here, and returns when
// everything that the scheduler started has ended. Callers that shall not be
// waited for end their contexts.
func (s *Scheduler) Close() error {
	for _, w := range s.workers() {
		w.dismissal() // who waits for the dead to come back need not any more
	}
	s.locked(nil, func(now batching.Time, out *batching.Actions) {
		s.draining = true
		s.stepLocked(now, batching.Event{Kind: batching.Close}, out)
	})
	<-s.drained
	for _, w := range s.workers() {
		if !w.removed {
			w.dismiss()
		}
	}
	s.running.Wait()
	s.alarm.Stop()
	for _, st := range s.stages {
		st.memory.Release() // of those who left before their batch was taken
	}
	if s.opts.Device != nil {
		s.opts.Device.forget(s)
	}
	var errs []error
	for _, w := range s.workers() {
		if !w.removed {
			errs = append(errs, w.inst.Close())
		}
	}
	return errors.Join(errs...)
}

// step tells the core what happened, now, and carries out what it asks for. out is
// as in locked.
func (s *Scheduler) step(ev batching.Event, out *batching.Actions) {
	s.locked(out, func(now batching.Time, out *batching.Actions) { s.stepLocked(now, ev, out) })
}

// nowLocked reads the core's clock. It is read under the lock, so that time never
// runs backwards for the core.
func (s *Scheduler) nowLocked() batching.Time { return time.Since(s.began) }

func (s *Scheduler) stepLocked(now batching.Time, ev batching.Event, out *batching.Actions) {
	step := out
	if len(out.List) > 0 {
		step = &s.out // Step writes over what is there
	}
	s.core.Step(now, ev, step)
	if step.Wake < s.alarmAt {
		s.alarmAt = step.Wake
		s.alarm.Set(s.at(step.Wake))
	}
	if s.opts.Batching.KeepOrder {
		// Outcomes must not overtake each other between here and carrying out.
		s.deliverLocked(step)
	}
	if step != out {
		out.List = append(out.List, step.List...)
	}
	if s.draining && s.core.Waiting() == 0 && s.core.Running() == 0 {
		s.draining = false
		close(s.drained)
	}
}

func (s *Scheduler) deliverLocked(out *batching.Actions) {
	kept := out.List[:0]
	for _, a := range out.List {
		if a.Do == batching.Deliver {
			callOf(a.Item).answer()
		} else {
			kept = append(kept, a)
		}
	}
	out.List = kept
}

// ring is called by the pacer.
func (s *Scheduler) ring() {
	s.locked(&s.alarmOut, func(now batching.Time, out *batching.Actions) {
		s.alarmAt = batching.Never
		s.stepLocked(now, batching.Event{Kind: batching.Wake}, out)
	})
}

// carryOut does what the core asked for, all but Run, which the worker that takes
// does itself. The caller does not hold the lock.
func (s *Scheduler) carryOut(out *batching.Actions) {
	for i := range out.List {
		switch a := &out.List[i]; a.Do {
		case batching.Deliver:
			callOf(a.Item).answer()
		case batching.Answer:
			s.turnAway(callOf(a.Item), a.Verdict, a.RetryAfter)
		case batching.Call:
			s.order(a.Instance, take)
		case batching.Leave:
			s.order(a.Instance, leave)
		case batching.Stop:
			s.workers()[a.Instance-1].stop.end(a.Batch)
		case batching.Ask:
			s.opts.Device.ask(s)
		case batching.Yield:
			s.opts.Device.yield(s, a.Ran)
		case batching.Run:
		}
	}
	out.List = out.List[:0]
}

// order wakes a parked instance. One that tries something is told to end that: it
// looks for orders before each run, and this looks for trials after the order.
func (s *Scheduler) order(instance int, o order) {
	s.workers()[instance-1].orders <- o
	s.opts.Spare.interrupt()
}

// Calibrated passes what was measured so far to the model's policy, if that is
// tunable.
func (s *Scheduler) Calibrated(p batching.Profile) {
	s.tune(func(policy batching.Tunable) { policy.Calibrated(p) })
}

// Recalibrated passes it what was measured with rows of another shape, in place of all
// that it has learned so far.
func (s *Scheduler) Recalibrated(p batching.Profile) {
	s.tune(func(policy batching.Tunable) { policy.Recalibrated(p) })
}

func (s *Scheduler) tune(apply func(batching.Tunable)) {
	if policy, ok := s.opts.Batching.Policy.(batching.Tunable); ok {
		s.locked(nil, func(now batching.Time, out *batching.Actions) {
			apply(policy)
			s.stepLocked(now, batching.Event{Kind: batching.Wake}, out) // it may decide differently now
		})
	}
}

// Explain returns what the model's policy knows, if it can say so.
func (s *Scheduler) Explain() (e explain.Policy, ok bool) {
	policy, ok := s.opts.Batching.Policy.(interface{ Explain() explain.Policy })
	if ok {
		s.locked(nil, func(batching.Time, *batching.Actions) { e = policy.Explain() })
	}
	return e, ok
}

func (s *Scheduler) turnAway(c *call, v batching.Verdict, retry time.Duration) {
	c.turnedAway, c.verdict, c.retry = true, v, retry
	if v == batching.NoInstance {
		c.outage = s.outage.Load()
	}
	taken := c.taken
	if taken && c.sender != nil {
		c.sender.Left(c.req)
	}
	c.answer()
	if !taken {
		c.letGo() // for the core; a batch would let go itself
	}
}
