package sched

import (
	"bytes"
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/engine/enginetest"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/modelconfig"
	"github.com/shoal-serving/shoal/tensor"
)

func TestBatchInputsTellHowRequestsLieInABatch(t *testing.T) {
	vectors := [][]int64{{1, 2}, {1, 4}, {1, 1}} // of 2, 4 and 1 elements
	images := [][]int64{{1, 2, 3}, {2, 4, 5}, {1, 0, 7}}
	for _, c := range []struct {
		name    string
		kind    modelconfig.BatchKind
		sources [][]int64
		shape   []int64
		want    []int32
	}{
		{"element count", modelconfig.ElementCount, vectors, []int64{3}, []int32{2, 4, 1}},
		{"accumulated", modelconfig.AccumulatedCount, vectors, []int64{3}, []int32{2, 6, 7}},
		{"accumulated with zero", modelconfig.AccumulatedCountWithZero, vectors, []int64{4}, []int32{0, 2, 6, 7}},
		{"largest as shape", modelconfig.MaxCountAsShape, vectors, []int64{4}, []int32{0, 0, 0, 0}},
		{"item shape", modelconfig.ItemShape, vectors, []int64{3, 1}, []int32{2, 4, 1}},
		{"item shape, flat", modelconfig.ItemShapeFlat, vectors, []int64{3}, []int32{2, 4, 1}},

		{"elements of all rows", modelconfig.ElementCount, images, []int64{3}, []int32{6, 40, 0}},
		{"largest of all rows", modelconfig.MaxCountAsShape, images, []int64{40}, make([]int32, 40)},
		{"the shape of each row", modelconfig.ItemShape, images, []int64{4, 2}, []int32{2, 3, 4, 5, 4, 5, 0, 7}},
		{"the shape of each row, flat", modelconfig.ItemShapeFlat, images, []int64{8}, []int32{2, 3, 4, 5, 4, 5, 0, 7}},

		{"alone", modelconfig.AccumulatedCountWithZero, vectors[:1], []int64{2}, []int32{0, 2}},
		{"nothing", modelconfig.MaxCountAsShape, [][]int64{{1, 0}}, []int64{0}, nil},
	} {
		data, shape := appendBatchInput(nil, modelconfig.BatchInput{Type: tensor.Int32, Kind: c.kind}, c.sources)
		if !bytes.Equal(data, tensor.Data(c.want)) || !slices.Equal(shape, c.shape) {
			t.Errorf("%s: %v of shape %v, want %v of shape %v", c.name, data, shape, c.want, c.shape)
		}
		var floats []float32
		for _, n := range c.want {
			floats = append(floats, float32(n))
		}
		data, _ = appendBatchInput(nil, modelconfig.BatchInput{Type: tensor.FP32, Kind: c.kind}, c.sources)
		if !bytes.Equal(data, tensor.Data(floats)) {
			t.Errorf("%s as floats: %v, want %v", c.name, data, floats)
		}
	}
}

// raggedEcho is how an engine is used that gives its inputs back: the first flat,
// the second by rows, and a count for each request.
func raggedEcho() *modelconfig.Ragged {
	return &modelconfig.Ragged{
		Flat:    []bool{true, false},
		Inputs:  []modelconfig.BatchInput{{Name: "counts", Type: tensor.Int32, Kind: modelconfig.ElementCount}},
		Outputs: []modelconfig.BatchOutput{{Output: 0, Source: 0, Dims: []int64{-1, -1}}},
	}
}

// raggedRequest has one row with the given elements, and one with their number.
func raggedRequest(id string, elements ...string) *infer.Request {
	in := tensor.Tensor{Name: "x", Type: tensor.Bytes, Shape: []int64{1, int64(len(elements))}}
	for _, e := range elements {
		in.Data = tensor.AppendString(in.Data, e)
	}
	n := tensor.Tensor{Name: "n", Type: tensor.Uint8, Shape: []int64{1, 1}, Data: []byte{byte(len(elements))}}
	return &infer.Request{ID: id, Rows: 1, Inputs: []tensor.Tensor{in, n}}
}

func TestRequestsOfDifferentSizesShareABatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eng := &enginetest.Echo{Takes: constant(10 * ms)}
		b := start(t, eng, 1, Options{Ragged: raggedEcho(), Batching: batching.Config{MaxRows: 8, Policy: batching.Triton{MaxRows: 8}}})
		requests := []*infer.Request{
			raggedRequest("alone", "a", "bb", "ccc"), raggedRequest("b", "dddd"), raggedRequest("c", "", "e"), raggedRequest("none"),
		}
		for i, req := range requests {
			b.calls.Go(func() {
				time.Sleep(time.Duration(i) * ms)
				var resp infer.Response
				if err := b.Submit(context.Background(), req, &resp); err != nil {
					t.Errorf("%s: %v", req.ID, err)
					return
				}
				defer resp.Release()
				for k, in := range req.Inputs {
					if out := resp.Outputs[k]; !bytes.Equal(out.Data, in.Data) || !slices.Equal(out.Shape, in.Shape) {
						t.Errorf("%s got %v %q, want its own %v %q", req.ID, out.Shape, out.Data, in.Shape, in.Data)
					}
				}
				if got, want := resp.Outputs[2].Data, []byte{byte(req.Inputs[0].Shape[1]), 0, 0, 0}; !bytes.Equal(got, want) {
					t.Errorf("%s is told to have %v elements, want %v", req.ID, got, want)
				}
			})
		}
		b.finish()
		if got, want := eng.Batches(), []int{3, 3}; !slices.Equal(got, want) { // "first dimension" is that of the flat input
			t.Errorf("batches of %v elements, want %v", got, want)
		}
	})
}

func TestAnOutputThatCannotBeHandedOutFails(t *testing.T) {
	for name, dims := range map[string][]int64{"too few elements": {-1, -1, 2}, "too many": {-1}, "more than can be counted": {-1, 1 << 62, 4}} {
		synctest.Test(t, func(t *testing.T) {
			r := raggedEcho()
			r.Outputs[0].Dims = dims
			b := start(t, &enginetest.Echo{}, 1, Options{Ragged: r, Bisect: true})
			err := b.Submit(t.Context(), raggedRequest("a", "b", "c"), &infer.Response{})
			if infer.CodeOf(err) != infer.Internal || err == nil {
				t.Errorf("%s: %v, want an internal error", name, err)
			}
			b.finish()
		})
	}
}

func TestRowsOfAnInputThatIsNotRaggedMustAgree(t *testing.T) {
	other := raggedRequest("b", "c")
	other.Inputs[1].Shape = []int64{1, 2}
	one := []*call{{req: raggedRequest("a", "b", "c")}, {req: other}}
	if err := joinable(one, []bool{true, false}); err == nil {
		t.Error("rows of different sizes were joined")
	}
	if err := joinable(one, []bool{true, true}); err != nil {
		t.Error(err)
	}
}

// Rows that wait are staged if they are large, which needs rows of one size.
func TestLargeRequestsOfDifferentSizesShareABatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &modelconfig.Ragged{Flat: []bool{true}, Outputs: []modelconfig.BatchOutput{{Dims: []int64{-1, -1}}}}
		eng := &enginetest.Echo{Takes: constant(10 * ms)}
		b := start(t, eng, 1, Options{Ragged: r, Batching: batching.Config{MaxRows: 8, Policy: batching.Triton{MaxRows: 8}}})
		for i, n := range []int{minStagedBytes, 2 * minStagedBytes, minStagedBytes + 1, 1} {
			in := tensor.Tensor{Name: "x", Type: tensor.Uint8, Shape: []int64{1, int64(n)}, Data: bytes.Repeat([]byte{byte(i)}, n)}
			done := 20 * ms
			if i == 0 {
				done = 10 * ms
			}
			b.submit(time.Duration(i)*ms, &infer.Request{ID: in.Name, Rows: 1, Inputs: []tensor.Tensor{in}}, done)
		}
		b.finish()
		if got, want := eng.Batches(), []int{minStagedBytes, 3*minStagedBytes + 2}; !slices.Equal(got, want) {
			t.Errorf("batches of %v elements, want %v", got, want)
		}
		if b.stagesOpened > 0 {
			t.Error("they were staged for nothing")
		}
	})
}
