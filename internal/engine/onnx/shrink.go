package onnx

import (
	"sync/atomic"

	"github.com/shoal-serving/shoal/tensor"
)

// A peak is the size of the largest batch so far. What a session needed for it, it
// keeps for the next one, and for many models that is more than their weights.
//
// Giving it back after each batch would be simple, and costs: about 1 µs of a tiny
// model's 4, and up to 7 % of a batch with large tensors inside, which are then
// paged in anew (text recogniser, 32 rows: 169 → 182 ms, ResNet-50, 8 rows: 563 →
// 592 ms, the lowest of several). So it is done by the first batch that is less
// than half as large as one before it. ResNet-50 is back at 150 MB then, after 354
// MB with a batch of 16 rows.
type peak struct{ bytes atomic.Int64 }

// passed notes a batch, and reports whether it shall give back what a larger one
// has left.
func (p *peak) passed(size int64) bool {
	largest := p.bytes.Load()
	if size <= largest && 2*size >= largest {
		return false
	}
	// If another batch was faster, this one is not noted, and the next one will be.
	return p.bytes.CompareAndSwap(largest, size) && size < largest
}

func size(in []tensor.Tensor) (bytes int64) {
	for i := range in {
		bytes += int64(len(in[i].Data))
	}
	return bytes
}
