package modelconfig

import (
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/tensor"
)

func rawInput(inputs []tensor.Tensor) bool {
	return len(inputs) == 1 && inputs[0].Name == "" && inputs[0].Type == tensor.Invalid && inputs[0].Shape == nil
}

// completeRaw sets the name, type and shape of a raw input to those of the model's only
// input: one row, whose single variable dimension follows from the number of bytes. Check
// validates the result like any other input.
func (c *Config) completeRaw(req *infer.Request) error {
	if len(c.Inputs) != 1 {
		return requestError(req, "Raw request must only have 1 input (found 1) to be deduced but got %d inputs in '%s' model configuration",
			len(c.Inputs), c.Name)
	}
	want, in := &c.Inputs[0], req.Inputs[0]
	in.Name, in.Type = want.Name, want.Type
	if c.MaxBatchSize > 0 {
		in.Shape = append(in.Shape, 1)
	}
	if want.Type == tensor.Bytes {
		in.Shape = append(in.Shape, 1)
		in.Data = tensor.AppendString(nil, in.Data) // copied, to add the length prefix
	} else {
		in.Shape = append(in.Shape, want.Dims...)
		if err := c.completeShape(req, &in); err != nil {
			return err
		}
	}
	req.Inputs = []tensor.Tensor{in}
	return nil
}

// completeShape replaces the -1 in the shape of an input with the size that matches its
// data.
func (c *Config) completeShape(req *infer.Request, in *tensor.Tensor) error {
	var variable *int64
	for i := range in.Shape {
		if in.Shape[i] != -1 {
			continue
		}
		if variable != nil {
			return requestError(req, "The shape of the raw input '%s' can not be deduced because there are more than one variable-sized dimension", in.Name)
		}
		variable = &in.Shape[i]
		*variable = 1
	}
	if variable == nil {
		return nil
	}
	size, err := tensor.ByteSize(in.Type, in.Shape)
	if err != nil {
		return requestError(req, "input '%s' for model '%s': %w", in.Name, c.Name, err)
	}
	*variable = int64(len(in.Data)) / size
	return nil
}
