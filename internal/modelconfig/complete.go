package modelconfig

import (
	"fmt"
	"slices"
	"strings"

	"github.com/shoal-serving/shoal/internal/modelconfig/configpb"
	"github.com/shoal-serving/shoal/tensor"
)

// A Description is what a model file says about the model. Engines return it.
type Description struct {
	// If the model has a batch dimension, it is the first one of each, and is -1.
	Inputs, Outputs []Port

	// Batchable reports whether the first dimension, if it is -1 everywhere, is the batch
	// dimension: rows are independent of each other.
	Batchable bool

	// MaxBatch is the maximum number of rows of a batch if the configuration does not set it.
	// Zero means DefaultMaxBatch.
	MaxBatch int
}

// A Port is an input or an output of a model file.
type Port struct {
	Name     string
	Type     tensor.Type // Invalid means that the type is not supported; Kind describes it
	Kind     string
	Dims     []int64 // the whole shape; empty for a scalar
	AnyShape bool    // the number of dimensions is unknown
	Optional bool    // the model has a value for the input, and runs without it

	// Symbols are the names of variable dimensions, by index; "" for those without a name. Nil
	// if the file has no names.
	Symbols []string
}

// Default of max_batch_size: Triton's, and that of models whose batches are measured, for
// which the automatic policy chooses the size.
const (
	DefaultMaxBatch   = 4
	AutomaticMaxBatch = 64
)

// Defaults are settings of a backend for models whose configuration omits them. The zero
// Defaults set nothing.
type Defaults struct {
	MaxBatch   int               // see [Config.DefaultMaxBatch]
	Parameters map[string]string // for the engine
}

// Apply sets what the file omits. It must be called before Complete.
func (d Defaults) Apply(c *Config) {
	c.DefaultMaxBatch = d.MaxBatch
	for key, value := range d.Parameters {
		if _, written := c.Parameters[key]; !written {
			c.Parameters[key] = value
		}
	}
}

// Complete sets what the configuration file omits from the model, and checks the rest
// against the model. As in Triton, a file that lists inputs and outputs is complete:
// requests are not combined unless it says so. A file that omits either, or is empty, also
// leaves batching to the model: requests are then combined without a queue delay.
//
// A scalar, which has no dimension besides the batch dimension, has dims [1] in a
// configuration, even without a batch dimension: engines remove that dimension from inputs
// and add it to outputs.
//
// Complete may be called again for another version of the model, which is then checked
// against the first.
func (c *Config) Complete(model Description) error {
	if err := c.compareBatchInputs(model.Inputs); err != nil {
		return err
	}
	model.Inputs = c.clientInputs(model.Inputs)
	if c.batchSizeFromModel() {
		c.setBatchSize(model)
	}
	if err := c.checkSlots(); err != nil {
		return c.withPosition(err)
	}
	model, err := c.compareSequence(model)
	if err != nil {
		return err
	}
	if err := c.checkBatchSize(model); err != nil {
		return err
	}
	if err := c.fill(model); err != nil {
		return err
	}
	if err := c.compareOptional(model.Inputs); err != nil {
		return err
	}
	if err := c.compare("input", c.Inputs, model.Inputs); err != nil {
		return err
	}
	for _, in := range required(model.Inputs) {
		if !slices.ContainsFunc(c.Inputs, func(t Tensor) bool { return t.Name == in.Name }) {
			return c.Wrong("input", quoted(c.Inputs, tensorName), "all inputs of the model, %s", quoted(required(model.Inputs), portName))
		}
	}
	if err := c.compare("output", c.Outputs, model.Outputs); err != nil { // some outputs may be omitted
		return err
	}
	return c.completePadding(model)
}

// required returns the inputs that the model has no value for.
func required(inputs []Port) []Port {
	return slices.DeleteFunc(slices.Clone(inputs), func(p Port) bool { return p.Optional })
}

// compareOptional checks the inputs that requests may omit against the model. As in Triton,
// a model with a batch dimension has none: one request of a batch could omit what another
// sends.
func (c *Config) compareOptional(inputs []Port) error {
	for i, in := range c.Inputs {
		field := fmt.Sprintf("input[%d].optional", i)
		switch at := slices.IndexFunc(inputs, func(p Port) bool { return p.Name == in.Name }); {
		case !in.Optional || at < 0: // compare reports one that the model does not have
		case !inputs[at].Optional:
			return c.Invalid(field, "the model has no value for input %q, and needs it in each request; remove optional, or export the model with an initializer for it", in.Name)
		case c.MaxBatchSize > 0:
			return c.Invalid(field, "an ONNX model with a batch dimension needs all its inputs; set max_batch_size: 0, or remove optional")
		}
	}
	return nil
}

