// Package buf is the memory of tensors: pooled, and counted by its users.
//
// A [Buf] comes with one count, which belongs to whoever asked for it. Each
// further user takes a count of its own with Retain, and each gives its count
// back with Release, once; the last one returns the memory to the pool. A count
// that is given back twice panics where it happens, and one that is never given
// back shows in [Live], which tests compare with zero.
package buf

import (
	"math/bits"
	"sync"
	"sync/atomic"
)

// A Buf is a piece of memory with a count of its users.
type Buf struct {
	B []byte

	users atomic.Int32
	class int    // of the pool it goes back to; -1 if it came from elsewhere
	free  func() // for memory that came from elsewhere
}

// Sizes are powers of two from 1 KiB to 64 MiB. Smaller ones are not worth a
// class, and larger ones are rare enough to leave to the garbage collector.
const (
	minBits = 10
	maxBits = 26
)

var (
	pools [maxBits - minBits + 1]sync.Pool
	live  atomic.Int64
)

// Get returns n bytes with one count, the caller's. Their content is
// arbitrary.
func Get(n int) *Buf {
	live.Add(1)
	class := classOf(n)
	if class >= len(pools) {
		return counted(&Buf{B: make([]byte, n), class: -1})
	}
	if b, ok := pools[class].Get().(*Buf); ok {
		b.B = b.B[:n]
		return counted(b)
	}
	return counted(&Buf{B: make([]byte, n, 1<<(class+minBits)), class: class})
}

// Wrap makes a Buf of memory that lives elsewhere. free is called when the
// last user lets go; nil leaves the memory to the garbage collector.
func Wrap(b []byte, free func()) *Buf {
	live.Add(1)
	return counted(&Buf{B: b, class: -1, free: free})
}

func counted(b *Buf) *Buf {
	b.users.Store(1)
	return b
}

func classOf(n int) int {
	if n <= 1<<minBits {
		return 0
	}
	return bits.Len(uint(n-1)) - minBits
}

// Retain adds a user. Only a user may add another. A nil Buf, which stands
// for memory that nobody counts, is left as it is.
func (b *Buf) Retain() {
	if b == nil {
		return
	}
	if b.users.Add(1) <= 1 {
		panic("buf: retained after its last user let go")
	}
}

// Release gives one count back. The caller must not touch the memory after.
func (b *Buf) Release() {
	if b == nil {
		return
	}
	switch n := b.users.Add(-1); {
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

// Live returns how many buffers have users. It is zero when nobody leaks.
func Live() int64 { return live.Load() }
