package modelconfig

import (
	"fmt"
	"slices"
	"strings"

	"github.com/shoal-serving/shoal/internal/modelconfig/configpb"
)

// A Description is what a model's own file says of it. Engines give it.
type Description struct {
	// Inputs and Outputs have their whole shapes. If the model has a batch
	// dimension, it is the first one of each, and is -1.
	Inputs, Outputs []Tensor

	// Batchable says that the first dimension, where it is -1 everywhere, is
	// that of the batch: each row is computed by itself.
	Batchable bool

	// MaxBatch is the most rows of a batch if the configuration does not say.
	// Zero means DefaultMaxBatch.
	MaxBatch int
}

// DefaultMaxBatch is the most rows of a batch if nobody says, as in Triton.
const DefaultMaxBatch = 4

// Complete sets what the file leaves out from the model itself, and checks what
// it says against the model. As in Triton, a file that names inputs and outputs
// is complete: requests are not combined unless it says so. One that leaves
// either to the model leaves batching to it, too, as does an empty one: nobody is
// held for others to come then.
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
	c.fill(model)
	if err := c.compare("input", c.Inputs, model.Inputs); err != nil {
		return err
	}
	for _, in := range model.Inputs {
		if !slices.Contains(namesOf(c.Inputs), in.Name) {
			return c.Wrong("input", quoted(c.Inputs), "all inputs of the model, %s", quoted(model.Inputs))
		}
	}
	return c.compare("output", c.Outputs, model.Outputs) // some outputs may be left out
}

