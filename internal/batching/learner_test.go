package batching_test

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
)

const ms = time.Millisecond

// taught returns a learner that has seen batches of 1 to 8 rows, in turn, which take 2 ms
// plus 1 ms per row.
func taught(batches int) *batching.Learner {
	var l batching.Learner
	for i := range batches {
		rows := 1 + i%8
		l.Record(rows, 1, 2*ms+time.Duration(rows)*ms)
	}
	return &l
}

func about(t *testing.T, what string, got, want time.Duration, off float64) {
	t.Helper()
	if math.Abs(float64(got-want)) > off*float64(want) {
		t.Errorf("%s is predicted to take %v, want %v", what, got, want)
	}
}

func TestNothingIsPredictedBeforeFiveBatches(t *testing.T) {
	if got := taught(4).Predict(batching.Size{Rows: 4}, 1); got != 0 {
		t.Errorf("after 4 batches it says %v", got)
	}
	if got := taught(5).Predict(batching.Size{Rows: 4}, 1); got == 0 {
		t.Error("after 5 batches it says nothing")
	}
	if got := taught(100).Predict(batching.Size{Rows: 4}, 2); got != 0 {
		t.Errorf("no two batches ran at once, but of that it says %v", got)
	}
}

func TestSizesThatWereNotSeenAreOnTheLine(t *testing.T) {
	l := taught(64)
	about(t, "a batch of 4 rows", l.Predict(batching.Size{Rows: 4}, 1), 6*ms, 0.001)
	about(t, "a batch of 20 rows", l.Predict(batching.Size{Rows: 20}, 1), 22*ms, 0.001)
}

func TestWhereOneSizeWasSeenOthersTakeNoLess(t *testing.T) {
	var l batching.Learner
	for range 32 {
		l.Record(8, 1, 10*ms)
	}
	about(t, "a smaller batch", l.Predict(batching.Size{Rows: 1}, 1), 10*ms, 0.001)
	about(t, "a larger batch", l.Predict(batching.Size{Rows: 16}, 1), 20*ms, 0.001)
}

func TestOneBatchInTwentyTakesLongerThanPredicted(t *testing.T) {
	var l batching.Learner
	chance := rand.New(rand.NewPCG(1, 1))
	longer := 0
	for i := range 20_000 {
		rows := 1 + chance.IntN(16)
		took := time.Duration(float64(5*ms+time.Duration(rows)*ms/2) * math.Exp(0.1*chance.NormFloat64()))
		if i >= 1_000 && took > l.Predict(batching.Size{Rows: rows}, 1) {
			longer++
		}
		l.Record(rows, 1, took)
	}
	if share := float64(longer) / 19_000; share < 0.03 || share > 0.07 {
		t.Errorf("%.1f %% take longer than predicted, want 5", 100*share)
	}
}

func TestTheFirstBatchIsNotLearntFrom(t *testing.T) {
	var l batching.Learner
	l.Record(1, 1, time.Second)
	for range 8 {
		l.Record(1, 1, ms)
	}
	about(t, "a batch", l.Predict(batching.Size{Rows: 1}, 1), ms, 0.001)
}

func TestAModelThatChangesItsSpeedIsFollowed(t *testing.T) {
	l := taught(256)
	for range 64 {
		l.Record(8, 1, 20*ms)
	}
	about(t, "a batch of a model that is twice as slow", l.Predict(batching.Size{Rows: 8}, 1), 20*ms, 0.3)
	for range 64 {
		l.Record(8, 1, 5*ms)
	}
	about(t, "a batch of one that is four times as fast again", l.Predict(batching.Size{Rows: 8}, 1), 5*ms, 0.6)
}

func TestWhatWasLongAgoIsForgotten(t *testing.T) {
	l := taught(64)
	for range 64 {
		l.Record(8, 2, 30*ms)
	}
	about(t, "one of two batches at once", l.Predict(batching.Size{Rows: 8}, 2), 30*ms, 0.001)
	for range 257 {
		l.Record(8, 1, 10*ms)
	}
	if got := l.Predict(batching.Size{Rows: 8}, 2); got != 0 {
		t.Errorf("it still says %v of two batches at once", got)
	}
}
