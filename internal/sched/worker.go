package sched

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/shoal-serving/shoal/internal/access"
	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/panics"
	"github.com/shoal-serving/shoal/internal/stats"
	"github.com/shoal-serving/shoal/internal/trace"
	"github.com/shoal-serving/shoal/tensor"
)

// A worker runs the batches of one instance on one goroutine.
//
// It owns the instance, the current batch, and the memory in which batches are joined,
// which it reuses so that a request costs no allocation. All of that belongs to the
// worker's goroutine and needs no lock. Other goroutines use only commands; stopper, which
// has its own lock; and down and leaving, which the scheduler's lock guards. The goroutine
// takes the scheduler's lock once between batches, to end one and take the next, so that
// the next batch is formed before the clients of the last one are woken.
//
// Workers pull: the core decides which parked worker to wake, and the worker takes its
// batch once it is awake. Forming batches early and pushing them to workers was rejected:
// such a batch is outdated when one of its requests is cancelled or a request of higher
// priority arrives, and then has to be taken back (ADR 2).
type worker struct {
	s        *Scheduler
	number   int             // of the instance, from 1
	inst     engine.Instance // written under the scheduler's lock
	commands chan command    // size 1: the core sends a parked instance one command at a time

	// The current batch. The slices are reused for the next one.
	calls        []*call
	reason       batching.Reason // why the core formed the batch
	takenAt      batching.Time
	runs         int           // runs of the batch or parts of it, so far
	firstRunAt   batching.Time // when the first run began
	stopper      *stopper      // has the context of the batch
	stage        stage         // holds the batch's rows; has no memory if they were not staged
	inputs       []tensor.Tensor
	joined       [][]byte  // memory of joined inputs, by index
	shapes       []int64   // backing array of the inputs' shapes
	sourceShapes [][]int64 // shapes that a batch input is computed from
	outputs      engine.Outputs

	exclusive       bool                   // the batch began on an idle device; see activeBatches.Begin
	exclusiveRunner engine.ExclusiveRunner // inst, if it runs exclusive batches on more threads; else nil

	perRequest  engine.PerRequest     // inst, if it takes requests one by one; else nil
	engineCalls []engine.Call         // the batch, for perRequest
	sender      engine.Sender         // inst, if its model may send responses; else nil
	delegate    engine.DelegateRunner // inst, if its model may call others; else nil

	restartable   engine.Restartable // inst, if it can die and be restarted; else nil
	down          bool               // the core knows that the instance is down. Guarded by the scheduler's lock
	leaving       bool               // the instance must not rejoin. Guarded by the scheduler's lock
	restartCtx    context.Context    //nolint:containedctx // of restarts; ends when the worker need not restart the instance any more
	cancelRestart context.CancelFunc // ends restartCtx
	exited        chan struct{}      // closed when the goroutine has exited
	removed       bool               // the instance was removed and closed. Used by Add, Remove and Close only

	queueTimes []time.Duration      // of the batch's requests, for statistics
	observed   []stats.BatchRequest // the same, for viewers
	panicked   bool                 // a run panicked: the state of the instance is unknown
	fresh      bool                 // inst replaced one that had sequences, and the core does not know yet

	finished []*call // the previous batch, until its outcomes are delivered
	out      batching.Actions
}

// A command wakes a parked worker.
type command int

const (
	cmdTake  command = iota // take a batch
	cmdLeave                // leave: the core considers the instance down
)

func newWorker(s *Scheduler, number int, inst engine.Instance) *worker {
	w := &worker{s: s, number: number, commands: make(chan command, 1), stopper: newStopper(), exited: make(chan struct{})}
	w.restartCtx, w.cancelRestart = context.WithCancel(context.Background())
	w.use(inst)
	return w
}

// use makes inst the instance of the worker.
func (w *worker) use(inst engine.Instance) {
	w.inst = inst
	if _, ok := inst.(engine.HealthChecker); ok {
		w.s.checks.Store(true)
	}
	w.exclusiveRunner, _ = inst.(engine.ExclusiveRunner)
	w.perRequest, _ = inst.(engine.PerRequest)
	w.sender, _ = inst.(engine.Sender)
	w.delegate, _ = inst.(engine.DelegateRunner)
	w.restartable, _ = inst.(engine.Restartable)
}

// loop runs batches, and restarts the instance when it dies, until the scheduler removes
// the instance or closes.
func (w *worker) loop() {
	defer close(w.exited)
	for {
		for w.next() {
			w.run()
			if w.panicked {
				w.replaceInstance()
			}
		}
		if !w.rejoin() {
			return
		}
	}
}

