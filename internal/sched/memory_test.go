package sched

import (
	"testing"

	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/tensor"
)

func TestTheMemoryOfALargeBatchIsGivenBack(t *testing.T) {
	var w worker
	join := func(size int) int {
		one := func() *call { return &call{req: &infer.Request{Inputs: []tensor.Tensor{{Data: make([]byte, size)}}}} }
		if got := len(w.concatenate([]*call{one(), one()}, 0)); got != 2*size {
			t.Fatalf("joined %d bytes, want %d", got, 2*size)
		}
		return cap(w.joined[0])
	}
	if large := join(8 * maxKeptBytes); large < 16*maxKeptBytes {
		t.Fatalf("%d bytes for the large batch", large)
	}
	if kept := join(100); kept > maxKeptBytes {
		t.Errorf("%d bytes are kept after a small batch", kept)
	}
	kept := join(1000)
	if again := join(100); again != kept {
		t.Errorf("%d bytes, then %d: memory of small batches is to be used again", kept, again)
	}
}
