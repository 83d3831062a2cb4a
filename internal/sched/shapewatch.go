package sched

import (
	"context"
	"slices"

	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/tensor"
)

// A shapeVote detects when most recent batches have a shape other than the known one. It
// is the majority vote of Boyer and Moore with a bounded lead, so that old batches do not
// count for ever.
type shapeVote struct {
	known   uint64
	leading uint64 // the shape in the lead, if lead > 0
	lead    int    // batches of leading in excess of all others
}

// decisiveLead is the lead at which a shape counts as that of the traffic.
const decisiveLead = 16

// add counts a batch, and reports whether its shape is now that of the majority.
func (v *shapeVote) add(shape uint64) bool {
	switch {
	case v.lead > 0 && shape == v.leading:
		v.lead++
	case v.lead > 0:
		v.lead--
	case shape != v.known:
		v.leading, v.lead = shape, 1
	}
	return v.lead >= decisiveLead
}

// A shapeWatch is a vote whose result AwaitShapeChange waits for.
type shapeWatch struct {
	shapeVote
	result chan []tensor.Tensor // size 1: the result is sent once, under the scheduler's lock
}

// AwaitShapeChange returns when most recent batches have a shape other than known, which
// is an [infer.Request.Shape], or when ctx ends. The caller owns the tensors it returns:
// one row of each input of such a batch, without data. Only one goroutine may call it at
// a time.
func (s *Scheduler) AwaitShapeChange(ctx context.Context, known uint64) ([]tensor.Tensor, error) {
	w := &shapeWatch{shapeVote{known: known}, make(chan []tensor.Tensor, 1)}
	s.setShapeWatch(w)
	select {
	case row := <-w.result:
		return row, nil
	case <-ctx.Done():
		s.setShapeWatch(nil)
		return nil, context.Cause(ctx)
	}
}

func (s *Scheduler) setShapeWatch(w *shapeWatch) {
	s.locked(nil, func(batching.Time, *batching.Actions) { s.shapeWatch = w })
}

// observeShapeLocked counts a batch with the shape watch, and sends the result if that
// decides the vote. req is any request of the batch: all have the same shape.
func (s *Scheduler) observeShapeLocked(req *infer.Request) {
	if !s.shapeWatch.add(req.Shape) {
		return
	}
	var row []tensor.Tensor
	for _, x := range req.Inputs {
		shape := x.Shape
		if !s.opts.NoBatchDimension {
			shape = shape[1:]
		}
		row = append(row, tensor.Tensor{Name: x.Name, Type: x.Type, Shape: slices.Clone(shape)})
	}
	s.shapeWatch.result <- row
	s.shapeWatch = nil
}
