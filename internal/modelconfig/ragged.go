package modelconfig

import (
	"fmt"
	"slices"

	"github.com/shoal-serving/shoal/internal/modelconfig/configpb"
	"github.com/shoal-serving/shoal/tensor"
)

// A BatchInput is an input that the server adds: it describes to the model how the
// requests of a batch are laid out in another input.
type BatchInput struct {
	Name   string
	Type   tensor.Type // Int32 or FP32
	Kind   BatchKind
	Source int // index in Config.Inputs of the input that it describes
}

// A BatchKind is the content of a batch input. The values are those of the file.
type BatchKind uint8

// Counts are of all elements of a request; shapes are of its rows, one for each row.
const (
	ElementCount             BatchKind = iota // of each request
	AccumulatedCount                          // of each request and all before it
	AccumulatedCountWithZero                  // the same, preceded by 0
	MaxCountAsShape                           // the size of the tensor is the largest count; its elements are zero
	ItemShape                                 // a row of numbers for each row of the batch
	ItemShapeFlat                             // the same in one dimension
)

// A BatchOutput is an output that is split by the sizes of an input instead of by rows.
type BatchOutput struct {
	Output int // index in Config.Outputs
	Source int // index in Config.Inputs

	// Dims is the shape of one request's part, including the batch dimension. A -1 is replaced
	// with the size of the request's input.
	Dims []int64
}

// Ragged describes how requests of different sizes share a batch.
type Ragged struct {
	// Flat reports for each input whether the model receives all elements of all requests in
	// one dimension.
	Flat []bool

	Inputs  []BatchInput // follow the inputs of the requests
	Outputs []BatchOutput
}

// Ragged returns the layout of the model's batches, or nil if all its inputs and outputs
// are split by rows.
func (c *Config) Ragged() *Ragged {
	r := &Ragged{Inputs: c.BatchInputs, Outputs: c.BatchOutputs}
	for _, in := range c.Inputs {
		r.Flat = append(r.Flat, in.Ragged)
	}
	if len(r.Inputs) == 0 && len(r.Outputs) == 0 && !slices.Contains(r.Flat, true) {
		return nil
	}
	return r
}

func (c *Config) readRagged() error {
	for i, in := range c.Proto.GetInput() {
		c.Inputs[i].Ragged = in.GetAllowRaggedBatch()
	}
	if err := c.readBatchInputs(); err != nil {
		return err
	}
	if err := c.readBatchOutputs(); err != nil {
		return err
	}
	if c.MaxBatchSize == 0 && c.Ragged() != nil {
		return bad("max_batch_size", 0, "at least 1, because allow_ragged_batch, batch_input and batch_output are about batches")
	}
	return nil
}

func (c *Config) readBatchInputs() error {
	var taken []string
	for _, in := range c.Inputs {
		taken = append(taken, in.Name)
	}
	for i, p := range c.Proto.GetBatchInput() {
		field := fmt.Sprintf("batch_input[%d]", i)
		if _, known := configpb.BatchInput_Kind_name[int32(p.GetKind())]; !known {
			return bad(field+".kind", p.GetKind(), "a kind such as BATCH_ELEMENT_COUNT")
		}
		if t := p.GetDataType(); t != configpb.DataType_TYPE_INT32 && t != configpb.DataType_TYPE_FP32 {
			return bad(field+".data_type", t, "TYPE_INT32 or TYPE_FP32")
		}
		source, err := c.source(field, p.GetSourceInput())
		if err != nil {
			return err
		}
		if len(p.GetTargetName()) == 0 {
			return bad(field+".target_name", "no name", "that of an input of the model")
		}
		for j, name := range p.GetTargetName() {
			if slices.Contains(taken, name) {
				return bad(fmt.Sprintf("%s.target_name[%d]", field, j), fmt.Sprintf("%q again", name), "each input of the model once")
			}
			taken = append(taken, name)
			c.BatchInputs = append(c.BatchInputs, BatchInput{
				Name: name, Type: tensor.Type(p.GetDataType()), Kind: BatchKind(p.GetKind()), Source: source,
			})
		}
	}
	return nil
}

