package sched

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/engine/enginetest"
	"github.com/shoal-serving/shoal/tensor"
)

func TestTheShapeOfMostBatchesSettlesTheVote(t *testing.T) {
	times := strings.Repeat
	for _, tt := range []struct {
		name    string
		batches string // a letter is a shape, and k the known one
		want    int    // batches until it is settled; 0 means never
		shape   byte
	}{
		{"nothing else comes", times("k", 1000), 0, 0},
		{"one other", times("k", 100) + "a" + times("k", 100), 0, 0},
		{"another from the start", times("a", 20), 16, 'a'},
		{"another after long", times("k", 1000) + times("a", 20), 1016, 'a'},
		{"too few, now and then", times(times("a", 15)+times("k", 15), 10), 0, 0},
		{"three of four", times("aaak", 10), 30, 'a'},
		{"one of two", times("ak", 500), 0, 0},
		{"two of five, and none has more", times("aakbb", 500), 0, 0},
		{"a few of another, and then most", times("a", 10) + times("b", 30), 36, 'b'},
		{"a known one between", times("a", 8) + "kk" + times("a", 20), 20, 'a'},
	} {
		v, settled, shape := shapeVote{known: 'k'}, 0, byte(0)
		for i := range len(tt.batches) {
			if v.add(uint64(tt.batches[i])) {
				settled, shape = i+1, tt.batches[i]
				break
			}
		}
		if settled != tt.want || shape != tt.shape {
			t.Errorf("%s: settled after %d batches for %q, want %d and %q", tt.name, settled, shape, tt.want, tt.shape)
		}
	}
}

func TestWhoWatchesIsToldTheRowsOfMostBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, &enginetest.Echo{}, 1, Options{Batching: batching.Config{MaxRows: 8, Policy: batching.Triton{MaxRows: 8}}})
		told := make(chan []tensor.Tensor, 1)
		go func() {
			row, err := b.AwaitShapeChange(t.Context(), 7)
			if err != nil {
				t.Error(err)
			}
			told <- row
		}()
		synctest.Wait()
		for i := range 40 {
			req := request("a", 2)
			if req.Shape = 7; i >= 20 {
				req.Shape = 8
			}
			b.submit(0, req, 0)
			b.calls.Wait()
			synctest.Wait()
			if len(told) != 0 != (i >= 35) {
				t.Errorf("told after %d batches: %t", i+1, len(told) != 0)
			}
		}
		if row := <-told; len(row) != 1 || row[0].Name != "x" || !slices.Equal(row[0].Shape, []int64{4}) || row[0].Data != nil {
			t.Errorf("told of %+v", row)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if row, err := b.AwaitShapeChange(ctx, 8); !errors.Is(err, context.Canceled) {
			t.Errorf("told of %v, %v when nobody waits any more", row, err)
		}
		b.submit(0, request("b", 1), 0)
		b.finish()
	})
}
