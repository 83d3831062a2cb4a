package calibrate

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"

	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/modelconfig"
	"github.com/shoal-serving/shoal/tensor"
)

// Inputs are what a model is tried with: rows that differ from each other.
type Inputs struct {
	cfg   *modelconfig.Config
	given []tensor.Tensor // a row of each input, of a sample that the model's author wrote; empty if there is none
	seen  []tensor.Tensor // a row of each input of a request, of which only the shapes count; empty if there is none

	// What is made up for others.
	size  int64 // of dimensions that may have any
	below int   // integers are from 0 to one less than this
}

// Given returns inputs made of a sample of the model's configuration: a row of
// each input. Row n has the same elements, shifted by n, so that rows differ and
// their values are still such as the model expects.
func Given(cfg *modelconfig.Config, row []tensor.Tensor) Inputs { return Inputs{cfg: cfg, given: row} }

// MadeUp returns inputs that may suit a model of which no sample is known, the
// likeliest first. Floating-point numbers are from 0 to 1. Integers are small,
// because they may be indices into a table; of some tables only two. A dimension
// that may have any size has one size everywhere, because inputs may share it: that
// of a short text, or of a picture if a row has three dimensions or more.
func MadeUp(cfg *modelconfig.Config) []Inputs {
	var all []Inputs
	sizes := []int64{16, 64, 224, 1}
	if slices.ContainsFunc(cfg.Inputs, picture) {
		sizes = []int64{224, 64, 16, 1}
	}
	for _, size := range sizes {
		for _, below := range []int{8, 2} {
			in := Inputs{cfg: cfg, size: size, below: below}
			if in.elements() <= mostElements {
				all = append(all, in)
			}
		}
	}
	return all
}

func picture(t modelconfig.Tensor) bool { return len(t.Dims) >= 3 && free(t) }

// free reports whether some dimension of an input may have any size.
func free(t modelconfig.Tensor) bool { return slices.Contains(t.Dims, -1) }

// Guessed reports whether sizes of the inputs are made up, or were so until traffic
// told, so that it may tell others. Of inputs that the model has in other shapes than
// clients, it does not tell.
func (in Inputs) Guessed() bool {
	return len(in.given) == 0 && slices.ContainsFunc(in.cfg.Inputs, free) &&
		!slices.ContainsFunc(in.cfg.Inputs, func(t modelconfig.Tensor) bool { return free(t) && t.Reshape != nil })
}

// Like returns inputs that are made up as these were, in the sizes of a row that a
// client sent: a tensor for each input, of which only the shapes count.
func (in Inputs) Like(row []tensor.Tensor) (Inputs, error) {
	made := in
	made.seen = nil
	in.seen = row
	switch {
	case in.Shape() == made.Shape():
		return made, nil
	case in.elements() > mostElements:
		return in, fmt.Errorf("rows of %s are not made up, because they have more than %d elements", in.Shape(), mostElements)
	}
	return in, nil
}

// For returns the same inputs for the same model that was loaded again.
func (in Inputs) For(cfg *modelconfig.Config) Inputs {
	in.cfg = cfg
	return in
}

// Shape returns the shapes of a row's inputs that may have any size, such as
// "x[3,48,224]"; "" if there are none.
func (in Inputs) Shape() string {
	var all []string
	for _, t := range in.cfg.Inputs {
		if free(t) && !in.without(t) {
			all = append(all, t.Name+tensor.ShapeText(in.dims(t)))
		}
	}
	return strings.Join(all, " ")
}

// Seen returns the shape if it is that of a row that a client sent, and "" if not.
func (in Inputs) Seen() string {
	if len(in.seen) == 0 {
		return ""
	}
	return in.Shape()
}

// without reports whether an input is left out, as clients do.
func (in Inputs) without(t modelconfig.Tensor) bool {
	return t.Optional && len(in.seen) > 0 && named(in.seen, t.Name) == nil
}

// named returns the row of an input; nil if there is none.
func named(rows []tensor.Tensor, name string) *tensor.Tensor {
	for i := range rows {
		if rows[i].Name == name {
			return &rows[i]
		}
	}
	return nil
}

// mostElements bounds the memory of a row that is made up.
const mostElements = 1 << 24

func (in Inputs) elements() int64 {
	sum := int64(0)
	for _, t := range in.cfg.Inputs {
		n, err := tensor.Elements(in.dims(t)) // of one that is left out as if it were not: it is a bound
		if err != nil || n > mostElements {
			return mostElements + 1
		}
		sum += n
	}
	return sum
}

func (in Inputs) dims(t modelconfig.Tensor) []int64 {
	if row := named(in.given, t.Name); row != nil {
		return row.Shape
	}
	if row := named(in.seen, t.Name); row != nil && free(t) {
		return row.Shape
	}
	dims := slices.Clone(t.Dims)
	for i, d := range dims {
		if d == -1 {
			dims[i] = in.size
		}
	}
	return dims
}

// Request returns the rows with the given numbers as one request, which the
// configuration has checked.
func (in Inputs) Request(rows ...int) (*infer.Request, error) {
	req := &infer.Request{Model: in.cfg.Name}
	for k, t := range in.cfg.Inputs {
		if in.without(t) {
			continue
		}
		if len(in.given) > 0 && named(in.given, t.Name) == nil {
			return nil, fmt.Errorf("the sample has no input %q", t.Name)
		}
		x := tensor.Tensor{Name: t.Name, Type: t.Type, Shape: in.dims(t)}
		if in.cfg.MaxBatchSize > 0 {
			x.Shape = append([]int64{int64(len(rows))}, x.Shape...)
		}
		for _, n := range rows {
			x.Data = in.appendRow(x.Data, k, n)
		}
		req.Inputs = append(req.Inputs, x)
	}
	return req, in.cfg.Check(req)
}

// First returns the first so many rows as one request.
func (in Inputs) First(rows int) (*infer.Request, error) {
	all := make([]int, rows)
	for i := range all {
		all[i] = i
	}
	return in.Request(all...)
}

// appendRow appends row n of input k.
func (in Inputs) appendRow(data []byte, k, n int) []byte {
	t := in.cfg.Inputs[k]
	if row := named(in.given, t.Name); row != nil {
		return appendShifted(data, row, n)
	}
	count, _ := tensor.Elements(in.dims(t)) // counted before
	random := rand.New(rand.NewPCG(uint64(k), uint64(n)))
	for range count {
		data = in.appendElement(data, t.Type, random)
	}
	return data
}

func (in Inputs) appendElement(data []byte, t tensor.Type, random *rand.Rand) []byte {
	small := random.IntN(in.below)
	switch t {
	case tensor.Bytes:
		return tensor.AppendString(data, strconv.Itoa(small))
	case tensor.Bool:
		return append(data, byte(random.IntN(2)))
	}
	bits := uint64(small)
	if isFloat(t) {
		bits = encode(t, random.Float64())
	}
	var word [8]byte
	binary.LittleEndian.PutUint64(word[:], bits)
	return append(data, word[:t.Size()]...)
}

// appendShifted appends the elements of a row, beginning with element n.
func appendShifted(data []byte, row *tensor.Tensor, n int) []byte {
	count, err := tensor.Elements(row.Shape)
	if err != nil || count == 0 {
		return append(data, row.Data...)
	}
	from := int(int64(n) % count)
	if size := row.Type.Size(); size > 0 {
		return append(append(data, row.Data[from*size:]...), row.Data[:from*size]...)
	}
	elements := slices.Collect(row.Strings())
	for _, e := range slices.Concat(elements[from:], elements[:from]) {
		data = tensor.AppendString(data, e)
	}
	return data
}
