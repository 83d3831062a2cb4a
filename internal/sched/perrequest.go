package sched

import (
	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/infer"
)

// prepareCalls fills w.engineCalls for an instance that takes the requests of a batch one
// by one. The slices of outputs are reused from batch to batch.
func (w *worker) prepareCalls(calls []*call) {
	for len(w.engineCalls) < len(calls) {
		w.engineCalls = append(w.engineCalls, engine.Call{})
	}
	w.engineCalls = w.engineCalls[:len(calls)]
	for i, c := range calls {
		b := &w.engineCalls[i]
		b.Request, b.Parameters, b.Err, b.Opened, b.Again, b.Streaming = c.req, nil, nil, c.stream, false, c.streaming || c.empty || c.probe
		b.Left = &c.left
		if c.probe {
			b.Opened = nil // no client would read the stream, and the model would wait when it is full
		}
		b.Outputs.Tensors, b.Outputs.Memory = b.Outputs.Tensors[:0], nil
	}
}

// collectCalls moves the results in w.engineCalls to the calls.
func (w *worker) collectCalls(calls []*call) {
	for i, c := range calls {
		b := &w.engineCalls[i]
		c.outputs, c.shapes = c.outputs[:0], c.shapes[:0]
		c.parameters, c.err = b.Parameters, b.Err
		c.item.Again, c.streaming = b.Again && w.s.iterative() && !c.empty, b.Streaming
		if b.Err == nil && !c.item.Again {
			c.err = w.adopt(c, &b.Outputs)
		}
		if c.err != nil || c.item.Again {
			b.Outputs.Memory.Release()
			b.Outputs.Memory = nil
			c.err = withCode(c.err)
		}
		b.Request, b.Opened, b.Left = nil, nil, nil // not valid once the call is over
	}
}

// noteStreams notes which calls of a batch that failed have streams. Their clients have the error.
func (w *worker) noteStreams(calls []*call) {
	for i, c := range calls {
		c.streaming = c.streaming || w.engineCalls[i].Streaming
	}
}

// adopt makes the call the owner of out, if the tensors in it are valid.
func (w *worker) adopt(c *call, out *engine.Outputs) error {
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
