package sched

import (
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/tensor"
)

// ofDifferentShapes reports whether the rows of calls must be padded to share a batch.
func ofDifferentShapes(calls []*call) bool {
	for _, c := range calls[1:] {
		if c.item.Shape != calls[0].item.Shape {
			return true
		}
	}
	return false
}

// joinPadded concatenates the rows of all calls, padded to the greatest length.
func (w *worker) joinPadded(calls []*call, rows int) ([]tensor.Tensor, error) {
	p := w.s.opts.Padding
	longest := w.longest(calls)
	w.inputs, w.shapes = w.inputs[:0], w.shapes[:0]
	for k, x := range calls[0].req.Inputs {
		if err := w.paddable(calls, k); err != nil {
			return nil, err
		}
		dim := p.Inputs[k].Dim
		from := len(w.shapes)
		w.shapes = append(w.shapes, x.Shape...)
		w.shapes[from] = int64(rows)
		if dim == 0 {
			x.Data = w.concatenate(calls, k)
		} else {
			w.shapes[from+dim] = longest
			x.Data = w.concatenatePadded(calls, k, longest)
		}
		x.Shape = w.shapes[from:len(w.shapes):len(w.shapes)]
		w.inputs = append(w.inputs, x)
	}
	return w.inputs, nil
}

// longest returns the greatest length of the calls.
func (w *worker) longest(calls []*call) (length int64) {
	for _, c := range calls {
		length = max(length, w.s.opts.Padding.Length(c.req.Inputs))
	}
	return length
}

// paddable checks that input k of calls can be padded to one shape: apart from rows, it
// differs only in the dimension that is padded, which has the length of the request. The core
// compares only hashes; see joinable.
func (w *worker) paddable(calls []*call, k int) error {
	p := w.s.opts.Padding
	first := &calls[0].req.Inputs[k]
	for _, c := range calls {
		x := &c.req.Inputs[k]
		fits := x.Name == first.Name && x.Type == first.Type && len(x.Shape) == len(first.Shape)
		for i := 1; fits && i < len(x.Shape); i++ {
			if i == p.Inputs[k].Dim {
				fits = x.Shape[i] == p.Length(c.req.Inputs)
			} else {
				fits = x.Shape[i] == first.Shape[i]
			}
		}
		if !fits {
			return infer.Errorf(infer.Internal, "requests that cannot be padded to one shape were put in one batch: %s of shape %v and %v", x.Name, first.Shape, x.Shape)
		}
	}
	return nil
}

// concatenatePadded copies input k of all calls to w.joined[k], padded to the given length.
func (w *worker) concatenatePadded(calls []*call, k int, length int64) []byte {
	pad := &w.s.opts.Padding.Inputs[k]
	size := 0
	for _, c := range calls {
		x := &c.req.Inputs[k]
		size += len(x.Data) / max(1, int(x.Shape[pad.Dim])) * int(length) // a request may have no elements
	}
	data := w.emptyJoined(k, size)
	for _, c := range calls {
		data = tensor.AppendPadded(data, &c.req.Inputs[k], pad.Dim, length, pad.Element)
	}
	w.joined[k] = data
	return data
}

// cutDim returns the dimension of output k in which calls get their own length back; 0 if
// they get all of it.
func (w *worker) cutDim(calls []*call, k int) int {
	p := w.s.opts.Padding
	if p == nil || k >= len(p.Outputs) || !ofDifferentShapes(calls) {
		return 0
	}
	return p.Outputs[k]
}

// splitPadded gives each call its rows of output x, cut back to the call's length in the given
// dimension.
func (w *worker) splitPadded(calls []*call, x *tensor.Tensor, dim int) error {
	longest := w.longest(calls)
	if dim >= len(x.Shape) || x.Shape[dim] != longest {
		return infer.Errorf(infer.Internal, "output %s of the model has shape %v, expected %d in dimension %d, the length that the inputs were padded to", x.Name, x.Shape, longest, dim)
	}
	cut := tensor.Split(x)
	for _, c := range calls {
		length := w.s.opts.Padding.Length(c.req.Inputs)
		c.addOutput(x, cut.Next(c.item.Rows))
		out := &c.outputs[len(c.outputs)-1]
		out.Shape[0] = int64(c.item.Rows)
		out.Data = tensor.CutData(out, dim, length)
		out.Shape[dim] = length
	}
	return nil
}
