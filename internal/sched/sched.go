package sched

import (
	"context"
	"errors"
	"log/slog"
	"slices"
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
	// Batching configures how requests are queued and combined. If its Predictor is nil,
	// New uses the policy if that predicts batch times, and else a predictor that learns
	// from the batches that run.
	Batching batching.Config

	// Pacer wakes the scheduler at the times that the core asks for. It is required.
	Pacer *pacer.Pacer

	// Device, if not nil, is shared with other models. A batch occupies Width of its
	// slots; zero means one.
	Device *Device
	Width  int

	// IdleGate, if not nil, is shared by all models of the process. [Scheduler.Probe]
	// requires it.
	IdleGate *IdleGate

	// NoBatchDimension means that the model has no batch dimension: its requests are never
	// joined, and its outputs are not split.
	NoBatchDimension bool

	// Ragged, if not nil, describes how requests of different sizes share a batch.
	Ragged *modelconfig.Ragged

	// Padding, if not nil, describes how requests of different lengths share a batch.
	Padding *modelconfig.Padding

	// Sequences, if not nil, means that requests belong to sequences.
	Sequences *Sequences

	// Bisect runs the halves of a failed batch again, so that only the requests that
	// cause the failure fail. It is for engines on which a retry has no side effects.
	Bisect bool

	// RetryDied restarts an instance that died while it ran a batch, and runs the batch
	// once more. It has no effect on a model with sequences: what the instance knew of them
	// is lost, and they must end.
	RetryDied bool

	// PassesOrderOn means that the model calls Queued of a request itself, because its requests to
	// other models must keep the order, too.
	PassesOrderOn bool

	// NewInstance, if not nil, opens an instance to replace one whose batch panicked.
	NewInstance func(context.Context) (engine.Instance, error)

	// Stats, if not nil, counts runs.
	Stats *stats.Counters

	// Log, if not nil, receives details that clients do not see, such as an engine's panic.
	Log *slog.Logger
}

// A Scheduler runs one model. Its methods may be called concurrently, except that Add,
// Remove and Close must be called one at a time.
//
// It owns the model's core, its instances with one worker each, and the stages on which
// callers assemble the next batches. State that changes with every request is in the
// core, which mu guards; the fields above mu are set once, are atomic, or have their own
// lock. Goroutines take mu through [Scheduler.locked], hold it for a step or two of the
// core, and carry out the core's actions after unlocking: nothing waits for an engine, a
// device or a caller under the lock.
//
// Lock order: mu comes before leaf locks, such as a stopper's and the pacer's, and no
// other lock is held when mu is taken. In particular the pacer and a device unlock before
// they call schedulers, so that schedulers that pass a turn to each other cannot deadlock.
//
// A caller does not wait for mu. When thousands of callers did, each woken by the one
// before, a lock that was held too long once never recovered; now a caller that finds mu
// taken leaves its call in the intake. A separate goroutine for decisions was rejected:
// it costs two goroutine switches per request, and is one more thing to stop (ADR 2).
type Scheduler struct {
	opts         Options
	epoch        time.Time // zero of the core's clock
	alarm        *pacer.Alarm
	workerList   atomic.Pointer[[]*worker]     // indexed by instance number - 1; copied on write
	probes       chan *probe                   // received by parked workers
	probeCount   atomic.Uint64                 // probes so far
	goroutines   sync.WaitGroup                // the workers' goroutines
	share        batching.Share                // of the device; the arbiter grants turns to it
	combines     bool                          // requests may share a batch
	alive        atomic.Int64                  // instances that are not down
	aliveChanged atomic.Pointer[chan struct{}] // closed and replaced when alive changes
	checks       atomic.Bool                   // instances are [engine.HealthChecker]s
	callPool     sync.Pool                     // of *call
	intake       intake
	quarantine   quarantine
	delay        transportDelay              // measured only if the model has an objective
	iterations   atomic.Uint64               // requests of iterative sequences so far
	streams      atomic.Int64                // response streams that are open
	outage       atomic.Pointer[infer.Error] // why instances could not be started; nil once one has

	mu           sync.Mutex          // guards the following
	core         *batching.Core      // nil if requests belong to sequences
	sequences    *batching.Sequences // nil if they do not
	alarmAt      batching.Time
	stepOut      batching.Actions // buffer of stepLocked
	draining     bool             // Close waits for drained
	joins        bool             // rows of requests that share a batch are joined; false if instances take requests one by one
	stages       []stage          // of the next batches
	stagesOpened uint64           // stages so far
	drained      chan struct{}    // closed when draining has finished
	shapeWatch   *shapeWatch      // set while AwaitShapeChange waits, else nil
	small        smallWatch

	alarmOut batching.Actions // used by onAlarm, which the pacer calls once at a time
}

