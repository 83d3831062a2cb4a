package sched

import (
	"context"
	"slices"

	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/tensor"
)

// A vote says when most of the recent batches have another shape than the known
// one. It is the majority vote of Boyer and Moore, in which no lead is larger than
// what settles it, so that what was long ago does not count.
type vote struct {
	known   uint64
	leading uint64 // another
	lead    int    // of its batches over all others; 0 means that none leads
}

// settles is the lead at which a shape is that of the traffic.
const settles = 16

// cast takes in a batch, and reports whether its shape is that of most.
func (v *vote) cast(shape uint64) bool {
	switch {
	case v.lead > 0 && shape == v.leading:
		v.lead++
	case v.lead > 0:
		v.lead--
	case shape != v.known:
		v.leading, v.lead = shape, 1
	}
	return v.lead >= settles
}

// A watch is a vote that somebody waits for.
type watch struct {
	vote
	settled chan []tensor.Tensor // size 1: it is told once
}

// Another returns when most of the recent batches had another shape than the known
// one, as [infer.Request] has it, or when ctx ends. What it returns is the caller's: a
// row of each input of such a batch, without data. One may wait at a time.
func (s *Scheduler) Another(ctx context.Context, known uint64) ([]tensor.Tensor, error) {
	w := &watch{vote{known: known}, make(chan []tensor.Tensor, 1)}
	s.setWatch(w)
	select {
	case row := <-w.settled:
		return row, nil
	case <-ctx.Done():
		s.setWatch(nil)
		return nil, context.Cause(ctx)
	}
}

func (s *Scheduler) setWatch(w *watch) {
	s.locked(nil, func(batching.Time, *batching.Actions) { s.watch = w })
}

// watchLocked takes in a request of a batch, whose requests all have one shape.
func (s *Scheduler) watchLocked(req *infer.Request) {
	if !s.watch.cast(req.Shape) {
		return
	}
	var row []tensor.Tensor
	for _, x := range req.Inputs {
		shape := x.Shape
		if !s.opts.Whole {
			shape = shape[1:]
		}
		row = append(row, tensor.Tensor{Name: x.Name, Type: x.Type, Shape: slices.Clone(shape)})
	}
	s.watch.settled <- row
	s.watch = nil
}