// next ends the previous batch and takes the next one, waiting for it if necessary. It
// returns false if the core considers the instance down.
func (w *worker) next() bool {
	endPrevious := len(w.calls) > 0 // not after a restart, nor on the first call
	if endPrevious {
		w.finished, w.calls = w.calls, w.finished[:0]
	}
	for {
		// One critical section ends the last batch and takes the next. So the next batch is
		// formed, from all requests that have arrived, before the outcomes of the last one
		// are delivered.
		small := uint64(0)
		w.s.locked(&w.out, func(now batching.Time, out *batching.Actions) {
			if endPrevious {
				w.requeueLocked(now)
				w.s.stepLocked(now, batching.Event{Kind: batching.Done, Instance: w.number}, out)
				small = w.s.small.more(now)
			}
			w.reportDownLocked(now, out)
			before := len(out.List)
			w.s.stepLocked(now, batching.Event{Kind: batching.Take, Instance: w.number}, out)
			w.acceptLocked(now, out.List[before:])
		})
		endPrevious = false
		if small > 0 {
			w.s.opts.Log.Warn("batches are far smaller than what waits and what is efficient", "batches", small)
		}
		w.releaseFinished()
		if len(w.calls) > 0 {
			return true
		}
		if w.awaitCommand() == cmdLeave {
			return false
		}
	}
}

// awaitCommand waits for the core's next command. Meanwhile it takes part in probes, which
// the core does not know about.
func (w *worker) awaitCommand() command {
	for {
		if len(w.commands) > 0 {
			return <-w.commands // do not join a probe that the command would stop
		}
		select {
		case cmd := <-w.commands:
			return cmd
		case p := <-w.s.probes:
			w.runProbe(p)
		case <-w.died():
			w.reportDown()
		}
	}
}

// acceptLocked sets up the batch that the core gave to this instance, if there is a Run
// among the actions.
func (w *worker) acceptLocked(now batching.Time, actions []batching.Action) {
	for i := range actions {
		a := &actions[i]
		if a.Kind != batching.Run {
			continue
		}
		w.reason, w.exclusive, w.takenAt, w.runs = a.Reason, a.Exclusive, now, 0
		for _, it := range a.Items {
			c := callOf(it)
			c.holders.Add(1)
			c.taken, c.sender = true, w.sender
			w.calls = append(w.calls, c)
		}
		if w.s.shapeWatch != nil {
			w.s.observeShapeLocked(w.calls[0].req)
		}
		w.stage = w.s.claimLocked(w.calls)
		w.stopper.begin(a.Batch) // under the lock, so that no Stop comes before it
	}
}

// releaseFinished releases the calls of the previous batch.
func (w *worker) releaseFinished() {
	for _, c := range w.finished {
		c.release()
	}
	w.finished = w.finished[:0]
}

// run runs the batch and sets each call's outcome. It does not answer the calls: the core
// decides when outcomes are delivered.
func (w *worker) run() {
	w.s.opts.IdleGate.BeginWork()
	defer w.s.opts.IdleGate.EndWork()
	err := w.runCounted(w.calls, w.takenAt)
	if err != nil && w.s.opts.RetryDied && errors.Is(err, engine.ErrDied) {
		err = w.retry(err)
	}
	w.stage.memory.Release()
	w.stage = stage{}
	switch {
	case err == nil:
	case w.s.opts.Bisect && bisectable(w.calls, err):
		w.bisect(err)
	default:
		w.fail(w.calls, err)
	}
}

// runCounted runs calls as one batch and records the run in the statistics. start is when
// work on the batch began, on the scheduler's clock.
func (w *worker) runCounted(calls []*call, start batching.Time) error {
	var run stats.Run
	err := w.runBatch(calls, start, &run)
	if run.Rows > 0 && w.s.opts.Stats != nil {
		w.s.opts.Stats.Ran(&run)
		if w.s.opts.Stats.Observes(run.Ended) {
			w.observe(calls, &run, err != nil)
		}
	}
	if run.Rows > 0 && calls[0].times.BatchSpan != nil {
		w.exportSpan(calls, &run, err)
	}
	return err
}

