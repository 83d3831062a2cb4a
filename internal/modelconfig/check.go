package modelconfig

import (
	"encoding/binary"
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/tensor"
)

// Check returns an error unless the model can run req, and completes req: it sorts the
// inputs in the order of the configuration, so that all requests of a batch agree, gives
// them the shapes that the model expects, and sets Rows, Shape, PadGroup and Elements. Optional
// inputs may be missing. Shape differs between requests whose inputs cannot be rows of one tensor, or
// that omit different inputs. It is a hash, so the scheduler compares the shapes again
// when it joins them.
//
// A single input without name, type and shape is a raw input, whose data is all that the
// client sent. It gets the three if the configuration leaves no choice.
//
// The errors have Triton's wording, because clients match parts of it. Check does not
// modify the inputs that it is given: changed inputs are in a new slice. It allocates
// nothing for a valid request whose inputs are in order and keep their shapes.
func (c *Config) Check(req *infer.Request) error {
	err := c.check(req)
	if e, ok := errors.AsType[*infer.Error](err); ok {
		e.Mismatch = true
	}
	return err
}

func (c *Config) check(req *infer.Request) error {
	if err := c.arrange(req); err != nil {
		return err
	}
	for _, name := range req.Outputs { // duplicates are allowed
		if !c.hasOutput(name) {
			return infer.Errorf(infer.Invalid, "unexpected inference output '%s' for model '%s'", name, c.Name)
		}
	}
	rows, err := c.rows(req)
	if err != nil {
		return err
	}
	if c.Sequence != nil {
		if err := c.checkSequence(req, rows); err != nil {
			return err
		}
	}
	shape, elements := shapeHash(0), int64(0)
	var group padGroup
	rest := req.Inputs
	for i := range c.Inputs {
		want := &c.Inputs[i]
		if len(rest) == 0 || rest[0].Name != want.Name {
			shape.addMissing(i)
			group.fails = true
			continue
		}
		in := &rest[0]
		rest = rest[1:]
		if err := c.checkInput(req, want, in); err != nil {
			return err
		}
		if !want.Ragged {
			row := in.Shape[len(in.Shape)-len(want.Dims):]
			if c.Padding != nil {
				group.add(&c.Padding.Inputs[i], want.Dims, row)
			}
			shape.add(want.Dims, row)
			elements += variableElements(want.Dims, row)
		}
	}
	c.reshapeInputs(req)
	req.Rows, req.Shape, req.PadGroup, req.Elements = rows, uint64(shape), group.id(), elements
	return nil
}

func (c *Config) hasOutput(name string) bool {
	for i := range c.Outputs {
		if c.Outputs[i].Name == name {
			return true
		}
	}
	return false
}

// arrange sorts the inputs of req in the order of the configuration. All of them are
// known, and only optional ones are missing.
func (c *Config) arrange(req *infer.Request) error {
	switch {
	case rawInput(req.Inputs):
		return c.completeRaw(req)
	case c.inOrder(req.Inputs):
		return nil
	}
	return c.reorder(req)
}

func (c *Config) inOrder(inputs []tensor.Tensor) bool {
	for i := range c.Inputs {
		switch {
		case len(inputs) > 0 && inputs[0].Name == c.Inputs[i].Name:
			inputs = inputs[1:]
		case !c.Inputs[i].Optional:
			return false
		}
	}
	return len(inputs) == 0
}

func (c *Config) reorder(req *infer.Request) error {
	given := make(map[string]tensor.Tensor, len(req.Inputs))
	for _, in := range req.Inputs {
		if _, twice := given[in.Name]; twice {
			return requestError(req, "input '%s' already exists in request", in.Name)
		}
		given[in.Name] = in
	}
	missing := c.missing(given)
	if n := len(req.Inputs); n > len(c.Inputs) || n < c.required() {
		return c.inputCountError(req, missing)
	}
	inputs := make([]tensor.Tensor, 0, len(c.Inputs))
	for i := range c.Inputs {
		if in, ok := given[c.Inputs[i].Name]; ok {
			inputs = append(inputs, in)
			delete(given, in.Name)
		}
	}
	for _, in := range req.Inputs {
		if _, left := given[in.Name]; left {
			return infer.Errorf(infer.Invalid, "unexpected inference input '%s' for model '%s'", in.Name, c.Name)
		}
	}
	if len(missing) > 0 { // others have been sent in its place
		return c.inputCountError(req, missing)
	}
	req.Inputs = inputs
	return nil
}

