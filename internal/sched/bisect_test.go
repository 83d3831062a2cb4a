package sched

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/engine/enginetest"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/tensor"
)

// poisoned fails for every batch that has a row which begins with "bad".
func poisoned(in []tensor.Tensor) error {
	if bytes.Contains(in[0].Data, []byte("bad")) {
		return errors.New("bad row")
	}
	return nil
}

// startBisecting returns a scheduler whose first batch, of 8 rows, ends after
// 10ms, and 1ms for each batch after that.
func startBisecting(t *testing.T, fails func([]tensor.Tensor) error) (*bench, *enginetest.Echo) {
	t.Helper()
	first := true
	eng := &enginetest.Echo{Fails: fails, Takes: func(int) time.Duration {
		if first {
			first = false
			return 10 * ms
		}
		return ms
	}}
	b := start(t, eng, 1, Options{Bisect: true, Batching: batching.Config{MaxRows: 8, Policy: batching.Triton{MaxRows: 8}}})
	b.submit(0, request("z", 8), 10*ms)
	return b, eng
}

func TestABadRequestFailsAlone(t *testing.T) {
	for position := range 8 {
		t.Run(fmt.Sprint(position), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, eng := startBisecting(t, poisoned)
				// One run of all eight, then of 4 and 4, 2 and 2, 1 and 1: seven.
				const ends = 10*ms + 7*ms
				for i := range 8 {
					at := time.Duration(1+i) * ms
					if i == position {
						b.submit(at, request("bad", 1), ends, infer.Internal)
					} else {
						b.submit(at, request(fmt.Sprint("r", i), 1), ends)
					}
				}
				b.finish()
				runs, most := len(eng.Batches())-1, 2*bits.Len(7)+1
				if runs > most {
					t.Errorf("one bad row among 8 took %d runs, want at most %d", runs, most)
				}
			})
		})
	}
}

func TestSeveralBadRequestsFailAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, _ := startBisecting(t, poisoned)
		const ends = 10*ms + 5*ms // all five; the first two, each by itself; the last three
		b.submit(1*ms, request("bad1", 1), ends, infer.Internal)
		b.submit(2*ms, request("bad2", 1), ends, infer.Internal)
		b.submit(3*ms, request("c", 1), ends)
		b.submit(4*ms, request("d", 1), ends)
		b.submit(5*ms, request("e", 4), ends)
		b.finish()
	})
}

func TestABatchThatIsBadAltogetherIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, eng := startBisecting(t, poisoned)
		const runs = 1 + 4*3 // of the 15 that it would take to run each of eight by itself
		for i := range 8 {
			b.submit(time.Duration(1+i)*ms, request(fmt.Sprint("bad", i), 1), 10*ms+runs*ms, infer.Internal)
		}
		b.finish()
		if got := len(eng.Batches()) - 1; got != runs {
			t.Errorf("%d runs, want %d", got, runs)
		}
	})
}

func TestMemoryThatRanOutIsNotTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, eng := startBisecting(t, func(in []tensor.Tensor) error {
			if strings.HasPrefix(string(in[0].Data), "z") {
				return nil
			}
			return fmt.Errorf("no room: %w", engine.ErrExhausted)
		})
		b.submit(1*ms, request("a", 1), 11*ms, infer.Internal)
		b.submit(2*ms, request("b", 1), 11*ms, infer.Internal)
		b.finish()
		if got, want := eng.Batches(), []int{8, 2}; !slices.Equal(got, want) {
			t.Errorf("batches of %v rows, want %v", got, want)
		}
	})
}

func TestWhoLeavesWhileABatchIsCutDoesNotRunAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, eng := startBisecting(t, poisoned)
		ctx, cancel := context.WithTimeout(t.Context(), 10*ms+ms/2)
		defer cancel()
		// Both are run once, which fails at 11ms. By then "late" has had its answer,
		// and only "bad" is run again.
		b.submitContext(ctx, 1*ms, request("late", 1), 10*ms+ms/2, infer.Deadline)
		b.submit(2*ms, request("bad", 1), 12*ms, infer.Internal)
		b.finish()
		if got, want := eng.Batches(), []int{8, 2, 1}; !slices.Equal(got, want) {
			t.Errorf("batches of %v rows, want %v", got, want)
		}
	})
}