// New returns a scheduler that runs the model on the given instances, which it owns from
// then on. [Scheduler.Add] and [Scheduler.Remove] change the instances later. The caller
// must call [Scheduler.Close].
func New(instances []engine.Instance, opts Options) *Scheduler {
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	if opts.Batching.Predictor == nil {
		opts.Batching.Predictor = batching.PredictorFor(opts.Batching.Policy)
	}
	if opts.Device != nil {
		opts.Batching.ActiveBatches = &opts.Device.active
	}
	s := &Scheduler{
		opts:    opts,
		epoch:   time.Now(),
		alarmAt: batching.Never,
		drained: make(chan struct{}),
		probes:  make(chan *probe), // unbuffered, so that only parked workers receive
	}
	if opts.Sequences != nil {
		s.sequences = batching.NewSequences(opts.Batching, batching.SequenceConfig{
			Slots: opts.Sequences.Slots, MaxIdle: opts.Sequences.Model.MaxIdle, Iterative: opts.Sequences.Model.Iterative,
		})
	} else {
		s.core = batching.New(opts.Batching)
	}
	s.share.Owner, s.share.Width = s, opts.Width
	s.small.policy, _ = opts.Batching.Policy.(smallCounter)
	_, none := opts.Batching.Policy.(batching.None)
	s.combines = opts.Batching.Policy != nil && !none && opts.Batching.MaxRows > 1 && !opts.NoBatchDimension
	s.alarm = opts.Pacer.Alarm(s.onAlarm)
	s.alive.Store(int64(len(instances)))
	s.aliveChanged.Store(new(make(chan struct{})))
	var workers []*worker
	for i, inst := range instances {
		workers = append(workers, newWorker(s, i+1, inst))
	}
	s.setWorkers(workers)
	for _, w := range workers {
		s.step(batching.Event{Kind: batching.Up, Instance: w.number}, &w.out)
	}
	for _, w := range workers {
		s.goroutines.Go(w.loop)
	}
	return s
}

// Submit queues req, runs it in a batch with similar requests, and fills in resp, which
// the caller must release if the error is nil. It returns when the response is ready,
// when the model has opened a stream of responses, or when ctx ends, whichever is first.
// If ctx ends first, the batch may still read the inputs after Submit has returned; it
// holds its own reference to their memory, see [infer.Request].
func (s *Scheduler) Submit(ctx context.Context, req *infer.Request, resp *infer.Response) error {
	if s.opts.Sequences != nil {
		if err := s.opts.Sequences.check(req); err != nil {
			return err
		}
		req = s.withControls(s.numbered(req))
	}
	c := s.newCall(req)
	if s.opts.Sequences != nil {
		c.correlate(req)
	}
	req.Deadline, _ = ctx.Deadline()
	c.item.Deadline = s.deadline(req.Deadline)
	if shape, isolated := s.quarantine.isolate(req.Client, time.Since(s.epoch)); isolated {
		c.item.Shape, c.item.PadGroup = shape, 0
	}
	if s.opts.Batching.Objective > 0 {
		c.item.TransportDelay = s.delay.expected()
	}
	s.intake.push(c)
	s.admit(c, &c.out)
	s.carryOut(&c.out)
	c.copyToStage()
	defer c.release()
	select {
	case <-c.done:
	case stream := <-c.stream:
		s.handStream(c, stream, resp)
		return nil
	case <-ctx.Done():
		// Either this step answers the call, or its answer is already on its way.
		s.step(batching.Event{Kind: batching.Cancel, Item: &c.item}, &c.out)
		<-c.done
	}
	if c.rejected {
		// One that was opened before the instance knew that the client has left. The batch may wait
		// for its reader, and none is opened any more: reject calls Left first.
		c.closeStream()
	} else {
		select {
		case stream := <-c.stream: // opened before the batch ended
			s.handStream(c, stream, resp)
			return nil
		default:
		}
		if s.opts.Batching.Objective > 0 && !c.times.Split.IsZero() {
			s.delay.observe(time.Since(c.times.Split))
		}
	}
	return c.outcome(ctx, resp)
}

