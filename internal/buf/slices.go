package buf

import "sync"

// Slices are pooled memory for a library that counts its users by itself. They come in
// the sizes of a [Buf], and like one with arbitrary content. The zero Slices are ready.
type Slices struct {
	pools [maxBits - minBits + 1]sync.Pool
}

// Get returns n bytes. Whoever has them gives them to Put, or leaves them to the
// garbage collector.
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

// Put takes back what came from Get, of any length. What has grown meanwhile to a size
// that is none of the pool's is left to the garbage collector.
func (s *Slices) Put(b *[]byte) {
	class := classOf(cap(*b))
	if class < len(s.pools) && cap(*b) == 1<<(class+minBits) {
		s.pools[class].Put(b)
	}
}
