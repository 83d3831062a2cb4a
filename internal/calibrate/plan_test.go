package calibrate

import (
	"slices"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
)

const ms = time.Millisecond

// follow carries out the plan on a model whose batches take the given time, and returns the steps.
func follow(b Bounds, takes func(rows, instances int) time.Duration) (steps []Step, f Findings) {
	for {
		s, more := Next(b, f)
		if !more {
			return steps, f
		}
		steps = append(steps, s)
		f = f.add(s, slices.Repeat([]time.Duration{takes(s.Rows, s.Instances)}, s.Runs*s.Instances))
	}
}

func rowsOf(steps []Step) (all []int) {
	for _, s := range steps {
		all = append(all, s.Rows)
	}
	return all
}

func TestSizesAreMeasuredInOrderAndThenInstances(t *testing.T) {
	steps, f := follow(Bounds{MaxRows: 64, Instances: 3}, func(rows, instances int) time.Duration {
		return time.Duration(instances) * (5*ms + time.Duration(rows)*ms/2)
	})
	want := []int{1, 1, 2, 3, 4, 5, 6, 8, 9, 10, 12, 14, 16, 17, 20, 24, 28, 32, 33, 40, 48, 56, 64, 64, 64, 64}
	if !slices.Equal(rowsOf(steps), want) {
		t.Errorf("sizes %v, want %v", rowsOf(steps), want)
	}
	for i, s := range steps {
		want := Step{Rows: s.Rows, Instances: 1, Runs: 5}
		switch {
		case i == 1:
			want.Runs = 18 // for 100 ms
		case i == 23:
			want.Runs = 10 // the best once more
		case i > 23:
			want.Instances, want.Runs = i-22, 3
		}
		if s != want {
			t.Errorf("step %d is %+v, want %+v", i, s, want)
		}
	}
	if !slices.Equal(f.Profile.Slowdown, []float64{1, 2, 3}) {
		t.Errorf("slowdown %v", f.Profile.Slowdown)
	}
	if got, want := f.Profile.Sizes[21], (batching.Timing{Rows: 64, Median: 37 * ms, P95: 37 * ms, Runs: 10}); got != want {
		t.Errorf("found %+v, want %+v", got, want)
	}
}

func TestLargeSizesAreFewAndTheLargestIsAmongThem(t *testing.T) {
	steps, _ := follow(Bounds{MaxRows: 150, Instances: 1}, func(int, int) time.Duration { return 10 * ms })
	if got, want := rowsOf(steps)[22:], []int{64, 65, 80, 96, 112, 128, 129, 150, 150}; !slices.Equal(got, want) {
		t.Errorf("sizes %v, want %v", got, want)
	}
}

func TestASizeThatTakesLongerThanASecondIsTheLast(t *testing.T) {
	steps, _ := follow(Bounds{MaxRows: 64, Instances: 2}, func(rows, _ int) time.Duration { return time.Duration(rows) * 300 * ms })
	if got, want := rowsOf(steps), []int{1, 2, 3, 4, 1}; !slices.Equal(got, want) {
		t.Errorf("sizes %v, want %v", got, want)
	}
}

func TestSizesFarBeyondTheBestAreNotMeasured(t *testing.T) {
	steps, _ := follow(Bounds{MaxRows: 64, Instances: 1}, func(rows, _ int) time.Duration { return time.Duration(rows*rows) * 3 * ms })
	if got, want := rowsOf(steps), []int{1, 1, 2, 3, 4, 5, 6, 8, 9, 10, 12, 14, 16}; !slices.Equal(got, want) {
		t.Errorf("sizes %v, want %v", got, want)
	}
	if last := steps[len(steps)-1]; last.Runs != 3 {
		t.Errorf("what is long is run %d times", last.Runs)
	}
}

func TestWhatEndedIsNotTriedAgain(t *testing.T) {
	f := Findings{Profile: batching.Profile{Sizes: []batching.Timing{{Rows: 1, Median: 10 * ms, P95: 10 * ms, Runs: 10}}}, StopReason: "memory ran out"}
	if s, more := Next(Bounds{MaxRows: 8, Instances: 1}, f); more {
		t.Errorf("%+v comes next", s)
	}
}

func TestShortBatchesAreRunMoreOften(t *testing.T) {
	steps, f := follow(Bounds{MaxRows: 2, Instances: 1}, func(int, int) time.Duration { return ms / 2 })
	want := []Step{{1, 1, 5}, {1, 1, 64}, {2, 1, 20}}
	if !slices.Equal(steps, want) || len(f.Profile.Sizes) != 2 || f.Profile.Sizes[0].Runs != 64 {
		t.Errorf("steps %v, want %v; found %+v", steps, want, f)
	}
}

func TestASizeThatWasLuckyDoesNotWin(t *testing.T) {
	seen := map[int]int{}
	steps, f := follow(Bounds{MaxRows: 4, Instances: 1}, func(rows, _ int) time.Duration {
		if seen[rows]++; rows == 3 && seen[rows] == 1 {
			return 5 * ms
		}
		return time.Duration(5+5*rows) * ms
	})
	if got, want := rowsOf(steps), []int{1, 1, 2, 3, 4, 3, 4}; !slices.Equal(got, want) || mostEfficient(f.Profile).Rows != 4 {
		t.Errorf("sizes %v, want %v; the best is %+v", got, want, mostEfficient(f.Profile))
	}
}

func TestAFindingIsTheMiddleAndTheSlowest(t *testing.T) {
	f := Findings{}.add(Step{Rows: 1, Instances: 1, Runs: 5}, []time.Duration{9, 1, 3, 2, 4})
	if got, want := f.Profile.Sizes[0], (batching.Timing{Rows: 1, Median: 3, P95: 4, Runs: 5}); got != want {
		t.Errorf("found %+v, want %+v", got, want)
	}
}
