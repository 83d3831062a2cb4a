package calibrate

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"

	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/modelconfig"
	"github.com/shoal-serving/shoal/tensor"
)

// Inputs are what a model is tried with: rows that differ from each other.
type Inputs struct {
	cfg   *modelconfig.Config
	given []tensor.Tensor // a row of each input, of a sample that the model's author wrote; empty if there is none

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

func picture(t modelconfig.Tensor) bool { return len(t.Dims) >= 3 && slices.Contains(t.Dims, -1) }

// mostElements bounds the memory of a row that is made up.
const mostElements = 1 << 24

func (in Inputs) elements() int64 {
	sum := int64(0)
	for _, t := range in.cfg.Inputs {
		n, err := tensor.Elements(in.dims(t))
		if err != nil || n > mostElements {
			return mostElements + 1
		}
		sum += n
	}
	return sum
}

func (in Inputs) dims(t modelconfig.Tensor) []int64 {
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
		x := tensor.Tensor{Name: t.Name, Type: t.Type, Shape: in.dims(t)}
		if len(in.given) > 0 {
			at := slices.IndexFunc(in.given, func(g tensor.Tensor) bool { return g.Name == t.Name })
			if at < 0 {
				return nil, fmt.Errorf("the sample has no input %q", t.Name)
			}
			x.Shape = in.given[at].Shape
		}
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
	if len(in.given) > 0 {
		at := slices.IndexFunc(in.given, func(g tensor.Tensor) bool { return g.Name == t.Name })
		return appendShifted(data, &in.given[at], n)
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
