package modelconfig

import (
	"fmt"
	"slices"

	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/modelconfig/configpb"
	"github.com/shoal-serving/shoal/tensor"
)

// RowDims returns the dims of a row in the model's shape.
func (t *Tensor) RowDims() []int64 {
	if t.Reshape != nil {
		return t.Reshape
	}
	return t.Dims
}

// ModelShape returns the whole shape that the model uses for a tensor of the
// configuration.
func (c *Config) ModelShape(t Tensor) []int64 {
	switch {
	case t.Ragged:
		return []int64{-1} // all elements of all requests
	case c.MaxBatchSize > 0:
		return append([]int64{-1}, t.RowDims()...)
	}
	return t.RowDims()
}

// reshapeOf parses the shape that the model uses for a tensor instead of its dims; nil
// means the dims. A reshape must keep the elements: the variable dimensions stay in order,
// with the same number of elements between them.
func reshapeOf(field string, dims []int64, p *configpb.ModelTensorReshape, maxBatch int) ([]int64, error) {
	if p == nil {
		return nil, nil
	}
	shape := append([]int64{}, p.GetShape()...)
	field += ".reshape"
	if len(shape) == 0 && maxBatch == 0 {
		return nil, bad(field, "an empty shape", "at least one dimension, because max_batch_size is 0")
	}
	for i, d := range shape {
		if d < 1 && d != -1 {
			return nil, bad(fmt.Sprintf("%s.shape[%d]", field, i), d, "at least 1, or -1 for any size")
		}
	}
	have, ok := parts(shape)
	want, counted := parts(dims)
	if !ok || !counted || !slices.Equal(have, want) {
		return nil, bad(field+".shape", tensor.ShapeText(shape), "as many elements as dims %s, also between dimensions of -1", tensor.ShapeText(dims))
	}
	return shape, nil
}

// parts returns the numbers of elements before, between and after the variable dimensions.
// ok is false if one of them overflows.
func parts(dims []int64) (counts []int64, ok bool) {
	from := 0
	for i := 0; i <= len(dims); i++ {
		if i < len(dims) && dims[i] != -1 {
			continue
		}
		n, err := tensor.Elements(dims[from:i])
		if err != nil {
			return nil, false
		}
		counts, from = append(counts, n), i+1
	}
	return counts, true
}

// reshape converts a shape with rows of the dims from to one with rows of the dims to. The
// batch dimension, if the model has one, stays.
func (c *Config) reshape(shape, from, to []int64) []int64 {
	out := make([]int64, 0, 1+len(to))
	if c.MaxBatchSize > 0 {
		out, shape = append(out, shape[0]), shape[1:]
	}
	next := 0 // index in from, after the last variable dimension
	for _, d := range to {
		if d == -1 {
			next += slices.Index(from[next:], -1) + 1
			d = shape[next-1]
		}
		out = append(out, d)
	}
	return out
}

// reshapeInputs sets the inputs of a request to the shapes that the model expects.
func (c *Config) reshapeInputs(req *infer.Request) {
	copied := false
	for i := range c.Inputs {
		t := &c.Inputs[i]
		if t.Reshape == nil {
			continue
		}
		at := slices.IndexFunc(req.Inputs, func(x tensor.Tensor) bool { return x.Name == t.Name })
		if at < 0 {
			continue // an optional input is missing
		}
		if !copied {
			req.Inputs, copied = slices.Clone(req.Inputs), true
		}
		req.Inputs[at].Shape = c.reshape(req.Inputs[at].Shape, t.Dims, t.Reshape)
	}
}

// Restore sets the outputs of a response to the shapes that clients expect, where the
// model has others. If it fails, it releases the response.
func (c *Config) Restore(resp *infer.Response) error {
	for i := range c.Outputs {
		t := &c.Outputs[i]
		if t.Reshape == nil {
			continue
		}
		at := slices.IndexFunc(resp.Outputs, func(x tensor.Tensor) bool { return x.Name == t.Name })
		if at < 0 {
			continue // a model that runs requests one by one may omit outputs
		}
		out := &resp.Outputs[at]
		if !c.fits(out.Shape, t.Reshape) {
			err := infer.Errorf(infer.Internal, "output %s of the model has shape %s, expected %s",
				t.Name, tensor.ShapeText(out.Shape), tensor.ShapeText(c.ModelShape(*t)))
			resp.Release()
			return err
		}
		out.Shape = c.reshape(out.Shape, t.Reshape, t.Dims)
	}
	return nil
}