// required returns the number of inputs that are not optional.
func (c *Config) required() (n int) {
	for i := range c.Inputs {
		if !c.Inputs[i].Optional {
			n++
		}
	}
	return n
}

// missing returns the required inputs that are not in given, quoted.
func (c *Config) missing(given map[string]tensor.Tensor) (names []string) {
	for _, want := range c.Inputs {
		if _, ok := given[want.Name]; !ok && !want.Optional {
			names = append(names, "'"+want.Name+"'")
		}
	}
	return names
}

// inputCountError returns the error that lists the inputs given and missing. Like Triton, it
// lists the given ones in reverse order, and omits a bracket when none is missing.
func (c *Config) inputCountError(req *infer.Request, missing []string) error {
	var got []string
	for _, in := range slices.Backward(req.Inputs) {
		got = append(got, "'"+in.Name+"'")
	}
	open := "["
	if missing == nil {
		open = ""
	}
	expected := strconv.Itoa(len(c.Inputs)) + " inputs"
	if least := c.required(); least < len(c.Inputs) {
		expected = "number of inputs between " + strconv.Itoa(least) + " and " + strconv.Itoa(len(c.Inputs))
	}
	return requestError(req, "expected %s but got %d inputs for model '%s'. Got input(s) [%s], but missing required input(s) %s%s]. "+
		"Please provide all required input(s).",
		expected, len(req.Inputs), c.Name, strings.Join(got, ","), open, strings.Join(missing, ","))
}

// rows returns the size of the batch dimension, which all inputs must share. As in Triton,
// the last input defines it, so that errors name the same input.
func (c *Config) rows(req *infer.Request) (int, error) {
	if c.MaxBatchSize == 0 || len(req.Inputs) == 0 {
		return 1, nil
	}
	rows := int64(-1)
	for i := len(req.Inputs) - 1; i >= 0; i-- {
		in := &req.Inputs[i]
		switch {
		case len(in.Shape) == 0:
			return 0, requestError(req, "input '%s' has no shape but model requires batch dimension for '%s'", in.Name, c.Name)
		case rows < 0:
			rows = in.Shape[0]
		case rows != in.Shape[0]:
			return 0, requestError(req, "input '%s' batch size does not match other inputs for '%s'", in.Name, c.Name)
		}
		if in.Shape[0] < 1 {
			return 0, requestError(req, "inference request batch-size must be >= 1 for '%s'", c.Name)
		}
	}
	if rows > int64(c.MaxBatchSize) {
		return 0, requestError(req, "inference request batch-size must be <= %d for '%s'", c.MaxBatchSize, c.Name)
	}
	return int(rows), nil
}

func (c *Config) checkInput(req *infer.Request, want *Tensor, in *tensor.Tensor) error {
	if in.Type != want.Type {
		got := in.Type.String()
		if in.Type == tensor.Invalid {
			got = "<invalid>"
		}
		return requestError(req, "inference input '%s' data-type is '%s', but model '%s' expects '%s'", in.Name, got, c.Name, want.Type).
			WithHint("%s", conversionHint(want.Type))
	}
	if !c.fits(in.Shape, want.Dims) {
		return c.shapeError(req, want, in)
	}
	if in.Check() != nil {
		return c.dataSizeError(req, in)
	}
	return nil
}

