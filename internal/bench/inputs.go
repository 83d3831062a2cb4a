package bench

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/shoal-serving/shoal/tensor"
)

// stringLength is the default length of random strings.
const stringLength = 128

// A Model is the metadata of a model.
type Model struct {
	Name   string
	Inputs []Input
	// MaxBatch is the maximum number of rows of a request; 0 means that the model has no
	// batch dimension, and -1 that it is unknown.
	MaxBatch int
	// HasSequences reports whether its requests must belong to sequences.
	HasSequences bool
}

// An Input is an input of a model.
type Input struct {
	Name  string
	Type  tensor.Type
	Shape []int64 // including the batch dimension, if any; -1 means any size
}

// Data describes the contents of requests.
type Data struct {
	Rows   int                // 0 means 1
	Shapes map[string][]int64 // without the batch dimension, of inputs with variable shape
	Random bool               // random values instead of zeroes and empty strings
	Seed   uint64             // of random values

	StringLength int     // of random strings; 0 means 128
	Text         *string // value of all strings, instead of random ones

	Samples []Sample // given values, instead of the above
}

// batched reports whether the first dimension of each input is the batch dimension. If that
// is unknown, it is so if the first dimension of all inputs is variable.
func (m Model) batched() bool {
	if m.MaxBatch >= 0 {
		return m.MaxBatch > 0
	}
	return !slices.ContainsFunc(m.Inputs, func(in Input) bool { return len(in.Shape) == 0 || in.Shape[0] != -1 })
}

// Requests returns the requests to send in turn: one that begins with each sample, or a
// single generated one.
func (m Model) Requests(d Data, priority uint64) ([]Request, error) {
	if d.Samples == nil {
		inputs, err := m.Fill(d)
		return []Request{{inputs, priority}}, err
	}
	if err := m.check(d); err != nil {
		return nil, err
	}
	var all []Request
	for n := range d.Samples {
		inputs, err := m.join(d, n)
		if err != nil {
			return nil, err
		}
		all = append(all, Request{inputs, priority})
	}
	return all, nil
}

// check returns an error if the model cannot process the data.
func (m Model) check(d Data) error {
	rows := max(1, d.Rows)
	switch {
	case !m.batched() && rows > 1:
		return fmt.Errorf("model %q has no batch dimension, so requests cannot have %d rows: leave the batch size at 1", m.Name, rows)
	case m.MaxBatch > 0 && rows > m.MaxBatch:
		return fmt.Errorf("model %q takes up to %d rows per request, not %d", m.Name, m.MaxBatch, rows)
	}
	for name := range d.Shapes {
		if !slices.ContainsFunc(m.Inputs, func(in Input) bool { return in.Name == name }) {
			return fmt.Errorf("cannot set the shape of %q: model %q has the inputs %s", name, m.Name, m.names())
		}
	}
	return nil
}

// Fill returns the inputs of a generated request.
func (m Model) Fill(d Data) ([]tensor.Tensor, error) {
	if err := m.check(d); err != nil {
		return nil, err
	}
	chance := rand.New(rand.NewPCG(d.Seed, 0))
	var all []tensor.Tensor
	for _, in := range m.Inputs {
		shape, err := m.shape(in, d.Shapes[in.Name])
		if err != nil {
			return nil, err
		}
		t := tensor.Tensor{Name: in.Name, Type: in.Type, Shape: m.withRows(shape, d.Rows)}
		if t.Data, err = d.fill(in.Type, t.Shape, chance); err != nil {
			return nil, fmt.Errorf("input %q: %w", in.Name, err)
		}
		all = append(all, t)
	}
	return all, nil
}

// shape returns the shape of an input without its batch dimension.
func (m Model) shape(in Input, given []int64) ([]int64, error) {
	own := in.Shape
	if m.batched() {
		if len(own) == 0 {
			return nil, fmt.Errorf("input %q has no dimensions, so it cannot have rows, and the server says that requests of model %q have up to %d", in.Name, m.Name, m.MaxBatch)
		}
		own = own[1:]
	}
	return in.settle(own, given)
}

// withRows returns the shape of an input with its batch dimension, if the model has one.
func (m Model) withRows(shape []int64, rows int) []int64 {
	if !m.batched() {
		return shape
	}
	return append([]int64{int64(max(1, rows))}, shape...)
}

func (m Model) names() string {
	var names []string
	for _, in := range m.Inputs {
		names = append(names, fmt.Sprintf("%q", in.Name))
	}
	return strings.Join(names, ", ")
}

// settle returns the shape of an input: its own if that is fixed, or the given one if it is
// compatible.
func (in Input) settle(own, given []int64) ([]int64, error) {
	if given == nil {
		if slices.Contains(own, -1) {
			return nil, fmt.Errorf("input %q has the variable shape %v: set it with --shape %s:…", in.Name, own, in.Name)
		}
		return own, nil
	}
	fits := len(own) == len(given)
	for i := 0; fits && i < len(own); i++ {
		fits = own[i] == -1 || own[i] == given[i]
	}
	if !fits {
		return nil, fmt.Errorf("the given shape of input %[1]q is %[3]v, but the model requires %[2]v (both without the batch dimension)", in.Name, own, given)
	}
	return given, nil
}

func (d Data) fill(t tensor.Type, shape []int64, chance *rand.Rand) ([]byte, error) {
	n, err := tensor.Elements(shape)
	if err != nil {
		return nil, err
	}
	if t == tensor.Bytes {
		var data []byte
		for range n {
			data = tensor.AppendString(data, d.text(chance))
		}
		return data, nil
	}
	size, err := tensor.ByteSize(t, shape)
	if err != nil {
		return nil, err
	}
	data := make([]byte, 0, size)
	if !d.Random {
		return data[:size], nil
	}
	for range n {
		data = appendRandom(data, t, chance)
	}
	return data, nil
}

// appendRandom appends a random element: a floating-point number from 0 to 1 (for 16-bit
// types from 0.5 to 1), or an integer that is 0 or 1, because many models use integers as
// indices or masks.
func appendRandom(data []byte, t tensor.Type, chance *rand.Rand) []byte {
	switch t {
	case tensor.FP32:
		return binary.LittleEndian.AppendUint32(data, math.Float32bits(chance.Float32()))
	case tensor.FP64:
		return binary.LittleEndian.AppendUint64(data, math.Float64bits(chance.Float64()))
	case tensor.FP16:
		return binary.LittleEndian.AppendUint16(data, 0x3800|uint16(chance.IntN(1<<10)))
	case tensor.BF16:
		return binary.LittleEndian.AppendUint16(data, 0x3f00|uint16(chance.IntN(1<<7)))
	}
	data = append(data, byte(chance.IntN(2)))
	return append(data, make([]byte, t.Size()-1)...)
}

// text returns the value of a string element.
func (d Data) text(chance *rand.Rand) string {
	switch {
	case d.Text != nil:
		return *d.Text
	case !d.Random:
		return ""
	}
	s := make([]byte, cmp.Or(d.StringLength, stringLength))
	for i := range s {
		s[i] = byte('a' + chance.IntN(26))
	}
	return string(s)
}
