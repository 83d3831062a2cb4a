package modelconfig

import (
	"fmt"
	"slices"
	"strings"

	"github.com/shoal-serving/shoal/internal/modelconfig/configpb"
	"github.com/shoal-serving/shoal/tensor"
)

// A Description is what a model's own file says of it. Engines give it.
type Description struct {
	// If the model has a batch dimension, it is the first one of each, and is -1.
	Inputs, Outputs []Port

	// Batchable says that the first dimension, where it is -1 everywhere, is
	// that of the batch: each row is computed by itself.
	Batchable bool

	// MaxBatch is the most rows of a batch if the configuration does not say.
	// Zero means DefaultMaxBatch.
	MaxBatch int
}

// A Port is an input or an output as the model's own file has it.
type Port struct {
	Name     string
	Type     tensor.Type // Invalid means that it cannot be served, and Kind what it is
	Kind     string
	Dims     []int64 // its whole shape; a scalar has none
	AnyShape bool    // the model does not even say how many dimensions it has
}

// The most rows of a batch if nobody says: Triton's, and that of a model whose
// batches are measured, which then says itself how many are worth it.
const (
	DefaultMaxBatch   = 4
	AutomaticMaxBatch = 64
)

// Complete sets what the file leaves out from the model itself, and checks what
// it says against the model. As in Triton, a file that names inputs and outputs
// is complete: requests are not combined unless it says so. One that leaves
// either to the model leaves batching to it, too, as does an empty one: nobody is
// held for others to come then.
//
// A scalar, which has no dimension besides that of the batch, has dims [1] in a
// configuration, also if there is no batch: engines take the dimension away, and
// add it to what comes out.
//
// A second version of a model may be given to the same Config; it is then
// checked against the first one.
func (c *Config) Complete(model Description) error {
	if err := c.compareBatchInputs(model.Inputs); err != nil {
		return err
	}
	model.Inputs = c.sent(model.Inputs)
	if c.sizeLeftOut() {
		c.chooseSize(model)
	}
	if err := c.checkSize(model); err != nil {
		return err
	}
	if err := c.fill(model); err != nil {
		return err
	}
	if err := c.compare("input", c.Inputs, model.Inputs); err != nil {
		return err
	}
	for _, in := range model.Inputs {
		if !slices.ContainsFunc(c.Inputs, func(t Tensor) bool { return t.Name == in.Name }) {
			return c.Wrong("input", quoted(c.Inputs, tensorName), "all inputs of the model, %s", quoted(model.Inputs, portName))
		}
	}
	return c.compare("output", c.Outputs, model.Outputs) // some outputs may be left out
}

// Adopt is Complete for a model that gives a whole configuration: told is taken
// where the file says nothing.
func (c *Config) Adopt(told *Config) error {
	written := c.MaxBatchSize > 0 || c.Proto != nil && c.Proto.MaxBatchSize != nil
	if !written || c.MaxBatchSize > 0 && told.MaxBatchSize > c.MaxBatchSize {
		c.MaxBatchSize = told.MaxBatchSize
	}
	if c.MaxBatchSize != told.MaxBatchSize {
		return c.Wrong("max_batch_size", c.MaxBatchSize, "%d, which the model has", told.MaxBatchSize)
	}
	if len(c.Inputs) == 0 {
		c.Inputs = told.Inputs
	}
	if len(c.Outputs) == 0 {
		c.Outputs = told.Outputs
	}
	if c.Dynamic == nil && c.Proto.GetSchedulingChoice() == nil {
		c.Dynamic = told.Dynamic
	}
	if c.Proto.GetModelTransactionPolicy() == nil {
		c.Decoupled = told.Decoupled
	}
	return nil
}

// Scalar reports whether a port is one number for each row, or for all if there
// are no rows.
func (c *Config) Scalar(p Port) bool { return !p.AnyShape && len(c.rowOf(p.Dims)) == 0 }

// sent returns the inputs of a model that requests bring, without batch inputs.
func (c *Config) sent(inputs []Port) []Port {
	return slices.DeleteFunc(slices.Clone(inputs), func(p Port) bool {
		return slices.ContainsFunc(c.BatchInputs, func(b BatchInput) bool { return b.Name == p.Name })
	})
}