func (s *Scheduler) workers() []*worker { return *s.workerList.Load() }

// Waiting returns the number of requests in the queue.
func (s *Scheduler) Waiting() (n int) {
	s.locked(nil, func(batching.Time, *batching.Actions) { n = s.waitingLocked() })
	return n
}

// Busy reports whether the scheduler has requests, queued or running, response streams that are
// open, or sequences whose state would be lost.
func (s *Scheduler) Busy() bool {
	busy := s.streams.Load() > 0
	s.locked(nil, func(batching.Time, *batching.Actions) {
		busy = busy || s.waitingLocked() > 0 || s.runningLocked() > 0
		if s.sequences != nil {
			used, _ := s.sequences.Live()
			busy = busy || used > 0
		}
	})
	return busy
}

// Ready reports whether at least one instance is alive and no instance reports that it is
// not ready. It asks instances that implement [engine.HealthChecker], which may take seconds. An
// instance in several places is asked once.
func (s *Scheduler) Ready() bool {
	if s.alive.Load() == 0 {
		return false
	}
	if !s.checks.Load() {
		return true // without a lock: a page of a node asks thousands
	}
	var checkers []engine.HealthChecker
	s.locked(nil, func(batching.Time, *batching.Actions) {
		for _, w := range s.workers() {
			if c, ok := w.inst.(engine.HealthChecker); ok && (len(checkers) == 0 || checkers[len(checkers)-1] != c) {
				checkers = append(checkers, c)
			}
		}
	})
	return !slices.ContainsFunc(checkers, func(c engine.HealthChecker) bool { return !c.Ready() })
}

// Outage returns why no instance could be started, if no instance is alive and the last
// attempt to start one failed. Otherwise it returns nil.
func (s *Scheduler) Outage() error {
	if outage := s.outage.Load(); outage != nil && s.alive.Load() == 0 {
		return outage
	}
	return nil
}

