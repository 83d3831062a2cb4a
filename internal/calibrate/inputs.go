package calibrate

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"

	"github.com/shoal-serving/shoal/internal/access"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/modelconfig"
	"github.com/shoal-serving/shoal/tensor"
)

// Inputs generate requests for measuring a model. Their rows differ from each other.
type Inputs struct {
	cfg         *modelconfig.Config
	sample      []tensor.Tensor // one row of each input, from the configuration; empty if there is none
	fromTraffic []tensor.Tensor // one row of each input of a client's request, shapes only; empty if there is none

	// For synthetic inputs.
	dimSize  int64 // of variable dimensions
	intLimit int   // integers are in [0, intLimit)
}

// FromSample returns inputs derived from a sample in the model's configuration: one row of
// each input. Row n has the sample's elements rotated by n, so that rows differ and still
// have values that the model expects.
func FromSample(cfg *modelconfig.Config, row []tensor.Tensor) Inputs {
	return Inputs{cfg: cfg, sample: row}
}

// Synthetic returns inputs that a model without a sample may accept, the most likely first.
// Floating-point numbers are in [0, 1). Integers are small, below 8 or below 2, because
// they may be indices into a table. All variable dimensions have the same size, because
// inputs may share a dimension: first that of a short text, or that of an image if a row
// has three dimensions or more.
func Synthetic(cfg *modelconfig.Config) []Inputs {
	var all []Inputs
	sizes := []int64{16, 64, 224, 1}
	if slices.ContainsFunc(cfg.Inputs, imageLike) {
		sizes = []int64{224, 64, 16, 1}
	}
	for _, size := range sizes {
		for _, below := range []int{8, 2} {
			in := Inputs{cfg: cfg, dimSize: size, intLimit: below}
			if in.elements() <= maxElements {
				all = append(all, in)
			}
		}
	}
	return all
}

func imageLike(t modelconfig.Tensor) bool { return len(t.Dims) >= 3 && hasVariableDim(t) }

// hasVariableDim reports whether an input has a variable dimension.
func hasVariableDim(t modelconfig.Tensor) bool { return slices.Contains(t.Dims, -1) }

// SizesGuessed reports whether sizes of the inputs were guessed or taken from traffic, so
// that traffic with other sizes should replace them. It returns false if a variable input
// is reshaped: its shape in traffic is not the one that the model gets.
func (in Inputs) SizesGuessed() bool {
	return len(in.sample) == 0 && slices.ContainsFunc(in.cfg.Inputs, hasVariableDim) &&
		!slices.ContainsFunc(in.cfg.Inputs, func(t modelconfig.Tensor) bool { return hasVariableDim(t) && t.Reshape != nil })
}

// WithSizesOf returns inputs like in, with the sizes of a row that a client sent. row has a
// tensor for each input, of which only the shapes are used.
func (in Inputs) WithSizesOf(row []tensor.Tensor) (Inputs, error) {
	guessed := in
	guessed.fromTraffic = nil
	in.fromTraffic = row
	switch {
	case in.Shape() == guessed.Shape():
		return guessed, nil
	case in.elements() > maxElements:
		return in, fmt.Errorf("cannot generate rows of %s: they have more than %d elements", in.Shape(), maxElements)
	}
	return in, nil
}

// ForConfig returns the same inputs for the configuration of the same model after a reload.
func (in Inputs) ForConfig(cfg *modelconfig.Config) Inputs {
	in.cfg = cfg
	return in
}

// Shape returns the shapes of one row of the inputs with variable dimensions, such as
// "x[3,48,224]". It returns "" if there are none.
func (in Inputs) Shape() string {
	var all []string
	for _, t := range in.cfg.Inputs {
		if hasVariableDim(t) && !in.omitted(t) {
			all = append(all, t.Name+tensor.ShapeText(in.dims(t)))
		}
	}
	return strings.Join(all, " ")
}

// SeenShape returns the shape if it was taken from traffic, and "" otherwise.
func (in Inputs) SeenShape() string {
	if len(in.fromTraffic) == 0 {
		return ""
	}
	return in.Shape()
}

// omitted reports whether an optional input is left out, as it was in traffic.
func (in Inputs) omitted(t modelconfig.Tensor) bool {
	return t.Optional && len(in.fromTraffic) > 0 && findTensor(in.fromTraffic, t.Name) == nil
}

// findTensor returns the tensor with the given name, or nil.
func findTensor(rows []tensor.Tensor, name string) *tensor.Tensor {
	for i := range rows {
		if rows[i].Name == name {
			return &rows[i]
		}
	}
	return nil
}

// maxElements bounds the size of a generated row.
const maxElements = 1 << 24

func (in Inputs) elements() int64 {
	sum := int64(0)
	for _, t := range in.cfg.Inputs {
		n, err := tensor.Elements(in.dims(t)) // omitted inputs count, too: this is only a bound
		if err != nil || n > maxElements {
			return maxElements + 1
		}
		sum += n
	}
	return sum
}

func (in Inputs) dims(t modelconfig.Tensor) []int64 {
	if row := findTensor(in.sample, t.Name); row != nil {
		return row.Shape
	}
	if row := findTensor(in.fromTraffic, t.Name); row != nil && hasVariableDim(t) {
		return row.Shape
	}
	dims := slices.Clone(t.Dims)
	for i, d := range dims {
		if d == -1 {
			dims[i] = in.dimSize
		}
	}
	return dims
}

// rowsRequest returns a request with the rows of the given numbers, checked against the
// configuration.
func (in Inputs) rowsRequest(rows ...int) (*infer.Request, error) {
	req := &infer.Request{Model: in.cfg.Name, Caller: access.Self} // models that it calls are called by the server
	for k, t := range in.cfg.Inputs {
		if in.omitted(t) {
			continue
		}
		if len(in.sample) > 0 && findTensor(in.sample, t.Name) == nil {
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

// Request returns a request with the first n rows, checked against the configuration.
func (in Inputs) Request(n int) (*infer.Request, error) {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return in.rowsRequest(all...)
}

// appendRow appends row n of input k.
func (in Inputs) appendRow(data []byte, k, n int) []byte {
	t := in.cfg.Inputs[k]
	if row := findTensor(in.sample, t.Name); row != nil {
		return appendShifted(data, row, n)
	}
	count, _ := tensor.Elements(in.dims(t)) // valid: elements has counted them
	random := rand.New(rand.NewPCG(uint64(k), uint64(n)))
	for range count {
		data = in.appendElement(data, t.Type, random)
	}
	return data
}

func (in Inputs) appendElement(data []byte, t tensor.Type, random *rand.Rand) []byte {
	small := random.IntN(in.intLimit)
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

// appendShifted appends the elements of a row, rotated to begin with element n.
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
