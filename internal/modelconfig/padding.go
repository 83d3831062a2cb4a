package modelconfig

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/shoal-serving/shoal/tensor"
)

// padKey is the parameter that says which inputs are padded with what. Triton has no field
// for it, and ignores unknown parameters.
const padKey = "pad"

// Values of the parameter other than a list of inputs.
const (
	padOff  = "off"  // no padding, as without the parameter
	padAuto = "auto" // a mask among the inputs says what is padded
)

// Padding describes how requests whose inputs differ in one dimension, their length, share a
// batch: inputs are padded to the greatest length, and outputs are cut back.
type Padding struct {
	Inputs   []PadInput // by index in Config.Inputs
	Detected bool       // from a mask among the inputs

	// Outputs is the dimension of each output that has the length of the request, by index in
	// Config.Outputs; 0 if there is none. It is set when padding was checked.
	Outputs []int
}

// A PadInput says how an input is padded.
type PadInput struct {
	Dim     int    // the dimension to pad, counted with the batch dimension; 0 means that it is not padded
	Element []byte // one element of padding
}

// Length returns the length of a request with the given inputs.
func (p *Padding) Length(inputs []tensor.Tensor) int64 {
	for i := range p.Inputs {
		if dim := p.Inputs[i].Dim; dim > 0 {
			return inputs[i].Shape[dim]
		}
	}
	return 0
}

// maskNames are the names of inputs by which a model knows padding.
var maskNames = []string{"attention_mask", "input_mask", "mask"}

// completePadding sets Padding from the parameter. Without it there is none: on a CPU it is not
// shown yet that a text encoder keeps its throughput while the policy tries padding. The symbols
// are the names of the dimensions of the model's inputs; engines without them pass a description
// without inputs.
func (c *Config) completePadding(model Description) error {
	c.Padding = nil
	value, written := c.Parameters[padKey]
	if value = strings.TrimSpace(value); !written || value == padOff {
		return nil
	}
	var p *Padding
	if value == padAuto {
		p = c.detectPadding()
	} else {
		var err error
		if p, err = c.writtenPadding(value); err != nil {
			return err
		}
	}
	if p == nil || !c.Tunes() || c.Ragged() != nil {
		return nil
	}
	if names := c.lengthNames(p, model); len(names) > 1 {
		if !p.Detected {
			return c.Wrong("parameters["+padKey+"]", fmt.Sprintf("%q", value), "inputs whose variable dimensions have the same name in the model, which has %s", strings.Join(names, " and "))
		}
		return nil
	}
	c.Padding = p
	return nil
}

// CompletePadding is what Complete does for padding, for engines without a description of
// the model.
func (c *Config) CompletePadding() error { return c.completePadding(Description{}) }

// PaddingOff reports whether the configuration forbids padding.
func (c *Config) PaddingOff() bool { return strings.TrimSpace(c.Parameters[padKey]) == padOff }

// writtenPadding reads the parameter, such as "input_ids=0 attention_mask=0".
func (c *Config) writtenPadding(value string) (*Padding, error) {
	wrong := func(found, expected string, args ...any) error {
		return c.Wrong("parameters["+padKey+"]", fmt.Sprintf("%q", found), expected, args...)
	}
	p := &Padding{Inputs: make([]PadInput, len(c.Inputs))}
	fields := strings.Fields(value)
	if len(fields) == 0 {
		return nil, wrong(value, "%q, %q, or inputs and what they are padded with, such as \"input_ids=0 attention_mask=0\"", padOff, padAuto)
	}
	for _, field := range fields {
		name, text, ok := strings.Cut(field, "=")
		at := slices.IndexFunc(c.Inputs, func(t Tensor) bool { return t.Name == name })
		if !ok || at < 0 {
			return nil, wrong(field, "NAME=VALUE, with one of the inputs %s", quoted(c.Inputs, tensorName))
		}
		dim, problem := lengthDim(c.Inputs[at])
		if problem != "" {
			return nil, wrong(field, "an input that can be padded; %s has %s", name, problem)
		}
		element, err := elementOf(c.Inputs[at].Type, text)
		if err != nil {
			return nil, wrong(field, "a value of type %s after the name", typeName(c.Inputs[at].Type))
		}
		p.Inputs[at] = PadInput{dim, element}
	}
	return p, nil
}