// Adopt is Complete for a model that returns a whole configuration, which supplies what the
// file omits.
func (c *Config) Adopt(model *Config) error {
	written := c.MaxBatchSize > 0 || c.Proto != nil && c.Proto.MaxBatchSize != nil
	if !written || c.MaxBatchSize > 0 && model.MaxBatchSize > c.MaxBatchSize {
		c.MaxBatchSize, c.ModelSetsBatchSize = model.MaxBatchSize, true
	}
	if c.MaxBatchSize != model.MaxBatchSize {
		return c.Wrong("max_batch_size", c.MaxBatchSize, "%d, as in the model", model.MaxBatchSize)
	}
	c.Inputs, c.Outputs = withMissing(c.Inputs, model.Inputs), withMissing(c.Outputs, model.Outputs)
	c.listStates()
	if c.Dynamic == nil && c.Proto.GetSchedulingChoice() == nil {
		c.Dynamic = model.Dynamic
	}
	if c.Proto.GetModelTransactionPolicy() == nil {
		c.Decoupled = model.Decoupled
	}
	return c.withPosition(c.checkSlots())
}

// withMissing returns tensors and those of the model that have other names.
func withMissing(all, model []Tensor) []Tensor {
	all = slices.Clip(all)
	for _, t := range model {
		if !slices.ContainsFunc(all, func(have Tensor) bool { return have.Name == t.Name }) {
			all = append(all, t)
		}
	}
	return all
}

// Scalar reports whether a port has one element per row, or a single one without a batch
// dimension.
func (c *Config) Scalar(p Port) bool { return !p.AnyShape && len(c.rowOf(p.Dims)) == 0 }

// clientInputs returns the inputs of a model that clients send, without batch inputs.
func (c *Config) clientInputs(inputs []Port) []Port {
	return slices.DeleteFunc(slices.Clone(inputs), func(p Port) bool {
		return slices.ContainsFunc(c.BatchInputs, func(b BatchInput) bool { return b.Name == p.Name })
	})
}

// Incomplete reports whether the file omits inputs or outputs.
func (c *Config) Incomplete() bool { return len(c.Inputs) == 0 || len(c.Outputs) == 0 }

// batchSizeFromModel reports whether the model determines max_batch_size. It does not if the file
// lists inputs and outputs: their dims are whole shapes then.
func (c *Config) batchSizeFromModel() bool {
	written := c.MaxBatchSize > 0 || c.Proto != nil && c.Proto.MaxBatchSize != nil
	return !written && c.Incomplete()
}

// setBatchSize sets a max_batch_size that the file omits. A preferred size that is larger
// than the default increases it.
func (c *Config) setBatchSize(model Description) {
	if c.used(model).unbatchable() != "" || c.CombineUnsafeReason != "" {
		return
	}
	c.MaxBatchSize = model.MaxBatch
	switch {
	case c.MaxBatchSize > 0:
	case c.DefaultMaxBatch > 0:
		c.MaxBatchSize = c.DefaultMaxBatch
	case c.Automatic:
		c.MaxBatchSize = AutomaticMaxBatch
	default:
		c.MaxBatchSize = DefaultMaxBatch
	}
	if c.Dynamic != nil {
		c.MaxBatchSize = slices.Max(append([]int{c.MaxBatchSize}, c.Dynamic.Preferred...))
	}
	if c.Sequence != nil {
		c.MaxBatchSize = slices.Max(append([]int{c.MaxBatchSize}, c.Sequence.Preferred...))
	}
}

// checkBatchSize returns an error if the file enables batching for a model without a batch
// dimension.
func (c *Config) checkBatchSize(model Description) error {
	switch why := c.used(model).unbatchable(); {
	case why == "":
		return nil
	case c.MaxBatchSize > 0:
		return c.Wrong("max_batch_size", c.MaxBatchSize, "0, because %s", why)
	case c.Dynamic != nil && len(c.Dynamic.Preferred) > 0:
		return c.Invalid("dynamic_batching.preferred_batch_size", "remove it, because requests of this model cannot be combined: %s", why)
	}
	return nil
}

// used returns the model without the outputs that the file omits, if it lists any, and
// without inputs that it does not need.
func (c *Config) used(model Description) Description {
	model.Inputs = required(model.Inputs)
	if len(c.Outputs) > 0 {
		model.Outputs = slices.DeleteFunc(slices.Clone(model.Outputs), func(p Port) bool {
			return !slices.ContainsFunc(c.Outputs, func(t Tensor) bool { return t.Name == p.Name })
		})
	}
	return model
}