// observe shows a run to the viewers of the model's timeline.
func (w *worker) observe(calls []*call, run *stats.Run, failed bool) {
	times := &calls[0].times // of which the end is the same for all
	b := stats.Batch{
		Instance: w.number, CloseReason: run.CloseReason, Rows: run.Rows, Retry: run.Retry, Failed: failed,
		Taken: w.s.at(w.takenAt), RunStarted: times.RunEnded.Add(-run.Infer), RunEnded: times.RunEnded, Split: times.Split,
	}
	b.Requests = w.observed[:0]
	for _, c := range calls {
		b.Requests = append(b.Requests, stats.BatchRequest{Queued: c.queuedAt(), Rows: c.item.Rows})
	}
	w.s.opts.Stats.Observe(&b)
	w.observed = b.Requests
}

// runBatch runs calls as one batch and, if that succeeds, sets each call's outcome. start
// is when work on the batch began: the time from then until the engine is called counts
// as that of joining the inputs. It describes the run in ran, which has no rows if the engine was
// not called.
//
// A panic while inputs are joined or outputs are split fails the batch. callEngine recovers
// from the engine's panics itself, so that those count as a failed run.
func (w *worker) runBatch(calls []*call, start batching.Time, ran *stats.Run) (err error) {
	defer func() {
		if cause := recover(); cause != nil {
			*ran, err = stats.Run{}, w.recovered("batch", cause)
			w.outputs.Memory.Release()
			for i := range w.engineCalls {
				w.engineCalls[i].Outputs.Memory.Release()
			}
			w.inputs, w.joined, w.shapes, w.sourceShapes, w.engineCalls, w.outputs = nil, nil, nil, nil, nil, engine.Outputs{}
		}
	}()
	return w.joinRunSplit(calls, start, ran)
}

// joinRunSplit is runBatch without the recovery from panics.
func (w *worker) joinRunSplit(calls []*call, start batching.Time, ran *stats.Run) error {
	rows := 0
	var traced *trace.Request
	for _, c := range calls {
		rows += c.item.Rows
		if c.req.Trace != nil {
			traced = c.req.Trace
		}
	}
	inRows, width := calls, rows // as the model sees them
	if w.s.opts.Sequences != nil {
		w.addStates(calls)
		inRows = w.rowsOf(calls)
		width += len(inRows) - len(calls)
	}
	var inputs []tensor.Tensor
	var err error
	if w.perRequest == nil {
		inputs, err = w.join(inRows, width)
	} else {
		w.prepareCalls(inRows)
	}
	if err != nil {
		return err
	}
	runStart := time.Since(w.s.epoch)
	if w.runs++; w.runs == 1 {
		w.firstRunAt = runStart
	}
	times := infer.Timeline{Taken: w.s.at(w.takenAt), RunStarted: w.s.at(w.firstRunAt), Batch: rows, CloseReason: w.reason.String()}
	if traced != nil {
		times.BatchSpan = traced.NewContext()
	}
	if w.perRequest != nil {
		recordStart(calls, times)
	}
	err = w.callEngine(calls, inputs)
	runEnd := time.Since(w.s.epoch)
	splitEnd := runEnd
	if err == nil {
		err = w.distribute(inRows, width)
		if err == nil && w.s.opts.Sequences != nil {
			w.endRows(inRows)
		}
		splitEnd = time.Since(w.s.epoch)
	} else if w.perRequest != nil {
		w.noteStreams(inRows)
	}
	times.RunEnded, times.Split = w.s.at(runEnd), w.s.at(splitEnd)
	w.queueTimes = w.queueTimes[:0]
	for _, c := range calls {
		c.recordRun(&times)
		w.queueTimes = append(w.queueTimes, times.Taken.Sub(c.queuedAt()))
	}
	*ran = stats.Run{
		Rows: rows, Input: runStart - start, Infer: runEnd - runStart, Output: splitEnd - runEnd, Ended: times.RunEnded,
		Retry: w.runs > 1, CloseReason: w.reason, QueueTimes: w.queueTimes,
	}
	return err
}

// distribute moves the engine's outputs to the calls.
func (w *worker) distribute(calls []*call, rows int) error {
	if w.perRequest != nil {
		w.collectCalls(calls)
		return nil
	}
	err := w.split(calls, rows)
	w.outputs.Memory.Release() // each call has its own reference
	w.outputs.Memory = nil
	return err
}

// fail sets err as the outcome of calls that have run together. An error of a single call is
// recorded against its client, unless no request can cause such an error.
func (w *worker) fail(calls []*call, err error) {
	setError(calls, err)
	if len(calls) == 1 && w.s.combines && requestMayBeCause(err) {
		w.s.quarantine.recordFailure(calls[0].req.Client, time.Since(w.s.epoch))
	}
}

