package buf

import "sync"

// Slices is a pool of byte slices for a library that does its own reference counting. It
// uses the size classes of [Buf]. The zero value is ready for use, and its methods may be
// called concurrently.
type Slices struct {
	pools [maxBits - minBits + 1]sync.Pool
}

// Get returns n bytes with arbitrary content. The caller may return them with Put, or leave
// them to the garbage collector.
func (s *Slices) Get(n int) *[]byte {
	class := classOf(n)
	if class >= len(s.pools) {
		b := make([]byte, n)
		return &b
	}
	if b, ok := s.pools[class].Get().(*[]byte); ok {
		*b = (*b)[:n]
		return b
	}
	b := make([]byte, n, 1<<(class+minBits))
	return &b
}

// Put returns a slice from Get to the pool. Its length may have changed. If its capacity is
// no longer one of the size classes, it is left to the garbage collector.
func (s *Slices) Put(b *[]byte) {
	class := classOf(cap(*b))
	if class < len(s.pools) && cap(*b) == 1<<(class+minBits) {
		s.pools[class].Put(b)
	}
}
