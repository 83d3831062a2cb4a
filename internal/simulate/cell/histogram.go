package cell

import (
	"math"
	"math/bits"
	"strconv"
	"time"
)

// A histogram counts durations in bins whose width is at most 1/64 of their value.
type histogram struct {
	counts [64 * 64]uint32
	total  int
}

// bin returns the bin of a duration: the position of its first bit, and the six bits below.
func bin(d time.Duration) int {
	x := uint64(max(d, 0))
	if x < 64 {
		return int(x)
	}
	shift := bits.Len64(x) - 7
	return (shift+1)*64 + int(x>>shift)&63
}

// from returns the smallest duration of a bin.
func from(bin int) time.Duration {
	if bin < 64 {
		return time.Duration(bin)
	}
	return time.Duration(uint64(64+bin&63) << (bin/64 - 1))
}

func (h *histogram) add(d time.Duration) {
	h.counts[min(bin(d), len(h.counts)-1)]++
	h.total++
}

// quantile returns the middle of the bin of a quantile; 0 if nothing was counted.
func (h *histogram) quantile(p float64) time.Duration {
	rank, seen := int(math.Ceil(p*float64(h.total))), 0
	for b, n := range h.counts {
		if seen += int(n); n > 0 && seen >= rank {
			return (from(b) + from(b+1)) / 2
		}
	}
	return 0
}

func formatHash(h uint64) string { return strconv.FormatUint(h, 16) }
