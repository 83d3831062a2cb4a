// Package buf provides pooled, reference-counted memory for tensors.
//
// A new [Buf] has one reference, which belongs to the caller that created it. Each further
// user takes a reference with Retain, and each user gives up its reference with Release,
// once; the last Release returns the memory to the pool. Releasing more often than retaining
// panics. A reference that is never released shows up in [Live], which tests compare with
// zero.
package buf

import (
	"math/bits"
	"sync"
	"sync/atomic"
)

// A Buf is a reference-counted piece of memory. Retain and Release may be called
// concurrently. Both do nothing on a nil Buf, which stands for memory that is left to the
// garbage collector.
type Buf struct {
	B []byte

	refs  atomic.Int32
	class int    // index of its pool; -1 if it does not belong to one
	free  func() // called at the last Release; may be nil
}

// Pooled sizes are powers of two from 1 KiB to 64 MiB. Smaller sizes are not worth their own
// pool, and larger buffers are rare enough to leave to the garbage collector.
const (
	minBits = 10
	maxBits = 26
)

var (
	pools [maxBits - minBits + 1]sync.Pool
	live  atomic.Int64
)

// Get returns a Buf of n bytes with one reference, which the caller must release. The
// content is arbitrary.
func Get(n int) *Buf {
	live.Add(1)
	class := classOf(n)
	if class >= len(pools) {
		return withRef(&Buf{B: make([]byte, n), class: -1})
	}
	if b, ok := pools[class].Get().(*Buf); ok {
		b.B = b.B[:n]
		return withRef(b)
	}
	return withRef(&Buf{B: make([]byte, n, 1<<(class+minBits)), class: class})
}

// Wrap returns a Buf for existing memory, with one reference, which the caller must
// release. The last Release calls free, if that is not nil.
func Wrap(b []byte, free func()) *Buf {
	live.Add(1)
	return withRef(&Buf{B: b, class: -1, free: free})
}

// withRef returns b with one reference.
func withRef(b *Buf) *Buf {
	b.refs.Store(1)
	return b
}

// Capacity returns how much memory Get takes for n bytes.
func Capacity(n int) int {
	if class := classOf(n); class < len(pools) {
		return 1 << (class + minBits)
	}
	return n
}

func classOf(n int) int {
	if n <= 1<<minBits {
		return 0
	}
	return bits.Len(uint(n-1)) - minBits
}

// Retain adds a reference. The caller must hold one already.
func (b *Buf) Retain() {
	if b == nil {
		return
	}
	if b.refs.Add(1) <= 1 {
		panic("buf: retained after its last release")
	}
}

// Release gives up one reference. The caller must not use the memory afterwards.
func (b *Buf) Release() {
	if b != nil { // inlined: many requests have no memory of one kind or another
		b.release()
	}
}

func (b *Buf) release() {
	switch n := b.refs.Add(-1); {
	case n > 0:
		return
	case n < 0:
		panic("buf: released more often than retained")
	}
	live.Add(-1)
	if b.free != nil {
		b.free()
	}
	if b.class >= 0 {
		pools[b.class].Put(b)
	}
}

// Live returns the number of buffers that have references. It is zero if there is no leak.
func Live() int64 { return live.Load() }