// Close rejects new requests, waits until the accepted ones have been answered, stops all
// goroutines of the scheduler and closes its instances. To abandon requests, cancel their
// contexts.
func (s *Scheduler) Close() error {
	for _, w := range s.workers() {
		w.cancelRestart() // stop waiting for dead instances to restart
	}
	s.locked(nil, func(now batching.Time, out *batching.Actions) {
		s.draining = true
		s.stepLocked(now, batching.Event{Kind: batching.Close}, out)
	})
	<-s.drained
	for _, w := range s.workers() {
		if !w.removed {
			w.retire()
		}
	}
	s.goroutines.Wait()
	s.alarm.Stop()
	for _, st := range s.stages {
		st.memory.Release() // of calls that left before an instance took them
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

// step reports an event to the core and carries out the core's actions. out is as in
// [Scheduler.locked].
func (s *Scheduler) step(ev batching.Event, out *batching.Actions) {
	s.locked(out, func(now batching.Time, out *batching.Actions) { s.stepLocked(now, ev, out) })
}

// nowLocked reads the core's clock. It must be read under the lock, so that the core never
// sees time go backwards.
func (s *Scheduler) nowLocked() batching.Time { return time.Since(s.epoch) }

// stepLocked reports an event to the core and appends the core's actions to out.
func (s *Scheduler) stepLocked(now batching.Time, ev batching.Event, out *batching.Actions) {
	step := out
	if len(out.List) > 0 {
		step = &s.stepOut // Step overwrites its argument, and out has actions of an earlier step
	}
	s.stepCoreLocked(now, ev, step)
	if step.Wake < s.alarmAt {
		s.alarmAt = step.Wake
		s.alarm.Set(s.at(step.Wake))
	}
	if s.opts.Batching.KeepOrder {
		// Delivered here, since outcomes could overtake each other after unlocking.
		s.deliverLocked(step)
	}
	if step != out {
		out.List = append(out.List, step.List...)
	}
	if s.draining && s.waitingLocked() == 0 && s.runningLocked() == 0 {
		s.draining = false
		close(s.drained)
	}
}

// deliverLocked carries out the Deliver actions in out, and removes them.
func (s *Scheduler) deliverLocked(out *batching.Actions) {
	kept := out.List[:0]
	for _, a := range out.List {
		if a.Kind == batching.Deliver {
			callOf(a.Item).answer()
		} else {
			kept = append(kept, a)
		}
	}
	out.List = kept
}

// onAlarm steps the core at the time it asked for. The pacer calls it.
func (s *Scheduler) onAlarm() {
	s.locked(&s.alarmOut, func(now batching.Time, out *batching.Actions) {
		s.alarmAt = batching.Never
		s.stepLocked(now, batching.Event{Kind: batching.Wake}, out)
	})
}

// carryOut carries out the core's actions, except Run: the worker that took the batch runs
// it. The caller must not hold the lock.
func (s *Scheduler) carryOut(out *batching.Actions) {
	for i := range out.List {
		switch a := &out.List[i]; a.Kind {
		case batching.Deliver:
			callOf(a.Item).answer()
		case batching.Reject:
			s.reject(callOf(a.Item), a.Verdict, a.RetryAfter)
		case batching.Unpark:
			s.send(a.Instance, cmdTake)
		case batching.Leave:
			s.send(a.Instance, cmdLeave)
		case batching.Stop:
			s.workers()[a.Instance-1].stopper.cancelBatch(a.Batch)
		case batching.Ask:
			s.opts.Device.ask(s, a.Due)
		case batching.Yield:
			s.opts.Device.yield(s, a.Ran)
		case batching.Run:
		}
	}
	out.List = out.List[:0]
}

// send sends a command to a parked worker. If the worker runs a probe, the probe stops: a
// worker checks for commands before each run, and send interrupts probes after it has
// queued the command.
func (s *Scheduler) send(instance int, cmd command) {
	s.workers()[instance-1].commands <- cmd
	s.opts.IdleGate.interrupt()
}

// Calibrated passes the measurements so far to the model's policy, if that implements
// [batching.Tunable].
func (s *Scheduler) Calibrated(p batching.Profile) {
	s.tune(func(policy batching.Tunable) { policy.Calibrated(p) })
}

// Recalibrated passes measurements with rows of another shape to the model's policy. They
// replace everything that the policy has learned.
func (s *Scheduler) Recalibrated(p batching.Profile) {
	s.tune(func(policy batching.Tunable) { policy.Recalibrated(p) })
}

func (s *Scheduler) tune(apply func(batching.Tunable)) {
	if policy, ok := s.opts.Batching.Policy.(batching.Tunable); ok {
		s.locked(nil, func(now batching.Time, out *batching.Actions) {
			apply(policy)
			s.stepLocked(now, batching.Event{Kind: batching.Wake}, out) // the policy may decide differently now
		})
	}
}

// Explain returns what the model's policy has learned and decided, if the policy supports
// that.
func (s *Scheduler) Explain() (e explain.Policy, ok bool) {
	policy, ok := s.opts.Batching.Policy.(interface{ Explain() explain.Policy })
	if ok {
		s.locked(nil, func(batching.Time, *batching.Actions) { e = policy.Explain() })
	}
	return e, ok
}

// reject answers a call without a result: the core refused it, removed it from the queue,
// or stopped waiting for its batch.
func (s *Scheduler) reject(c *call, v batching.Verdict, retryAfter time.Duration) {
	c.rejected, c.verdict, c.retryAfter = true, v, retryAfter
	if v == batching.NoInstance {
		c.outage = s.outage.Load()
	}
	c.left.Store(true) // before Left is called: the batch may not have begun, or may run again
	if c.taken && c.sender != nil {
		c.sender.Left(c.req)
	}
	c.answer()
}
