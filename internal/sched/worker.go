package sched

import (
	"context"
	"errors"
	"runtime/debug"
	"slices"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/stats"
	"github.com/shoal-serving/shoal/tensor"
)

// A worker runs the batches of one instance, on one goroutine.
//
// It owns the instance, the batch that it runs, and the memory that batches are joined
// in, which it keeps from batch to batch so that a request costs no allocation. All of
// that belongs to the worker's goroutine and needs no lock. Other goroutines use only
// orders, stop, which has a lock of its own, and what the scheduler's lock guards: away
// and dismissed. The goroutine takes the scheduler's lock between batches, once for the
// end of one batch and the begin of the next, so that the next is settled before the
// clients of the last are woken.
//
// Workers pull: the core says which parked worker to wake, and the worker takes its
// batch itself when it is awake. Batches that are formed before and pushed to workers
// were rejected: they are wrong when a member leaves or a request of higher priority
// comes, and need a way back (ADR 2).
type worker struct {
	s      *Scheduler
	number int
	inst   engine.Instance
	orders chan order // size 1: the core gives a parked instance one order at a time

	// The batch that runs. The slices are kept for the next one.
	calls   []*call
	why     batching.Reason
	taken   batching.Time
	runs    int           // of it or parts of it, so far
	began   batching.Time // the first of them
	stop    *stopper
	stage   stage // that it was claimed from; without memory if it was not
	inputs  []tensor.Tensor
	joined  [][]byte  // memory of inputs
	shapes  []int64   // of inputs
	sources [][]int64 // shapes that a batch input is about
	outputs engine.Outputs

	exclusive       bool                   // the batch has the device to itself
	exclusiveRunner engine.ExclusiveRunner // inst, if it then runs on more threads; nil if not

	each   engine.Each   // inst, if it takes requests one by one; nil if not
	batch  []engine.Call // for it
	sender engine.Sender // inst, if its model may send responses; nil if not

	mortal    engine.Mortal      // inst, if it can die; nil if not
	away      bool               // the core was told that it is down. Guarded by the scheduler's lock
	dismissed bool               // it need not come back. Guarded by the scheduler's lock
	quit      context.Context    //nolint:containedctx // ended when the instance leaves for good
	dismissal context.CancelFunc // ends quit
	left      chan struct{}      // closed when it has
	removed   bool               // and was closed. Only Add, Remove and Close look at it

	waits []time.Duration // for statistics

	last []*call // the batch before, until its outcomes are handed out
	out  batching.Actions
}

// An order wakes a parked worker.
type order int

const (
	take order = iota
	leave
)

func newWorker(s *Scheduler, number int, inst engine.Instance) *worker {
	w := &worker{s: s, number: number, inst: inst, orders: make(chan order, 1), stop: newStopper(), left: make(chan struct{})}
	w.quit, w.dismissal = context.WithCancel(context.Background())
	w.exclusiveRunner, _ = inst.(engine.ExclusiveRunner)
	w.each, _ = inst.(engine.Each)
	w.sender, _ = inst.(engine.Sender)
	w.mortal, _ = inst.(engine.Mortal)
	return w
}

func (w *worker) loop() {
	defer close(w.left)
	for {
		for w.next() {
			w.run()
		}
		if !w.comeBack() {
			return
		}
	}
}

// next ends the last batch and takes the next one, for which it waits if need be.
// It returns false when the instance has left.
func (w *worker) next() bool {
	ended := len(w.calls) > 0
	if ended {
		w.last, w.calls = w.calls, w.last[:0]
	}
	for {
		// All in one hold of the lock, so that the next batch is settled, with
		// everybody who is here, before the outcomes of the last are handed out.
		w.s.locked(&w.out, func(now batching.Time, out *batching.Actions) {
			if ended {
				w.s.stepLocked(now, batching.Event{Kind: batching.Done, Instance: w.number}, out)
			}
			w.mournLocked(now, out)
			from := len(out.List)
			w.s.stepLocked(now, batching.Event{Kind: batching.Take, Instance: w.number}, out)
			w.tookLocked(now, out.List[from:])
		})
		ended = false
		w.letGo()
		if len(w.calls) > 0 {
			return true
		}
		if w.wait() == leave {
			return false
		}
	}
}

// wait returns the next order that the core has for the instance. Meanwhile it
// takes part in trials, of which the core knows nothing.
func (w *worker) wait() order {
	for {
		if len(w.orders) > 0 {
			return <-w.orders // before a trial, which it would end
		}
		select {
		case o := <-w.orders:
			return o
		case t := <-w.s.trials:
			w.try(t)
		case <-w.died():
			w.mourn()
		}
	}
}