func setError(calls []*call, err error) {
	for _, c := range calls {
		c.err = err
	}
}

// recordStart sets the times of callers that get a stream before the batch ends.
func recordStart(calls []*call, times infer.Timeline) {
	for _, c := range calls {
		if !c.streaming { // otherwise its caller has the stream of an earlier run, and may be reading them
			c.startTimes = times
			c.startTimes.Queued = c.times.Queued
		}
	}
}

// callEngine runs the batch on the instance. It recovers from a panic, which fails the
// batch and not the server.
func (w *worker) callEngine(calls []*call, inputs []tensor.Tensor) (err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = w.recovered("engine", cause)
		}
	}()
	panics.Point("engine")
	// Models that take turns have a slot already: the core asked for it before it formed the
	// batch. A probe, for which w.calls is empty, does not take up a slot.
	if d := w.s.opts.Device; d != nil && !w.s.opts.Batching.TakeTurns && len(w.calls) > 0 {
		d.began(w.s)
		defer d.ended(w.s)
	}
	switch {
	case w.perRequest != nil:
		err = w.perRequest.RunEach(w.stopper.ctx, w.engineCalls)
	case w.exclusive && w.exclusiveRunner != nil:
		err = w.exclusiveRunner.RunExclusive(w.stopper.ctx, inputs, &w.outputs)
	case w.delegate != nil:
		err = w.delegate.RunFor(w.stopper.ctx, callerOf(calls), inputs, &w.outputs)
	default:
		err = w.inst.Run(w.stopper.ctx, inputs, &w.outputs)
	}
	return withCode(err)
}

// callerOf returns the callers of all requests of a batch, as one. Most often they are the same, or
// unknown.
func callerOf(calls []*call) *access.Caller {
	first := calls[0].req.Caller
	if !slices.ContainsFunc(calls, func(c *call) bool { return c.req.Caller != first }) {
		return first
	}
	callers := make([]*access.Caller, len(calls))
	for i, c := range calls {
		callers[i] = c.req.Caller
	}
	return access.Join(callers...)
}

// recovered reports a panic, and returns the error of the batch. Clients do not get the
// stack: it is of no use to them, and reveals internals.
func (w *worker) recovered(where string, cause any) error {
	w.panicked = true
	panics.Report(w.s.opts.Log, where, cause, "instance", w.number)
	return infer.Errorf(infer.Internal, "the %s panicked; the server's log has the details", where)
}

// replaceInstance opens a new instance in place of one whose batch panicked, and closes the
// old one. Sequences end with it, as if it had died: the new one knows nothing of them. If
// that fails, the old one stays.
func (w *worker) replaceInstance() {
	w.panicked = false
	if w.s.opts.NewInstance == nil {
		return
	}
	fresh, err := w.s.opts.NewInstance(w.restartCtx)
	if err != nil {
		w.s.opts.Log.Error("instance not replaced after a panic", "instance", w.number, "error", err)
		return
	}
	old := w.inst
	w.s.locked(nil, func(batching.Time, *batching.Actions) { w.use(fresh) })
	w.fresh = w.s.opts.Sequences != nil
	w.s.opts.Log.Warn("instance replaced after a panic", "instance", w.number, "error", closeRecovering(old))
}

// closeRecovering closes an instance whose state is unknown. If Close panics, the panic is
// returned as an error.
func closeRecovering(inst engine.Instance) (err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("panic while closing: %v", cause)
		}
	}()
	return inst.Close()
}

// withCode wraps an engine's error in an [infer.Error], unless it is one already.
func withCode(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*infer.Error](err); ok {
		return err
	}
	return infer.Errorf(infer.Internal, "the model failed: %w", err)
}

// join concatenates the rows of all calls, input by input. The inputs of a single call are
// returned as they are. The result is valid until the next call of join.
func (w *worker) join(calls []*call, rows int) ([]tensor.Tensor, error) {
	panics.Point("join")
	if w.s.opts.Ragged != nil {
		return w.joinRagged(calls, rows)
	}
	first := calls[0].req.Inputs
	if len(calls) == 1 {
		return first, nil
	}
	if ofDifferentShapes(calls) {
		return w.joinPadded(calls, rows)
	}
	if err := joinable(calls, nil); err != nil {
		return nil, err
	}
	staged := w.stage.memory != nil
	if staged {
		w.stage.complete(calls)
	}
	w.inputs, w.shapes = w.inputs[:0], w.shapes[:0]
	for k, x := range first {
		from := len(w.shapes)
		w.shapes = append(w.shapes, x.Shape...)
		w.shapes[from] = int64(rows)
		x.Shape = w.shapes[from:len(w.shapes):len(w.shapes)]
		if staged {
			x.Data = w.stage.input(k, rows)
		} else {
			x.Data = w.concatenate(calls, k)
		}
		w.inputs = append(w.inputs, x)
	}
	return w.inputs, nil
}