// Incomplete reports whether the file leaves inputs or outputs to the model.
func (c *Config) Incomplete() bool { return len(c.Inputs) == 0 || len(c.Outputs) == 0 }

// sizeLeftOut reports whether max_batch_size is for the model to say. If the
// file names inputs and outputs it is not: their dims are whole shapes then.
func (c *Config) sizeLeftOut() bool {
	written := c.MaxBatchSize > 0 || c.Proto != nil && c.Proto.MaxBatchSize != nil
	return !written && c.Incomplete()
}

// chooseSize sets a max_batch_size that the file leaves out. A preferred size
// that is larger than the default is reason enough for a larger one.
func (c *Config) chooseSize(model Description) {
	if c.used(model).unbatchable() != "" || c.Apart != "" {
		return
	}
	c.MaxBatchSize = model.MaxBatch
	switch {
	case c.MaxBatchSize > 0:
	case c.Automatic:
		c.MaxBatchSize = AutomaticMaxBatch
	default:
		c.MaxBatchSize = DefaultMaxBatch
	}
	if c.Dynamic != nil {
		c.MaxBatchSize = slices.Max(append([]int{c.MaxBatchSize}, c.Dynamic.Preferred...))
	}
}

// checkSize returns an error if batches are asked of a model that has none.
func (c *Config) checkSize(model Description) error {
	switch why := c.used(model).unbatchable(); {
	case why == "":
		return nil
	case c.MaxBatchSize > 0:
		return c.Wrong("max_batch_size", c.MaxBatchSize, "0, because %s", why)
	case c.Dynamic != nil && len(c.Dynamic.Preferred) > 0:
		return c.Wrong("dynamic_batching.preferred_batch_size", c.Dynamic.Preferred, "none, because %s", why)
	}
	return nil
}

// used returns the model without the outputs that the file leaves out of those
// it names.
func (c *Config) used(model Description) Description {
	if len(c.Outputs) > 0 {
		model.Outputs = slices.DeleteFunc(slices.Clone(model.Outputs), func(p Port) bool {
			return !slices.ContainsFunc(c.Outputs, func(t Tensor) bool { return t.Name == p.Name })
		})
	}
	return model
}

// fill takes inputs and outputs from the model where the file has none.
func (c *Config) fill(model Description) (err error) {
	if len(c.Inputs) > 0 && len(c.Outputs) > 0 {
		return nil
	}
	if c.MaxBatchSize > 1 && c.Dynamic == nil && c.Apart == "" {
		c.Dynamic = &Dynamic{Added: true}
	}
	if len(c.Inputs) == 0 {
		if c.Inputs, err = c.tensorsOf("input", model.Inputs); err != nil {
			return err
		}
	}
	if len(c.Outputs) == 0 {
		c.Outputs, err = c.tensorsOf("output", model.Outputs)
	}
	return err
}

// tensorsOf returns the model's ports as a file would have them.
func (c *Config) tensorsOf(kind string, ports []Port) ([]Tensor, error) {
	var ts []Tensor
	for _, p := range ports {
		switch {
		case p.Type == tensor.Invalid:
			return nil, c.Wrong(kind, "none", "those that can be served to be in a config.pbtxt, because %s %q of the model is a %s", kind, p.Name, p.Kind)
		case p.AnyShape:
			return nil, c.Wrong(kind, "none", "its dims to be in a config.pbtxt, because the model does not say how many dimensions %s %q has", kind, p.Name)
		}
		ts = append(ts, Tensor{Name: p.Name, Type: p.Type, Dims: c.dimsOf(p)})
	}
	return ts, nil
}

// dimsOf returns the dims of a port as a file would have them, in memory of their
// own.
func (c *Config) dimsOf(p Port) []int64 {
	if c.Scalar(p) {
		return []int64{1}
	}
	return slices.Clone(c.rowOf(p.Dims))
}

// rowOf returns a shape without the batch dimension, if there is one.
func (c *Config) rowOf(shape []int64) []int64 {
	if c.MaxBatchSize > 0 && len(shape) > 0 {
		return shape[1:]
	}
	return shape
}

