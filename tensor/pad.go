package tensor

import "bytes"

// AppendPadded appends the data of t to data, with dimension dim extended to the given size.
// The new elements are repetitions of element, the bytes of one. t must have passed
// [Tensor.Check], must not be of type [Bytes], and must not be larger than size.
func AppendPadded(data []byte, t *Tensor, dim int, size int64, element []byte) []byte {
	blocks, from, inner := blocksOf(t.Type, t.Shape, dim)
	missing := int(size-t.Shape[dim]) * (inner / len(element))
	for i := range blocks {
		data = append(data, t.Data[i*from:(i+1)*from]...)
		data = appendRepeated(data, element, missing)
	}
	return data
}

// CutData returns the data of t with dimension dim reduced to the given size: its first
// elements stay. The result is a view of t's memory if the elements follow each other there,
// and else a copy. t is as for [AppendPadded].
func CutData(t *Tensor, dim int, size int64) []byte {
	blocks, from, inner := blocksOf(t.Type, t.Shape, dim)
	to := int(size) * inner
	switch {
	case from == to:
		return t.Data
	case blocks == 1:
		return t.Data[:to:to]
	}
	data := make([]byte, 0, blocks*to)
	for i := range blocks {
		data = append(data, t.Data[i*from:i*from+to]...)
	}
	return data
}

// blocksOf returns how many blocks a dimension divides a tensor into, the bytes of a block,
// and the bytes of each of the dimension's elements.
func blocksOf(t Type, shape []int64, dim int) (blocks, block, inner int) {
	blocks, inner = 1, t.Size()
	for _, d := range shape[:dim] {
		blocks *= int(d)
	}
	for _, d := range shape[dim+1:] {
		inner *= int(d)
	}
	return blocks, int(shape[dim]) * inner, inner
}

// appendRepeated appends element n times.
func appendRepeated(data, element []byte, n int) []byte {
	if len(bytes.Trim(element, "\x00")) == 0 {
		return append(data, make([]byte, n*len(element))...) // which does not allocate
	}
	for range n {
		data = append(data, element...)
	}
	return data
}
