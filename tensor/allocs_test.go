//go:build !race

package tensor_test

import (
	"testing"

	"github.com/shoal-serving/shoal/tensor"
)

func TestPaddingDoesNotAllocate(t *testing.T) {
	x := ints([]int64{2, 2}, 1, 2, 3, 4)
	for _, element := range [][]byte{tensor.Data([]int32{0}), tensor.Data([]int32{7})} {
		data := make([]byte, 0, 1024)
		if n := testing.AllocsPerRun(100, func() { data = tensor.AppendPadded(data[:0], x, 1, 64, element) }); n != 0 {
			t.Errorf("padding with %v allocates %v times", element, n)
		}
	}
}
