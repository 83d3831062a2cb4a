package onnx

import "sync/atomic"

// A batchPeak tracks the size of the largest batch since memory was last freed, to decide
// when to free memory. A session keeps the memory that a batch needed for later batches,
// and for many models that is more than their weights.
//
// Freeing it after each batch would be simple, but slow: it adds about 1 µs to the 4 µs of
// a tiny model, and up to 7 % to a batch with large intermediate tensors, which have to be
// paged in again (text recogniser, 32 rows: 169 → 182 ms; ResNet-50, 8 rows: 563 → 592 ms;
// minimum of several runs). So only the first batch that is less than half as large as the
// largest one frees memory. ResNet-50 then uses 150 MB again, after 354 MB with a batch of
// 16 rows.
type batchPeak struct{ bytes atomic.Int64 }

// observe records the size of a batch, and reports whether the batch should free the
// memory that a larger one has left.
func (p *batchPeak) observe(size int64) bool {
	largest := p.bytes.Load()
	if size <= largest && 2*size >= largest {
		return false
	}
	// If a concurrent batch wins, this one is not recorded, which is harmless.
	return p.bytes.CompareAndSwap(largest, size) && size < largest
}