// detectPadding returns the padding of a model with a mask: all inputs of variable length
// are padded with zeros. It returns nil if there is no mask, or if an input cannot be padded.
func (c *Config) detectPadding() *Padding {
	p := &Padding{Inputs: make([]PadInput, len(c.Inputs)), Detected: true}
	masked := false
	for i, in := range c.Inputs {
		if !slices.Contains(in.Dims, -1) {
			continue
		}
		dim, problem := lengthDim(in)
		if problem != "" {
			return nil
		}
		p.Inputs[i] = PadInput{dim, make([]byte, in.Type.Size())}
		masked = masked || slices.Contains(maskNames, in.Name) && isInteger(in.Type)
	}
	if !masked {
		return nil
	}
	return p
}

// lengthDim returns the only variable dimension of an input, counted with the batch
// dimension, or what keeps the input from being padded.
func lengthDim(in Tensor) (dim int, problem string) {
	for i, d := range in.Dims {
		switch {
		case d != -1:
		case dim > 0:
			return 0, "several variable dimensions"
		default:
			dim = 1 + i
		}
	}
	switch {
	case dim == 0:
		return 0, "no variable dimension"
	case in.Reshape != nil:
		return 0, "a reshape"
	case in.Type == tensor.Bytes:
		return 0, "elements of different sizes"
	}
	return dim, ""
}

// lengthNames returns the different names that the padded dimensions have in the model.
func (c *Config) lengthNames(p *Padding, model Description) (names []string) {
	for i, in := range c.Inputs {
		dim := p.Inputs[i].Dim
		at := slices.IndexFunc(model.Inputs, func(port Port) bool { return port.Name == in.Name })
		if dim == 0 || at < 0 || dim >= len(model.Inputs[at].Symbols) {
			continue
		}
		if name := model.Inputs[at].Symbols[dim]; name != "" && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

func isInteger(t tensor.Type) bool {
	switch t {
	case tensor.Bool, tensor.Int8, tensor.Int16, tensor.Int32, tensor.Int64, tensor.Uint8, tensor.Uint16, tensor.Uint32, tensor.Uint64:
		return true
	}
	return false
}

// elementOf returns the bytes of one element with the given value.
func elementOf(t tensor.Type, text string) ([]byte, error) {
	var word [8]byte
	n, err := strconv.ParseInt(text, 10, 64)
	switch bits := 8 * t.Size(); {
	case err == nil && n == 0:
	case t == tensor.FP32 || t == tensor.FP64:
		f, err := strconv.ParseFloat(text, bits)
		if err != nil {
			return nil, err
		}
		if t == tensor.FP64 {
			binary.LittleEndian.PutUint64(word[:], math.Float64bits(f))
		} else {
			binary.LittleEndian.PutUint32(word[:], math.Float32bits(float32(f)))
		}
	case err != nil:
		return nil, err
	case !isInteger(t) || bits < 64 && (n >= 1<<bits || n < -1<<(bits-1)) || t == tensor.Bool && n != 1:
		return nil, strconv.ErrRange
	default:
		binary.LittleEndian.PutUint64(word[:], uint64(n))
	}
	return word[:t.Size()], nil
}

// A padGroup collects what requests must have in common to share a padded batch.
type padGroup struct {
	hash   shapeHash
	length int64
	fails  bool // padded inputs have different lengths, or none
}

// add adds an input, of which row is the shape without the batch dimension.
func (g *padGroup) add(in *PadInput, dims, row []int64) {
	if in.Dim == 0 {
		g.hash.add(dims, row)
		return
	}
	at := in.Dim - 1
	g.hash.add(dims[:at], row[:at])
	g.hash.add(dims[at+1:], row[at+1:])
	if g.length != 0 && g.length != row[at] || row[at] == 0 {
		g.fails = true
	}
	g.length = row[at]
}

// id returns the group of the request; 0 if it cannot be padded.
func (g *padGroup) id() uint64 {
	if g.fails || g.length == 0 {
		return 0
	}
	g.hash.addMissing(0) // so that it is not 0
	return uint64(g.hash)
}