// joinable checks that the inputs of calls have rows of the same size. The core compares
// only hashes of shapes, and after a hash collision, clients would get each other's rows.
// flat, if not nil, marks the inputs that are joined regardless of their shape.
func joinable(calls []*call, flat []bool) error {
	first := calls[0].req.Inputs
	for _, c := range calls[1:] {
		for k := range first {
			if k < len(flat) && flat[k] {
				continue
			}
			if err := tensor.Joinable(&first[k], &c.req.Inputs[k]); err != nil {
				return infer.Errorf(infer.Internal, "requests with incompatible inputs were put in one batch: %w", err)
			}
		}
	}
	return nil
}

// maxKeptBytes is how much memory a worker may always keep for an input from batch to
// batch. It keeps more only if the batches need it.
const maxKeptBytes = 1 << 20

// emptyJoined returns w.joined[k] without data, with memory for the given number of bytes.
func (w *worker) emptyJoined(k, size int) []byte {
	w.growJoined(k)
	if cap(w.joined[k]) > max(maxKeptBytes, 4*size) {
		w.joined[k] = nil // do not keep the memory of a single large batch
	}
	return slices.Grow(w.joined[k][:0], size)
}

// concatenate copies input k of all calls to w.joined[k].
func (w *worker) concatenate(calls []*call, k int) []byte {
	size := 0
	for _, c := range calls {
		size += len(c.req.Inputs[k].Data)
	}
	data := w.emptyJoined(k, size)
	for _, c := range calls {
		data = append(data, c.req.Inputs[k].Data...)
	}
	w.joined[k] = data
	return data
}

// growJoined extends w.joined to index k.
func (w *worker) growJoined(k int) {
	for len(w.joined) <= k {
		w.joined = append(w.joined, nil)
	}
}

// split gives each call views of its rows of the outputs, and a reference to their memory.
func (w *worker) split(calls []*call, rows int) error {
	panics.Point("split")
	for _, c := range calls {
		c.outputs, c.shapes = c.outputs[:0], c.shapes[:0]
	}
	for k := range w.outputs.Tensors {
		x := &w.outputs.Tensors[k]
		if b := w.scatterRule(k); b != nil {
			if err := scatter(calls, x, b); err != nil {
				return err
			}
			continue
		}
		if err := w.checkOutput(x, rows); err != nil {
			return err
		}
		if w.s.opts.NoBatchDimension {
			calls[0].addOutput(x, x.Data)
			continue
		}
		if dim := w.cutDim(calls, k); dim > 0 {
			if err := w.splitPadded(calls, x, dim); err != nil {
				return err
			}
			continue
		}
		cut := tensor.Split(x)
		for _, c := range calls {
			c.addOutput(x, cut.Next(c.item.Rows))
			c.shapes[len(c.shapes)-len(x.Shape)] = int64(c.item.Rows) // first dimension of the output that was just added
		}
	}
	for _, c := range calls {
		w.outputs.Memory.Retain()
		c.memory = w.outputs.Memory
	}
	return nil
}

// checkOutput checks that an output has the right number of rows and the data for them.
func (w *worker) checkOutput(x *tensor.Tensor, rows int) error {
	if err := x.Check(); err != nil {
		return infer.Errorf(infer.Internal, "output %s of the model: %w", x.Name, err)
	}
	if !w.s.opts.NoBatchDimension && (len(x.Shape) == 0 || x.Rows() != rows) {
		return infer.Errorf(infer.Internal, "output %s of the model has shape %v, expected %d rows", x.Name, x.Shape, rows)
	}
	return nil
}

// addOutput appends an output that has the name, type and a copy of the shape of x, and
// the given data.
func (c *call) addOutput(x *tensor.Tensor, data []byte) {
	from := len(c.shapes)
	c.shapes = append(c.shapes, x.Shape...)
	c.outputs = append(c.outputs, tensor.Tensor{Name: x.Name, Type: x.Type, Shape: c.shapes[from:len(c.shapes):len(c.shapes)], Data: data})
}
