package tensor_test

import (
	"bytes"
	"slices"
	"testing"

	"github.com/shoal-serving/shoal/tensor"
)

func ints(shape []int64, values ...int32) *tensor.Tensor {
	return &tensor.Tensor{Name: "x", Type: tensor.Int32, Shape: shape, Data: bytes.Clone(tensor.Data(values))}
}

func TestPaddingFollowsTheElementsOfEachRow(t *testing.T) {
	seven := tensor.Data([]int32{7})
	for _, c := range []struct {
		name string
		x    *tensor.Tensor
		dim  int
		size int64
		want []int32
	}{
		{"the last dimension", ints([]int64{2, 2}, 1, 2, 3, 4), 1, 3, []int32{1, 2, 7, 3, 4, 7}},
		{"one in the middle", ints([]int64{1, 2, 2}, 1, 2, 3, 4), 1, 3, []int32{1, 2, 3, 4, 7, 7}},
		{"the last of three", ints([]int64{1, 2, 1}, 1, 2), 2, 3, []int32{1, 7, 7, 2, 7, 7}},
		{"the same size", ints([]int64{2, 1}, 1, 2), 1, 1, []int32{1, 2}},
		{"an empty dimension", ints([]int64{2, 0}), 1, 1, []int32{7, 7}},
	} {
		got := tensor.AppendPadded(nil, c.x, c.dim, c.size, seven)
		if !bytes.Equal(got, tensor.Data(c.want)) {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
		shape := slices.Clone(c.x.Shape)
		shape[c.dim] = c.size
		padded := &tensor.Tensor{Type: tensor.Int32, Shape: shape, Data: got}
		if back := tensor.CutData(padded, c.dim, c.x.Shape[c.dim]); !bytes.Equal(back, c.x.Data) {
			t.Errorf("%s: after cutting it back: got %v, want %v", c.name, back, c.x.Data)
		}
	}
}

func TestCuttingASingleRowCopiesNothing(t *testing.T) {
	x := ints([]int64{1, 3, 2}, 1, 2, 3, 4, 5, 6)
	if n := testing.AllocsPerRun(100, func() { tensor.CutData(x, 1, 2) }); n != 0 {
		t.Errorf("cutting allocates %v times", n)
	}
}
