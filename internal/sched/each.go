package sched

import (
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/infer"
)

// list makes a batch of calls for an instance that takes them one by one. The
// slices of outputs are kept from batch to batch.
func (w *worker) list(calls []*call) {
	for len(w.batch) < len(calls) {
		w.batch = append(w.batch, engine.Call{})
	}
	w.batch = w.batch[:len(calls)]
	for i, c := range calls {
		b := &w.batch[i]
		b.Request, b.Parameters, b.Err, b.Opened = c.req, nil, nil, c.opened
		b.Outputs.Tensors, b.Outputs.Memory = b.Outputs.Tensors[:0], nil
	}
}

// settle moves to each call what became of it.
func (w *worker) settle(calls []*call) {
	for i, c := range calls {
		b := &w.batch[i]
		c.outputs, c.shapes = c.outputs[:0], c.shapes[:0]
		c.parameters, c.err = b.Parameters, b.Err
		if b.Err == nil {
			c.err = w.own(c, &b.Outputs)
		}
		if c.err != nil {
			b.Outputs.Memory.Release()
			b.Outputs.Memory = nil
			c.err = coded(c.err)
		}
		b.Request, b.Opened = nil, nil // nobody may look at them once the call is over
	}
}

// own makes outputs those of the call, if they are whole.
func (w *worker) own(c *call, out *engine.Outputs) error {
	for k := range out.Tensors {
		x := &out.Tensors[k]
		if err := x.Check(); err != nil {
			return infer.Errorf(infer.Internal, "output %s of the model: %w", x.Name, err)
		}
		c.addOutput(x, x.Data)
	}
	c.memory, out.Memory = out.Memory, nil
	return nil
}

// died returns what is closed when the instance dies. It is nil if it cannot, or if
// the core knows already, or if the instance shall leave: then it stays, dead, to fail
// those who wait if the scheduler closes.
func (w *worker) died() <-chan struct{} {
	if w.mortal == nil || w.away || w.quit.Err() != nil { // only this goroutine sets away
		return nil
	}
	return w.mortal.Died()
}

// mourn tells the core if the instance has died, so that it is given no batches.
func (w *worker) mourn() { w.s.locked(&w.out, w.mournLocked) }

func (w *worker) mournLocked(now batching.Time, out *batching.Actions) {
	select {
	case <-w.died():
	default:
		return
	}
	if w.dismissed {
		return // the core knows
	}
	w.away = true
	w.s.addLiving(-1)
	w.s.stepLocked(now, batching.Event{Kind: batching.Down, Instance: w.number}, out)
	w.failingLocked(now, out)
}

// failingLocked reports to the core if the dead instance is not expected back soon, so
// that requests do not wait for it.
func (w *worker) failingLocked(now batching.Time, out *batching.Actions) {
	if err := w.mortal.Failing(); err != nil {
		w.s.outage.Store(err)
		w.s.stepLocked(now, batching.Event{Kind: batching.Broken, Instance: w.number}, out)
	}
}

// comeBack revives the instance that has left, and tells the core that it is there
// again. It returns false if that is not wanted.
func (w *worker) comeBack() bool {
	if !w.away {
		return false
	}
	for !w.revive() && w.quit.Err() == nil {
		w.s.locked(&w.out, w.failingLocked)
	}
	// It lives, or the scheduler closes: then it comes back dead, to fail those who wait.
	w.s.locked(&w.out, func(now batching.Time, out *batching.Actions) {
		if w.dismissed {
			return
		}
		w.away = false
		w.s.outage.Store(nil)
		w.s.addLiving(1)
		w.s.stepLocked(now, batching.Event{Kind: batching.Up, Instance: w.number}, out)
	})
	return !w.away
}

// again runs the batch once more with the instance that died of it, if that can be
// started at the first attempt. If not, err stays what became of the batch.
func (w *worker) again(err error) error {
	if w.mortal.Failing() != nil {
		return err
	}
	w.s.addLiving(-1)
	back := w.revive()
	w.s.addLiving(1)
	if !back {
		return err
	}
	return w.attempt(w.calls, time.Since(w.s.began))
}

// revive makes one attempt to start the instance, and reports whether it lives again.
// The engine has logged why if not.
func (w *worker) revive() bool { return w.mortal.Revive(w.quit) == nil }

// dismiss lets the instance leave for good, when it has run its batch.
func (w *worker) dismiss() {
	w.s.locked(nil, func(now batching.Time, out *batching.Actions) {
		w.dismissed = true
		if !w.away {
			w.s.addLiving(-1)
			w.s.stepLocked(now, batching.Event{Kind: batching.Down, Instance: w.number}, out)
		}
	})
}
