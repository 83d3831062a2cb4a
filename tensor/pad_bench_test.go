package tensor_test

import (
	"testing"

	"github.com/shoal-serving/shoal/tensor"
)

// BenchmarkAppendPadded pads 16 tokens of a text to 64, as for one input of a request.
func BenchmarkAppendPadded(b *testing.B) {
	for name, element := range map[string][]byte{"zeros": tensor.Data([]int32{0}), "ones": tensor.Data([]int32{1})} {
		b.Run(name, func(b *testing.B) {
			x := ints([]int64{1, 16}, make([]int32, 16)...)
			data := make([]byte, 0, 4*64)
			b.ReportAllocs()
			b.SetBytes(4 * 64)
			for b.Loop() {
				data = tensor.AppendPadded(data[:0], x, 1, 64, element)
			}
		})
	}
}

// BenchmarkCutData cuts the output of a row of 64 tokens back to 16.
func BenchmarkCutData(b *testing.B) {
	x := ints([]int64{1, 64, 8}, make([]int32, 64*8)...)
	b.ReportAllocs()
	for b.Loop() {
		tensor.CutData(x, 1, 16)
	}
}