// fits reports whether a shape matches dims, after the batch dimension if the model has
// one.
func (c *Config) fits(shape, dims []int64) bool {
	if c.MaxBatchSize > 0 {
		if len(shape) == 0 {
			return false
		}
		shape = shape[1:]
	}
	if len(shape) != len(dims) {
		return false
	}
	for i, d := range dims {
		if shape[i] < 0 || d != -1 && shape[i] != d {
			return false
		}
	}
	return true
}

func (c *Config) shapeError(req *infer.Request, want *Tensor, in *tensor.Tensor) error {
	dims, note := want.Dims, ""
	if c.MaxBatchSize > 0 {
		dims = append([]int64{-1}, dims...)
		note = " NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be prepended to each input shape." +
			" If you want to specify the full shape including the batch dim in your input dims config, try setting max_batch_size to zero." +
			" See the model configuration docs for more info on max_batch_size."
	}
	return requestError(req, "unexpected shape for input '%s' for model '%s'. Expected %s, got %s.%s",
		in.Name, c.Name, tensor.ShapeText(dims), tensor.ShapeText(in.Shape), note)
}

// dataSizeError returns the error for an input whose data does not match its shape.
func (c *Config) dataSizeError(req *infer.Request, in *tensor.Tensor) error {
	if in.Type == tensor.Bytes {
		return c.stringCountError(req, in)
	}
	want, err := tensor.ByteSize(in.Type, in.Shape)
	if err != nil {
		return requestError(req, "input '%s' for model '%s': %w", in.Name, c.Name, err)
	}
	return requestError(req, "input byte size mismatch for input '%s' for model '%s'. Expected %d, got %d", in.Name, c.Name, want, len(in.Data))
}

func (c *Config) stringCountError(req *infer.Request, in *tensor.Tensor) error {
	want, err := tensor.Elements(in.Shape)
	if err != nil {
		return requestError(req, "input '%s' for model '%s': %w", in.Name, c.Name, err)
	}
	got, rest := int64(0), in.Data
	for len(rest) > 0 {
		if len(rest) < 4 {
			return infer.Errorf(infer.Invalid, "incomplete string length indicator for inference input '%s', expecting 4 bytes but only %d bytes available",
				in.Name, len(rest))
		}
		size := binary.LittleEndian.Uint32(rest)
		rest = rest[4:]
		if int64(size) > int64(len(rest)) {
			return infer.Errorf(infer.Invalid, "incomplete string data for inference input '%s', expecting string of length %d but only %d bytes available",
				in.Name, size, len(rest))
		}
		rest = rest[size:]
		got++
	}
	return requestError(req, "expected %d string elements for inference input '%s' for model '%s', got %d", want, in.Name, c.Name, got)
}

// requestError returns an error with the id of the request.
func requestError(req *infer.Request, format string, args ...any) *infer.Error {
	return infer.Errorf(infer.Invalid, "[request id: %s] "+format, append([]any{req.IDOrUnknown()}, args...)...)
}

// A shapeHash is FNV-1a over the sizes of variable dimensions, with words instead of
// bytes. It is 0 if there are none. It has no collisions for a single size, or for two
// sizes below 2^24: the prime is slightly larger than 2^40, so that the second size cannot
// cancel the change of the upper bits by the first.
type shapeHash uint64

// add adds the sizes of the variable dimensions.
func (h *shapeHash) add(dims, shape []int64) {
	const offset, prime = 14695981039346656037, 1099511628211
	for i, d := range dims {
		if d != -1 {
			continue
		}
		if *h == 0 {
			*h = offset
		}
		*h = (*h ^ shapeHash(shape[i])) * prime
	}
}

// addMissing adds that input i is missing, as a size that no dimension can have.
func (h *shapeHash) addMissing(i int) { h.add([]int64{-1}, []int64{-1 - int64(i)}) }

// variableElements returns the number of elements of a row; 0 if none of its dimensions is
// variable.
func variableElements(dims, row []int64) int64 {
	if !slices.Contains(dims, -1) {
		return 0
	}
	n := int64(1)
	for _, d := range row {
		n *= d // the check of the data's size has excluded an overflow
	}
	return n
}