// sent returns the inputs of a model that requests bring, without batch inputs.
func (c *Config) sent(inputs []Tensor) []Tensor {
	return slices.DeleteFunc(slices.Clone(inputs), func(t Tensor) bool {
		return slices.ContainsFunc(c.BatchInputs, func(b BatchInput) bool { return b.Name == t.Name })
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
	if model.unbatchable() != "" {
		return
	}
	if lone := c.missing(model).withoutRow(); lone != "" {
		c.warn("max_batch_size", "is left at 0, because "+lone)
		return
	}
	c.MaxBatchSize = model.MaxBatch
	if c.MaxBatchSize == 0 {
		c.MaxBatchSize = DefaultMaxBatch
	}
	if c.Dynamic != nil {
		c.MaxBatchSize = slices.Max(append([]int{c.MaxBatchSize}, c.Dynamic.Preferred...))
	}
}

// checkSize returns an error if batches are asked of a model that has none.
func (c *Config) checkSize(model Description) error {
	why := c.used(model).unbatchable()
	if why == "" {
		why = c.missing(model).withoutRow()
	}
	switch {
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
		model.Outputs = slices.DeleteFunc(slices.Clone(model.Outputs), func(t Tensor) bool {
			return !slices.Contains(namesOf(c.Outputs), t.Name)
		})
	}
	return model
}

// missing returns of the model what fill will take from it.
func (c *Config) missing(model Description) Description {
	if len(c.Inputs) > 0 {
		model.Inputs = nil
	}
	if len(c.Outputs) > 0 {
		model.Outputs = nil
	}
	return model
}

// fill takes inputs and outputs from the model where the file has none.
func (c *Config) fill(model Description) {
	if len(c.Inputs) > 0 && len(c.Outputs) > 0 {
		return
	}
	if c.MaxBatchSize > 1 && c.Dynamic == nil {
		c.Dynamic = &Dynamic{}
	}
	if len(c.Inputs) == 0 {
		c.Inputs = c.rowsOf(model.Inputs)
	}
	if len(c.Outputs) == 0 {
		c.Outputs = c.rowsOf(model.Outputs)
	}
}

// rowsOf returns tensors without the batch dimension, if there is one.
func (c *Config) rowsOf(whole []Tensor) []Tensor {
	rows := slices.Clone(whole)
	for i := range rows {
		rows[i].Dims = slices.Clone(c.rowOf(rows[i].Dims))
	}
	return rows
}

func (c *Config) rowOf(shape []int64) []int64 {
	if c.MaxBatchSize > 0 {
		return shape[1:]
	}
	return shape
}

// compare checks the inputs or the outputs of the file against the model's.
func (c *Config) compare(kind string, written, whole []Tensor) error {
	for i, w := range written {
		field := fmt.Sprintf("%s[%d]", kind, i)
		at := slices.Index(namesOf(whole), w.Name)
		if at < 0 {
			return c.Wrong(field+".name", fmt.Sprintf("%q", w.Name), "one of the model's, %s", quoted(whole))
		}
		if m := whole[at]; w.Type != m.Type {
			return c.Wrong(field+".data_type", typeName(w), "%s, which the model has", typeName(m))
		}
		// An input may be narrower than the model's, and an output may not: the
		// answer has whichever shape the model gives it.
		if err := c.compareShape(field, w, whole[at].Dims, kind == "output"); err != nil {
			return err
		}
	}
	return nil
}

func (c *Config) compareShape(field string, t Tensor, whole []int64, output bool) error {
	switch {
	case t.Ragged && !slices.Equal(whole, []int64{-1}):
		return c.Wrong(field+".allow_ragged_batch", true, "false, because the model has shape %s, and not one dimension of any size", shapeText(whole))
	case t.Ragged || output && c.scattered(t.Name):
		return nil
	case t.Reshape != nil:
		return c.compareDims(field+".reshape.shape", t.Reshape, whole, output)
	}
	return c.compareDims(field+".dims", t.Dims, whole, output)
}

// scattered reports whether an output is handed out by the sizes of an input. The
// model may then give it in any shape.
func (c *Config) scattered(output string) bool {
	return slices.ContainsFunc(c.BatchOutputs, func(b BatchOutput) bool { return c.Outputs[b.Output].Name == output })
}

func (c *Config) compareDims(field string, dims, whole []int64, exact bool) error {
	model := c.rowOf(whole)
	if len(dims) != len(model) {
		after := ""
		if c.MaxBatchSize > 0 {
			after = " after that of the batch"
		}
		return c.Wrong(field, shapeText(dims), "as many dimensions as the model's %s has%s", shapeText(whole), after)
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
	if why := m.find(func(t Tensor) bool { return len(t.Dims) == 0 || t.Dims[0] != -1 }); why != "" {
		return why + ", where a batch needs a first dimension of any size"
	}
	if !m.Batchable {
		return "the model does not compute each row by itself"
	}
	return ""
}

// withoutRow says which tensor is nothing but its batch dimension, or nothing.
// Triton gives such a tensor a dimension of 1 and a reshape that takes it away
// again; here that is for the file to say.
func (m Description) withoutRow() string {
	if why := m.find(func(t Tensor) bool { return len(t.Dims) == 1 }); why != "" {
		return why + ", where a batch needs one more dimension"
	}
	return ""
}

func (m Description) find(is func(Tensor) bool) string {
	if i := slices.IndexFunc(m.Inputs, is); i >= 0 {
		return fmt.Sprintf("input %q of the model has shape %s", m.Inputs[i].Name, shapeText(m.Inputs[i].Dims))
	}
	if i := slices.IndexFunc(m.Outputs, is); i >= 0 {
		return fmt.Sprintf("output %q of the model has shape %s", m.Outputs[i].Name, shapeText(m.Outputs[i].Dims))
	}
	return ""
}

func namesOf(ts []Tensor) []string {
	names := make([]string, len(ts))
	for i, t := range ts {
		names[i] = t.Name
	}
	return names
}

func quoted(ts []Tensor) string {
	names := namesOf(ts)
	for i, name := range names {
		names[i] = fmt.Sprintf("%q", name)
	}
	return strings.Join(names, ", ")
}

// typeName returns the type of a tensor as a file has it. The two enumerations
// have the same values.
func typeName(t Tensor) string { return configpb.DataType(t.Type).String() }