// fill sets the inputs and outputs that the file omits.
func (c *Config) fill(model Description) (err error) {
	if len(c.Inputs) > 0 && len(c.Outputs) > 0 {
		return nil
	}
	if c.MaxBatchSize > 1 && c.Dynamic == nil && c.Sequence == nil && c.CombineUnsafeReason == "" {
		c.Dynamic = &Dynamic{Added: true}
	}
	if len(c.Inputs) == 0 {
		if c.Inputs, err = c.tensorsOf("input", required(model.Inputs)); err != nil {
			return err
		}
	}
	if len(c.Outputs) == 0 {
		c.Outputs, err = c.tensorsOf("output", model.Outputs)
	}
	return err
}

// tensorsOf converts the model's ports to tensors of a configuration.
func (c *Config) tensorsOf(kind string, ports []Port) ([]Tensor, error) {
	var ts []Tensor
	for _, p := range ports {
		switch {
		case p.Type == tensor.Invalid:
			return nil, c.Invalid(kind, "%s %q of the model is a %s, which is not supported yet; list the %ss to serve in config.pbtxt without it, or export the model without it", kind, p.Name, p.Kind, kind)
		case p.AnyShape:
			return nil, c.Invalid(kind, "the model does not say how many dimensions its %s %q has; list its %ss with their dims in config.pbtxt", kind, p.Name, kind)
		}
		ts = append(ts, Tensor{Name: p.Name, Type: p.Type, Dims: c.dimsOf(p)})
	}
	return ts, nil
}

// dimsOf returns a port's dims for a configuration. The result is a new slice.
func (c *Config) dimsOf(p Port) []int64 {
	if c.Scalar(p) {
		return []int64{1}
	}
	return slices.Clone(c.rowOf(p.Dims))
}

// rowOf returns a shape without the batch dimension, if the model has one.
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
			return c.Wrong(field+".name", fmt.Sprintf("%q", w.Name), "one of the model's %ss, %s", kind, quoted(ports, portName))
		}
		switch p := ports[at]; {
		case p.Type == tensor.Invalid:
			return c.Invalid(field+".data_type", "%s %q of the model is a %s, which is not supported yet; remove it from config.pbtxt, or export the model without it", kind, w.Name, p.Kind)
		case w.Type != p.Type:
			return c.Wrong(field+".data_type", typeName(w.Type), "%s, as in the model", typeName(p.Type))
		}
		// The file may restrict the shape of an input, but not that of an output, which the model
		// determines.
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
		return c.Wrong(field+".allow_ragged_batch", true, "false, because the model's input has shape %s, and a ragged batch needs [-1]", tensor.ShapeText(p.Dims))
	case t.Ragged || output && c.scattered(t.Name):
		return nil
	case t.Reshape != nil:
		return c.compareDims(field+".reshape.shape", t.Reshape, c.rowOf(p.Dims), p, output)
	}
	return c.compareDims(field+".dims", t.Dims, c.dimsOf(p), p, output)
}

// scattered reports whether an output is split by the sizes of an input. The model may
// return it in any shape.
func (c *Config) scattered(output string) bool {
	return slices.ContainsFunc(c.BatchOutputs, func(b BatchOutput) bool { return c.Outputs[b.Output].Name == output })
}

func (c *Config) compareDims(field string, dims, model []int64, p Port, exact bool) error {
	if len(dims) != len(model) {
		batch := ""
		switch {
		case c.MaxBatchSize > 0:
			batch = ", of which max_batch_size replaces the first dimension"
		case len(dims)+1 == len(model) && model[0] == -1:
			batch = "; omit the first dimension only if max_batch_size is at least 1"
		}
		return c.Wrong(field, tensor.ShapeText(dims), "%s, because the model has %s%s", tensor.ShapeText(model), tensor.ShapeText(p.Dims), batch)
	}
	for i, d := range dims {
		if d != model[i] && (exact || model[i] != -1) {
			return c.Wrong(fmt.Sprintf("%s[%d]", field, i), d, "%d, as in the model", model[i])
		}
	}
	return nil
}

// unbatchable returns why rows of several requests cannot be combined, or "" if they can.
func (m Description) unbatchable() string {
	fixed := func(p Port) bool { // unsupported ports are reported elsewhere
		return p.Type != tensor.Invalid && !p.AnyShape && (len(p.Dims) == 0 || p.Dims[0] != -1)
	}
	if why := m.find(fixed); why != "" {
		return why + ", whose first dimension is fixed; to batch its requests, export it with a dynamic first dimension"
	}
	if !m.Batchable {
		return "the rows of its inputs are not independent"
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

// typeName returns the name of a type in a configuration. The two enumerations have the
// same values.
func typeName(t tensor.Type) string { return configpb.DataType(t).String() }