// tookLocked notes the batch that the core gave to this instance, if it did.
func (w *worker) tookLocked(now batching.Time, actions []batching.Action) {
	for _, a := range actions {
		if a.Do != batching.Run {
			continue
		}
		w.why, w.exclusive, w.taken, w.runs = a.Why, a.Exclusive, now, 0
		for _, it := range a.Items {
			c := callOf(it)
			c.taken, c.sender = true, w.sender
			w.calls = append(w.calls, c)
		}
		if w.s.watch != nil {
			w.s.watchLocked(w.calls[0].req)
		}
		w.stage = w.s.claimLocked(w.calls)
		w.stop.begin(a.Batch) // before anybody can ask to stop it
	}
}

// letGo lets go of the calls of the last batch.
func (w *worker) letGo() {
	for _, c := range w.last {
		c.letGo()
	}
	w.last = w.last[:0]
}

// run computes the batch and gives each call its outcome. Nobody is told yet:
// that is for the core to say.
func (w *worker) run() {
	w.s.opts.Spare.Began()
	defer w.s.opts.Spare.Ended()
	err := w.attempt(w.calls, w.taken)
	if w.s.opts.RetryDied && errors.Is(err, engine.ErrDied) {
		err = w.again(err)
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

// attempt computes calls together and counts that. It has been at it since from.
func (w *worker) attempt(calls []*call, from batching.Time) error {
	ran, err := w.together(calls, from)
	if ran.Rows > 0 && w.s.opts.Stats != nil {
		w.s.opts.Stats.Ran(&ran)
	}
	return err
}

// together computes calls together and, if that works, gives each its outcome. What
// it returns has no rows if the engine was not called.
func (w *worker) together(calls []*call, from batching.Time) (stats.Run, error) {
	rows := 0
	for _, c := range calls {
		rows += c.item.Rows
	}
	var inputs []tensor.Tensor
	var err error
	if w.each == nil {
		inputs, err = w.join(calls, rows)
	} else {
		w.list(calls)
	}
	if err != nil {
		return stats.Run{}, err
	}
	run := time.Since(w.s.began)
	if w.runs++; w.runs == 1 {
		w.began = run
	}
	times := infer.Timeline{Taken: w.s.at(w.taken), Run: w.s.at(w.began), Batch: rows, Why: w.why.String()}
	for _, c := range calls {
		times.Queued = c.times.Queued
		c.begun = times
	}
	err = w.compute(inputs)
	ran := time.Since(w.s.began)
	split := ran
	if err == nil {
		err = w.handOut(calls, rows)
		split = time.Since(w.s.began)
	}
	times.Ran, times.Split = w.s.at(ran), w.s.at(split)
	w.waits = w.waits[:0]
	for _, c := range calls {
		times.Queued = c.times.Queued
		c.times = times
		w.waits = append(w.waits, times.Taken.Sub(times.Queued))
	}
	return stats.Run{
		Rows: rows, Input: run - from, Infer: ran - run, Output: split - ran, Ended: times.Ran,
		Again: w.runs > 1, Why: w.why, Waits: w.waits,
	}, err
}

// handOut gives each call its part of what was computed.
func (w *worker) handOut(calls []*call, rows int) error {
	if w.each != nil {
		w.settle(calls)
		return nil
	}
	err := w.split(calls, rows)
	w.outputs.Memory.Release() // each call has a count of its own
	w.outputs.Memory = nil
	return err
}

// fail gives calls an error as their outcome. One that fails alone is its own
// reason, unless it was stopped or memory ran out.
func (w *worker) fail(calls []*call, err error) {
	for _, c := range calls {
		c.err = err
	}
	if len(calls) == 1 && w.s.combines && blamable(err) {
		w.s.bad.strike(calls[0].req.Client, time.Since(w.s.began))
	}
}

// compute calls the engine. A panic in it costs one batch, not the server.
func (w *worker) compute(inputs []tensor.Tensor) (err error) {
	defer func() {
		if p := recover(); p != nil {
			// A stack tells clients nothing, and others what the server is made of.
			w.s.opts.Log.Error("the engine panicked", "panic", p, "instance", w.number, "stack", string(debug.Stack()))
			err = infer.Errorf(infer.Internal, "the engine failed in a way that it should not; the server's log has the details")
		}
	}()
	// A trial, which has no calls of its own, makes way, and takes nobody's place.
	if d := w.s.opts.Device; d != nil && !w.s.opts.Batching.TakeTurns && len(w.calls) > 0 {
		d.began(w.s)
		defer d.ended(w.s)
	}
	switch {
	case w.each != nil:
		err = w.each.RunEach(w.stop.ctx, w.batch)
	case w.exclusive && w.exclusiveRunner != nil:
		err = w.exclusiveRunner.RunExclusive(w.stop.ctx, inputs, &w.outputs)
	default:
		err = w.inst.Run(w.stop.ctx, inputs, &w.outputs)
	}
	return coded(err)
}

// coded gives an engine's error a code, if it has none.
func coded(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*infer.Error](err); ok {
		return err
	}
	return infer.Errorf(infer.Internal, "the model failed: %w", err)
}

// join puts the rows of all calls one behind the other. A call that is alone is
// passed on as it is.
func (w *worker) join(calls []*call, rows int) ([]tensor.Tensor, error) {
	if w.s.opts.Ragged != nil {
		return w.joinRagged(calls, rows)
	}
	first := calls[0].req.Inputs
	if len(calls) == 1 {
		return first, nil
	}
	if err := joinable(calls, nil); err != nil {
		return nil, err
	}
	staged := w.stage.memory != nil
	if staged {
		w.stage.finish(calls)
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

// joinable makes sure of what equal shapes should mean. A shape is a hash, and a
// batch with rows of different sizes would give clients each other's rows. Inputs
// that are flat have none.
func joinable(calls []*call, flat []bool) error {
	first := calls[0].req.Inputs
	for _, c := range calls[1:] {
		for k := range first {
			if k < len(flat) && flat[k] {
				continue
			}
			if err := tensor.Joinable(&first[k], &c.req.Inputs[k]); err != nil {
				return infer.Errorf(infer.Internal, "requests that do not go together were put in one batch: %w", err)
			}
		}
	}
	return nil
}

// keptMemory is what an instance may keep for an input from batch to batch,
// whatever the batches' sizes.
const keptMemory = 1 << 20

func (w *worker) concatenate(calls []*call, k int) []byte {
	w.makeRoom(k)
	size := 0
	for _, c := range calls {
		size += len(c.req.Inputs[k].Data)
	}
	if cap(w.joined[k]) > max(keptMemory, 4*size) {
		w.joined[k] = nil // one large batch shall not hold its memory for good
	}
	data := slices.Grow(w.joined[k][:0], size)
	for _, c := range calls {
		data = append(data, c.req.Inputs[k].Data...)
	}
	w.joined[k] = data
	return data
}

// makeRoom sees to it that there is memory for input k, if only none.
func (w *worker) makeRoom(k int) {
	for len(w.joined) <= k {
		w.joined = append(w.joined, nil)
	}
}

// split gives each call a view of its rows.
func (w *worker) split(calls []*call, rows int) error {
	for _, c := range calls {
		c.outputs, c.shapes = c.outputs[:0], c.shapes[:0]
	}
	for k := range w.outputs.Tensors {
		x := &w.outputs.Tensors[k]
		if b := w.scattered(k); b != nil {
			if err := scatter(calls, x, b); err != nil {
				return err
			}
			continue
		}
		if err := w.checkOutput(x, rows); err != nil {
			return err
		}
		if w.s.opts.Whole {
			calls[0].addOutput(x, x.Data)
			continue
		}
		cut := tensor.Split(x)
		for _, c := range calls {
			c.addOutput(x, cut.Next(c.item.Rows))
			c.shapes[len(c.shapes)-len(x.Shape)] = int64(c.item.Rows)
		}
	}
	for _, c := range calls {
		w.outputs.Memory.Retain()
		c.memory = w.outputs.Memory
	}
	return nil
}

// checkOutput makes sure that every row is there before rows are handed out.
func (w *worker) checkOutput(x *tensor.Tensor, rows int) error {
	if err := x.Check(); err != nil {
		return infer.Errorf(infer.Internal, "output %s of the model: %w", x.Name, err)
	}
	if !w.s.opts.Whole && (len(x.Shape) == 0 || x.Rows() != rows) {
		return infer.Errorf(infer.Internal, "output %s of the model has shape %v, expected %d rows", x.Name, x.Shape, rows)
	}
	return nil
}

// addOutput appends a view of x with the given data, and a shape of its own.
func (c *call) addOutput(x *tensor.Tensor, data []byte) {
	from := len(c.shapes)
	c.shapes = append(c.shapes, x.Shape...)
	c.outputs = append(c.outputs, tensor.Tensor{Name: x.Name, Type: x.Type, Shape: c.shapes[from:len(c.shapes):len(c.shapes)], Data: data})
}