func (c *Config) readBatchOutputs() error {
	var taken []string
	for i, p := range c.Proto.GetBatchOutput() {
		field := fmt.Sprintf("batch_output[%d]", i)
		if p.GetKind() != configpb.BatchOutput_BATCH_SCATTER_WITH_INPUT_SHAPE {
			return bad(field+".kind", p.GetKind(), "BATCH_SCATTER_WITH_INPUT_SHAPE")
		}
		source, err := c.source(field, p.GetSourceInput())
		if err != nil {
			return err
		}
		if len(p.GetTargetName()) == 0 {
			return bad(field+".target_name", "no name", "one of the file's outputs [%s]", quoted(c.Outputs, tensorName))
		}
		for j, name := range p.GetTargetName() {
			field := fmt.Sprintf("%s.target_name[%d]", field, j)
			if slices.Contains(taken, name) {
				return bad(field, fmt.Sprintf("%q again", name), "each output once")
			}
			taken = append(taken, name)
			output := slices.IndexFunc(c.Outputs, func(t Tensor) bool { return t.Name == name })
			if output < 0 {
				return bad(field, fmt.Sprintf("%q", name), "one of the file's outputs [%s]", quoted(c.Outputs, tensorName))
			}
			b := BatchOutput{Output: output, Source: source, Dims: append([]int64{-1}, c.Outputs[output].RowDims()...)}
			if err := c.checkScatter(field, b); err != nil {
				return err
			}
			c.BatchOutputs = append(c.BatchOutputs, b)
		}
	}
	return nil
}

// source returns the index of the input that a batch input or output refers to.
func (c *Config) source(field string, names []string) (int, error) {
	field += ".source_input"
	if len(names) != 1 {
		return 0, bad(field, fmt.Sprintf("%d names", len(names)), "one")
	}
	at := slices.IndexFunc(c.Inputs, func(t Tensor) bool { return t.Name == names[0] })
	if at < 0 {
		return 0, bad(field, fmt.Sprintf("%q", names[0]), "one of the file's inputs [%s]", quoted(c.Inputs, tensorName))
	}
	return at, nil
}

// compareBatchInputs checks the batch inputs against the inputs of the model.
func (c *Config) compareBatchInputs(inputs []Port) error {
	for _, b := range c.BatchInputs {
		field := c.batchField(b.Name)
		at := slices.IndexFunc(inputs, func(p Port) bool { return p.Name == b.Name })
		if at < 0 {
			return c.Wrong(field+".target_name", fmt.Sprintf("%q", b.Name), "one of the model's inputs, %s", quoted(inputs, portName))
		}
		in, rank := inputs[at], 1
		if b.Kind == ItemShape {
			rank = 2
		}
		switch {
		case b.Type != in.Type:
			return c.Wrong(field+".data_type", typeName(b.Type), "%s, as in the model", typeName(in.Type))
		case !in.AnyShape && len(in.Dims) != rank:
			return c.Wrong(field+".kind", fmt.Sprintf("%v, which has %d dimensions", configpb.BatchInput_Kind(b.Kind), rank), "one with %d, as %q of the model has", len(in.Dims), b.Name)
		}
	}
	return nil
}

// batchField returns the field that defines a batch input.
func (c *Config) batchField(name string) string {
	at := slices.IndexFunc(c.Proto.GetBatchInput(), func(p *configpb.BatchInput) bool { return slices.Contains(p.GetTargetName(), name) })
	return fmt.Sprintf("batch_input[%d]", max(0, at))
}

// checkScatter returns an error unless the input has a dimension wherever the output takes
// its size from it.
func (c *Config) checkScatter(field string, b BatchOutput) error {
	source := &c.Inputs[b.Source]
	for i, d := range b.Dims {
		if d == -1 && i > len(source.RowDims()) {
			return bad(field, fmt.Sprintf("an output of shape %s", tensor.ShapeText(b.Dims)),
				"one whose dimensions of -1 also exist in input %q, which has %d with the batch dimension", source.Name, 1+len(source.RowDims()))
		}
	}
	return nil
}
