package sched

import (
	"encoding/binary"
	"math"

	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/modelconfig"
	"github.com/shoal-serving/shoal/tensor"
)

// joinRagged joins the inputs of a model that takes requests of different sizes, and adds
// the batch inputs that describe where each request begins. A single call is converted in
// the same way.
func (w *worker) joinRagged(calls []*call, rows int) ([]tensor.Tensor, error) {
	r := w.s.opts.Ragged
	if err := joinable(calls, r.Flat); err != nil {
		return nil, err
	}
	w.inputs, w.shapes = w.inputs[:0], w.shapes[:0]
	for k, x := range calls[0].req.Inputs {
		if len(calls) > 1 {
			x.Data = w.concatenate(calls, k)
		}
		from := len(w.shapes)
		if r.Flat[k] {
			w.shapes = append(w.shapes, totalElements(calls, k))
		} else {
			w.shapes = append(w.shapes, x.Shape...)
			w.shapes[from] = int64(rows)
		}
		x.Shape = w.shapes[from:len(w.shapes):len(w.shapes)]
		w.inputs = append(w.inputs, x)
	}
	for _, in := range r.Inputs {
		w.sourceShapes = w.sourceShapes[:0]
		for _, c := range calls {
			w.sourceShapes = append(w.sourceShapes, c.req.Inputs[in.Source].Shape)
		}
		k := len(w.inputs)
		w.growJoined(k)
		x := tensor.Tensor{Name: in.Name, Type: in.Type}
		x.Data, x.Shape = appendBatchInput(w.joined[k][:0], in, w.sourceShapes)
		w.joined[k] = x.Data
		w.inputs = append(w.inputs, x)
	}
	return w.inputs, nil
}

// totalElements returns the number of elements of input k in all calls.
func totalElements(calls []*call, k int) int64 {
	sum := int64(0)
	for _, c := range calls {
		sum += elementCount(c.req.Inputs[k].Shape)
	}
	return sum
}

// elementCount returns the number of elements of a shape that has been validated.
func elementCount(shape []int64) int64 {
	n, _ := tensor.Elements(shape)
	return n
}

// appendBatchInput computes a batch input from the shapes that its source input has in
// each request. It appends the input's data to data, and returns that and the input's
// shape.
func appendBatchInput(data []byte, in modelconfig.BatchInput, sources [][]int64) ([]byte, []int64) {
	put := func(n int64) {
		if in.Type == tensor.FP32 {
			data = binary.LittleEndian.AppendUint32(data, math.Float32bits(float32(n)))
		} else {
			data = binary.LittleEndian.AppendUint32(data, uint32(int32(n)))
		}
	}
	sum, most, rows, rank := int64(0), int64(0), int64(0), int64(0)
	if in.Kind == modelconfig.AccumulatedCountWithZero {
		put(0)
	}
	for _, shape := range sources {
		n := elementCount(shape)
		sum, most, rows, rank = sum+n, max(most, n), rows+shape[0], int64(len(shape)-1)
		switch in.Kind {
		case modelconfig.ElementCount:
			put(n)
		case modelconfig.AccumulatedCount, modelconfig.AccumulatedCountWithZero:
			put(sum)
		case modelconfig.ItemShape, modelconfig.ItemShapeFlat:
			for range shape[0] {
				for _, d := range shape[1:] {
					put(d)
				}
			}
		case modelconfig.MaxCountAsShape:
		}
	}
	switch in.Kind {
	case modelconfig.MaxCountAsShape:
		return append(data, make([]byte, most*int64(in.Type.Size()))...), []int64{most}
	case modelconfig.ItemShape:
		return data, []int64{rows, rank}
	}
	return data, []int64{int64(len(data) / in.Type.Size())}
}

// scatterRule returns how the elements of an output are distributed to the requests. It
// returns nil for an output that is split by rows.
func (w *worker) scatterRule(output int) *modelconfig.BatchOutput {
	if w.s.opts.Ragged == nil {
		return nil
	}
	for i := range w.s.opts.Ragged.Outputs {
		if b := &w.s.opts.Ragged.Outputs[i]; b.Output == output {
			return b
		}
	}
	return nil
}

// scatter gives each call a view of its elements of output x.
func scatter(calls []*call, x *tensor.Tensor, b *modelconfig.BatchOutput) error {
	if err := x.Check(); err != nil {
		return infer.Errorf(infer.Internal, "output %s of the model: %w", x.Name, err)
	}
	left := elementCount(x.Shape)
	cut := tensor.Split(&tensor.Tensor{Type: x.Type, Shape: []int64{left}, Data: x.Data})
	for _, c := range calls {
		part := tensor.Tensor{Name: x.Name, Type: x.Type, Shape: partShape(b, c.req.Inputs[b.Source].Shape)}
		n, err := tensor.Elements(part.Shape)
		if err != nil || n > left {
			return scatterError(x, b, calls)
		}
		left -= n
		c.addOutput(&part, cut.Next(int(n)))
	}
	if left > 0 {
		return scatterError(x, b, calls)
	}
	return nil
}

// partShape returns the shape of one request's part of an output, given the shape of the
// request's source input.
func partShape(b *modelconfig.BatchOutput, source []int64) []int64 {
	shape := append([]int64(nil), b.Dims...)
	for i, d := range shape {
		if d == -1 {
			shape[i] = source[i]
		}
	}
	return shape
}

func scatterError(x *tensor.Tensor, b *modelconfig.BatchOutput, calls []*call) error {
	return infer.Errorf(infer.Internal, "output %s of the model has shape %v, whose number of elements does not match dims %v with the sizes of input %s in %d requests",
		x.Name, x.Shape, b.Dims, calls[0].req.Inputs[b.Source].Name, len(calls))
}