// compare checks the inputs or the outputs of the file against the model's.
func (c *Config) compare(kind string, written []Tensor, ports []Port) error {
	for i, w := range written {
		field := fmt.Sprintf("%s[%d]", kind, i)
		at := slices.IndexFunc(ports, func(p Port) bool { return p.Name == w.Name })
		if at < 0 {
			return c.Wrong(field+".name", fmt.Sprintf("%q", w.Name), "one of the model's, %s", quoted(ports, portName))
		}
		switch p := ports[at]; {
		case p.Type == tensor.Invalid:
			return c.Wrong(field+".data_type", typeName(w.Type), "no such %s, because the model's is a %s, which cannot be served", kind, p.Kind)
		case w.Type != p.Type:
			return c.Wrong(field+".data_type", typeName(w.Type), "%s, which the model has", typeName(p.Type))
		}
		// An input may be narrower than the model's, and an output may not: the
		// answer has whichever shape the model gives it.
		if err := c.compareShape(field, w, ports[at], kind == "output"); err != nil {
			return err
		}
	}
	return nil
}

func (c *Config) compareShape(field string, t Tensor, p Port, output bool) error {
	switch {
	case p.AnyShape:
		return nil
	case t.Ragged && !slices.Equal(p.Dims, []int64{-1}):
		return c.Wrong(field+".allow_ragged_batch", true, "false, because the model has shape %s, and not one dimension of any size", tensor.ShapeText(p.Dims))
	case t.Ragged || output && c.scattered(t.Name):
		return nil
	case t.Reshape != nil:
		return c.compareDims(field+".reshape.shape", t.Reshape, c.rowOf(p.Dims), p, output)
	}
	return c.compareDims(field+".dims", t.Dims, c.dimsOf(p), p, output)
}

// scattered reports whether an output is handed out by the sizes of an input. The
// model may then give it in any shape.
func (c *Config) scattered(output string) bool {
	return slices.ContainsFunc(c.BatchOutputs, func(b BatchOutput) bool { return c.Outputs[b.Output].Name == output })
}

func (c *Config) compareDims(field string, dims, model []int64, p Port, exact bool) error {
	if len(dims) != len(model) {
		batch := ""
		switch {
		case c.MaxBatchSize > 0:
			batch = ", and max_batch_size stands for the first of them"
		case len(dims)+1 == len(model) && model[0] == -1:
			batch = ", unless max_batch_size stands for the first of them"
		}
		return c.Wrong(field, tensor.ShapeText(dims), "%s, because the model has %s%s", tensor.ShapeText(model), tensor.ShapeText(p.Dims), batch)
	}
	for i, d := range dims {
		if d != model[i] && (exact || model[i] != -1) {
			return c.Wrong(fmt.Sprintf("%s[%d]", field, i), d, "%d, which the model has", model[i])
		}
	}
	return nil
}

// unbatchable says why rows of several requests cannot be run together, or
// nothing if they can.
func (m Description) unbatchable() string {
	fixed := func(p Port) bool { // what cannot be served is for others to find
		return p.Type != tensor.Invalid && !p.AnyShape && (len(p.Dims) == 0 || p.Dims[0] != -1)
	}
	if why := m.find(fixed); why != "" {
		return why + ", where a batch needs a first dimension of any size"
	}
	if !m.Batchable {
		return "the model does not compute each row by itself"
	}
	return ""
}

func (m Description) find(is func(Port) bool) string {
	if i := slices.IndexFunc(m.Inputs, is); i >= 0 {
		return fmt.Sprintf("input %q of the model has shape %s", m.Inputs[i].Name, tensor.ShapeText(m.Inputs[i].Dims))
	}
	if i := slices.IndexFunc(m.Outputs, is); i >= 0 {
		return fmt.Sprintf("output %q of the model has shape %s", m.Outputs[i].Name, tensor.ShapeText(m.Outputs[i].Dims))
	}
	return ""
}

func tensorName(t Tensor) string { return t.Name }
func portName(p Port) string     { return p.Name }

func quoted[T any](all []T, name func(T) string) string {
	names := make([]string, len(all))
	for i, one := range all {
		names[i] = fmt.Sprintf("%q", name(one))
	}
	return strings.Join(names, ", ")
}

// typeName returns a type as a file has it. The two enumerations have the same
// values.
func typeName(t tensor.Type) string { return configpb.DataType(t).String() }
