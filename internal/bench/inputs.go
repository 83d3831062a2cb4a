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

// stringLength is how many characters random strings have.
const stringLength = 128

// A Model is what a server says of a model.
type Model struct {
	Name   string
	Inputs []Input
	// MaxBatch is how many rows a request may have; 0 means that the model has no
	// rows, and -1 that the server does not report it.
	MaxBatch int
}

// An Input is one that a model takes.
type Input struct {
	Name  string
	Type  tensor.Type
	Shape []int64 // with the rows, if the model has them; -1 means any size
}

// Data says what requests are filled with.
type Data struct {
	Rows   int                // 0 means 1
	Shapes map[string][]int64 // without the rows, of inputs that have no fixed shape
	Random bool               // in place of zeroes and empty strings
	Seed   uint64             // the same one gives the same data

	StringLength int     // of random strings; 0 means 128
	Text         *string // what all strings are, in place of random ones

	Samples []Sample // in place of all that
}

// batched reports whether the first dimension of each input counts rows. If the
// server does not report it, they do if all of them may have any size.
func (m Model) batched() bool {
	if m.MaxBatch >= 0 {
		return m.MaxBatch > 0
	}
	return !slices.ContainsFunc(m.Inputs, func(in Input) bool { return len(in.Shape) == 0 || in.Shape[0] != -1 })
}

// Requests returns those that are sent in turn: one that begins with each sample,
// or the one that is made up.
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

// check says what the model cannot take.
func (m Model) check(d Data) error {
	rows := max(1, d.Rows)
	switch {
	case !m.batched() && rows > 1:
		return fmt.Errorf("model %q has no batch dimension, but requests of %d rows are asked for: leave the batch size at 1", m.Name, rows)
	case m.MaxBatch > 0 && rows > m.MaxBatch:
		return fmt.Errorf("model %q takes %d rows in a request at the most, but %d are asked for", m.Name, m.MaxBatch, rows)
	}
	for name := range d.Shapes {
		if !slices.ContainsFunc(m.Inputs, func(in Input) bool { return in.Name == name }) {
			return fmt.Errorf("a shape is given for %q, but model %q has the inputs %s", name, m.Name, m.names())
		}
	}
	return nil
}

// Fill returns the inputs of a request that is made up.
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

// shape returns that of an input without its rows.
func (m Model) shape(in Input, given []int64) ([]int64, error) {
	own := in.Shape
	if m.batched() {
		own = own[1:]
	}
	return in.settle(own, given)
}

// withRows returns the shape of an input with its rows, if the model has them.
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

// settle returns the shape that an input gets: its own, or what is given if that
// fits it.
func (in Input) settle(own, given []int64) ([]int64, error) {
	if given == nil {
		if slices.Contains(own, -1) {
			return nil, fmt.Errorf("input %q has the shape %v, where -1 may be any size: say which with --shape %s:…", in.Name, own, in.Name)
		}
		return own, nil
	}
	fits := len(own) == len(given)
	for i := 0; fits && i < len(own); i++ {
		fits = own[i] == -1 || own[i] == given[i]
	}
	if !fits {
		return nil, fmt.Errorf("input %q has the shape %v, which the given shape %v does not fit (rows are not part of it)", in.Name, own, given)
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

// appendRandom appends an element: a floating-point number from 0 to 1, of the
// short types one from a half to 1, or an integer that is 0 or 1, because many
// models look integers up in a table, or take them for a mask.
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

// text returns a string for a request.
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
