package modelconfig_test

import (
	"slices"
	"testing"

	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/tensor"
)

func TestOutputsGetTheShapeThatClientsExpect(t *testing.T) {
	c := parse(t, `
		max_batch_size: 8
		input { name: "X" data_type: TYPE_FP32 dims: 1 }
		output { name: "PLAIN" data_type: TYPE_FP32 dims: 4 }
		output { name: "SQUARE" data_type: TYPE_FP32 dims: [ 4, -1 ] reshape { shape: [ 2, 2, -1 ] } }
		output { name: "SCALAR" data_type: TYPE_FP32 dims: [ 1, 1 ] reshape { } }`)
	answer := func(square, scalar []int64) *infer.Response {
		return &infer.Response{Outputs: []tensor.Tensor{{Name: "PLAIN", Shape: []int64{3, 4}}, {Name: "SQUARE", Shape: square}, {Name: "SCALAR", Shape: scalar}}}
	}
	resp := answer([]int64{3, 2, 2, 5}, []int64{3})
	if err := c.Restore(resp); err != nil {
		t.Fatal(err)
	}
	for i, want := range [][]int64{{3, 4}, {3, 4, 5}, {3, 1, 1}} {
		if got := resp.Outputs[i].Shape; !slices.Equal(got, want) {
			t.Errorf("%s has shape %v, want %v", c.Outputs[i].Name, got, want)
		}
	}
	some := &infer.Response{Outputs: []tensor.Tensor{{Name: "SCALAR", Shape: []int64{2}}}}
	if err := c.Restore(some); err != nil || !slices.Equal(some.Outputs[0].Shape, []int64{2, 1, 1}) {
		t.Errorf("where others are missing, an output has shape %v: %v", some.Outputs[0].Shape, err)
	}
	for _, wrong := range []*infer.Response{answer([]int64{3, 4, 5}, []int64{3}), answer([]int64{3, 2, 2, 5}, []int64{3, 1}), answer(nil, nil)} {
		if err := c.Restore(wrong); infer.CodeOf(err) != infer.Internal || err == nil {
			t.Errorf("an output of another shape than the configuration says: %v", err)
		}
	}
}

// If a version is replaced meanwhile, it rejects a request, and the next one checks it
// again.
func TestInputsThatCameAreNotWrittenTo(t *testing.T) {
	c := parse(t, `
		max_batch_size: 8
		input { name: "X" data_type: TYPE_UINT8 dims: [ 2, 2 ] reshape { shape: 4 } }`)
	came := []tensor.Tensor{{Name: "X", Type: tensor.Uint8, Shape: []int64{1, 2, 2}, Data: make([]byte, 4)}}
	for range 2 {
		req := &infer.Request{Inputs: came}
		if err := c.Check(req); err != nil {
			t.Fatal(err)
		}
		if got := req.Inputs[0].Shape; !slices.Equal(got, []int64{1, 4}) {
			t.Errorf("the model gets shape %v, want [1 4]", got)
		}
	}
}
