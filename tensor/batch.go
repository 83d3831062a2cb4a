package tensor

import "fmt"

// Rows returns the first dimension, which is the batch dimension of models
// that have one. A scalar is one row.
func (t *Tensor) Rows() int {
	if len(t.Shape) == 0 {
		return 1
	}
	return int(t.Shape[0])
}

// A Splitter cuts rows off the front of a batched tensor, one request after
// the other. It makes views: nothing is copied.
type Splitter struct {
	rest    []byte
	left    int // rows not yet cut off
	perRow  int // bytes of a row; for Bytes, elements of a row
	strings bool
}

// Split starts cutting t along its first dimension. t must have passed
// [Tensor.Check].
func Split(t *Tensor) Splitter {
	s := Splitter{rest: t.Data, left: t.Rows(), strings: t.Type == Bytes}
	switch {
	case s.left == 0:
	case s.strings:
		n, _ := Elements(t.Shape)
		s.perRow = int(n) / s.left
	default:
		s.perRow = len(t.Data) / s.left
	}
	return s
}

// Next returns the data of the next rows. It panics if fewer are left: the
// caller has checked that a batch's outputs have as many rows as its inputs.
func (s *Splitter) Next(rows int) []byte {
	if rows > s.left {
		panic(fmt.Sprintf("tensor: %d rows asked of %d left", rows, s.left))
	}
	s.left -= rows
	size := rows * s.perRow
	if s.strings {
		size = stringsSize(s.rest, size)
	}
	cut := s.rest[:size:size]
	s.rest = s.rest[size:]
	return cut
}

func stringsSize(data []byte, elements int) int {
	size := 0
	for range elements {
		n, _ := elementSize(data[size:])
		size += n
	}
	return size
}

// Joinable returns an error unless a and b can be rows of one tensor: same
// name and type, and shapes that differ in their first dimension at most.
func Joinable(a, b *Tensor) error {
	if a.Name != b.Name || a.Type != b.Type {
		return fmt.Errorf("%s of %v and %s of %v cannot be joined", a.Name, a.Type, b.Name, b.Type)
	}
	if len(a.Shape) != len(b.Shape) {
		return fmt.Errorf("shapes %v and %v of %s have different ranks", a.Shape, b.Shape, a.Name)
	}
	for i := 1; i < len(a.Shape); i++ {
		if a.Shape[i] != b.Shape[i] {
			return fmt.Errorf("shapes %v and %v of %s differ beyond their first dimension", a.Shape, b.Shape, a.Name)
		}
	}
	return nil
}
