package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

// Sequences says how requests to a model with sequences are put into sequences. Each request
// of a sequence is sent after the one before it was answered.
type Sequences struct {
	Length    int     // mean number of requests of a sequence; 0 means 20
	Variation float64 // the most by which a length differs from Length, in percent
	First     uint64  // the lowest ID; 0 means 1
	Last      uint64  // the highest ID, after which IDs start again; 0 means 2³² - 1. There must be one for each sequence at the same time
	Number    int     // sequences at the same time in an open loop; 0 means 4. A closed loop has one for each client
	Seed      uint64  // of lengths
}

// A Step is the place of a request in its sequence.
type Step struct {
	ID         uint64
	Start, End bool
}

// A SequenceCaller is a [Caller] that can send requests of sequences.
type SequenceCaller interface {
	// InferStep is Infer for a request of a sequence.
	InferStep(ctx context.Context, request int, s Step) error
}

const (
	defaultLength    = 20
	defaultNumber    = 4
	defaultLastID    = 1<<32 - 1
	percentOfALength = 100
)

// A sequencer starts sequences.
type sequencer struct {
	Sequences
	caller SequenceCaller

	mu     sync.Mutex // guards the following
	chance *rand.Rand
	next   uint64          // the ID to try next
	inUse  map[uint64]bool // IDs of sequences that have not ended
}

func newSequencer(s Sequences, c Caller) (*sequencer, error) {
	caller, ok := c.(SequenceCaller)
	if !ok {
		return nil, fmt.Errorf("requests of %T cannot be in sequences", c)
	}
	if s.Length == 0 {
		s.Length = defaultLength
	}
	if s.First == 0 {
		s.First = 1
	}
	if s.Last == 0 {
		s.Last = max(s.First, defaultLastID)
	}
	if s.Number == 0 {
		s.Number = defaultNumber
	}
	return &sequencer{Sequences: s, caller: caller, chance: rand.New(rand.NewPCG(s.Seed, 1)), next: s.First, inUse: map[uint64]bool{}}, nil
}

// A flow is a series of sequences, one after the other. It must not be used concurrently.
type flow struct {
	*sequencer
	id   uint64
	left int // requests of the current sequence
	open bool
}

// start begins the next sequence, with an ID that no other one has. There are at least as many
// IDs as flows.
func (f *flow) start() {
	s := f.sequencer
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		f.id = s.next
		if s.next++; f.id == s.Last {
			s.next = s.First
		}
		if !s.inUse[f.id] {
			break // at the latest after as many tries as there are sequences
		}
	}
	s.inUse[f.id] = true
	most := int(float64(s.Length) * s.Variation / percentOfALength)
	f.left = max(1, s.Length-most+s.chance.IntN(2*most+1))
}

// infer sends the next request. A sequence in which a request fails is given up, because the
// server may have ended it. One whose request was taken back is still open: what the server did
// with that is unknown.
func (f *flow) infer(ctx context.Context, request int) error {
	step := Step{Start: !f.open}
	if !f.open {
		f.start()
	}
	f.left--
	step.ID, step.End = f.id, f.left == 0
	err := f.caller.InferStep(ctx, request, step)
	if f.open = err == nil && !step.End || ctx.Err() != nil; !f.open {
		f.free()
	}
	return err
}

// free lets another sequence have the ID.
func (f *flow) free() {
	f.sequencer.mu.Lock()
	defer f.sequencer.mu.Unlock()
	delete(f.inUse, f.id)
}

// endTimeout is the time limit of a request that ends a sequence.
const endTimeout = 5 * time.Second

// end ends the current sequence with a last request, so that the server frees its slot. It does so
// even if ctx has ended.
func (f *flow) end(ctx context.Context) {
	if f.open {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
		defer cancel()
		_ = f.caller.InferStep(ctx, 0, Step{ID: f.id, End: true}) // it is not measured
		f.open = false
		f.free()
	}
}
