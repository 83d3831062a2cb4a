package calibrate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/machine"
)

// A bench runs requests in fake time.
type bench struct {
	takes func(rows, instances int) time.Duration
	fails func(rows int) error
	busy  []bool // whether it has to make way, the next times
	waits []time.Duration
}

func (b *bench) Probe(ctx context.Context, req *infer.Request, instances, runs int) ([]time.Duration, error) {
	if b.fails != nil {
		if err := b.fails(req.Rows); err != nil {
			return nil, err
		}
	}
	if len(b.busy) > 0 {
		busy := b.busy[0]
		b.busy = b.busy[1:]
		if busy {
			return nil, nil
		}
	}
	took := b.takes(req.Rows, instances)
	timer := time.NewTimer(took * time.Duration(runs))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	return slices.Repeat([]time.Duration{took}, runs*instances), nil
}

func (b *bench) job(bounds Bounds) Job {
	return Job{
		Runner: b, Bounds: bounds,
		Request: func(rows int) (*infer.Request, error) { return &infer.Request{Rows: rows}, nil },
		Await: func(ctx context.Context, quiet time.Duration) error {
			b.waits = append(b.waits, quiet)
			return ctx.Err()
		},
	}
}

func linear(rows, instances int) time.Duration {
	return time.Duration(instances) * (10*ms + time.Duration(rows)*ms)
}

func TestAModelIsMeasuredToTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &bench{takes: linear}
		told := 0
		job := b.job(Bounds{MaxRows: 4, Instances: 2})
		job.OnProgress = func(Findings) { told++ }
		f, err := Measure(t.Context(), job, Findings{})
		if err != nil || told != 7 || len(f.Profile.Sizes) != 4 || f.Profile.Sizes[3].Median != 14*ms || !slices.Equal(f.Profile.Slowdown, []float64{1, 2}) {
			t.Errorf("told %d times: %+v, %v", told, f, err)
		}
		if want := []time.Duration{50 * ms, 0, 0, 0, 0, 0, 0}; !slices.Equal(b.waits, want) {
			t.Errorf("waited for quiet of %v, want %v", b.waits, want)
		}
		again, err := Measure(t.Context(), b.job(Bounds{MaxRows: 4, Instances: 2}), f)
		if err != nil || len(again.Profile.Sizes) != 4 || len(b.waits) != 7 {
			t.Errorf("what is known was measured again: %+v, %v", again, err)
		}
	})
}

func TestMeasuringStandsBackWhenRequestsCome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// Away twice, then a first run; away before the others; then two sizes, each twice.
		b := &bench{takes: linear, busy: []bool{true, true, false, true}}
		f, err := Measure(t.Context(), b.job(Bounds{MaxRows: 2, Instances: 1}), Findings{})
		if err != nil || len(f.Profile.Sizes) != 2 {
			t.Errorf("%+v, %v", f, err)
		}
		if want := []time.Duration{50 * ms, 100 * ms, 200 * ms, 400 * ms, 0, 0, 0}; !slices.Equal(b.waits, want) {
			t.Errorf("waited for quiet of %v, want %v", b.waits, want)
		}
	})
}

func TestWhatOthersDisturbedIsMeasuredAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pairs := 0
		b := &bench{takes: func(rows, instances int) time.Duration {
			if instances == 2 {
				if pairs++; pairs <= 3 { // the first run, which never counts, and two attempts
					return 20 * linear(rows, 1)
				}
				return linear(rows, 1) * 3 / 2
			}
			return linear(rows, 1)
		}}
		f, err := Measure(t.Context(), b.job(Bounds{MaxRows: 1, Instances: 2}), Findings{})
		if err != nil || pairs != 4 || !slices.Equal(f.Profile.Slowdown, []float64{1, 1.5}) {
			t.Errorf("%+v after %d tries, %v", f, pairs, err)
		}
	})
	f := Findings{}.add(Step{Rows: 2, Instances: 1}, []time.Duration{10 * ms})
	for _, tt := range []struct {
		instances int
		took      []time.Duration
		want      bool
	}{
		{1, []time.Duration{10 * ms, 12 * ms, 99 * ms}, false}, // one that is late says nothing
		{1, []time.Duration{10 * ms, 13 * ms, 14 * ms}, true},
		{2, []time.Duration{24 * ms, 25 * ms, 25 * ms}, false},
		{2, []time.Duration{26 * ms, 26 * ms, 26 * ms}, true},
	} {
		if got := f.doubtful(Step{Rows: 2, Instances: tt.instances}, tt.took); got != tt.want {
			t.Errorf("%d at once took %v: doubted %v", tt.instances, tt.took, got)
		}
	}
}

func TestWhatOthersDisturbedEachTimeIsNotWorthKeeping(t *testing.T) {
	for name, tt := range map[string]struct {
		busy func(time.Duration) time.Duration // for how long cores were waited for, by the time that has passed
		want bool
		runs int
	}{
		"alone":    {func(time.Duration) time.Duration { return time.Hour }, false, 4},
		"hardly":   {func(passed time.Duration) time.Duration { return passed / 10 }, false, 4},
		"always":   {func(passed time.Duration) time.Duration { return passed / 4 }, true, 8},
		"at first": {func(passed time.Duration) time.Duration { return min(passed, 50*ms) }, false, 5},
	} {
		synctest.Test(t, func(t *testing.T) {
			tries := 0
			b := &bench{takes: func(rows, instances int) time.Duration {
				tries++
				return linear(rows, instances)
			}}
			job := b.job(Bounds{MaxRows: 1, Instances: 1})
			began := time.Now()
			job.Waited = func() time.Duration { return tt.busy(time.Since(began)) }
			f, err := Measure(t.Context(), job, Findings{})
			if err != nil || f.Disturbed != tt.want || tries != tt.runs || f.Profile.Sizes[0].Median != 11*ms {
				t.Errorf("%s: %+v after %d tries, %v", name, f, tries, err)
			}
		})
	}
}

func TestMemoryEndsTheSizes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &bench{takes: linear, fails: func(rows int) error {
			if rows > 2 {
				return fmt.Errorf("%w, really", engine.ErrExhausted)
			}
			return nil
		}}
		f, err := Measure(t.Context(), b.job(Bounds{MaxRows: 8, Instances: 1}), Findings{})
		if err != nil || len(f.Profile.Sizes) != 2 || f.StopReason != "memory ran out" {
			t.Errorf("%+v, %v", f, err)
		}
		job := (&bench{takes: linear}).job(Bounds{MaxRows: 8, Instances: 1})
		job.Memory = func() machine.Memory { return machine.Memory{Limit: 800, Free: 99} }
		f, err = Measure(t.Context(), job, Findings{})
		if err != nil || len(f.Profile.Sizes) != 1 || f.StopReason != "memory is low" {
			t.Errorf("%+v, %v", f, err)
		}
	})
}

func TestMemoryThatStaysLowEndsTheMeasurement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		largest, checks := 0, 0
		b := &bench{takes: func(rows, instances int) time.Duration {
			largest = max(largest, rows)
			return linear(rows, instances)
		}}
		job := b.job(Bounds{MaxRows: 8, Instances: 2})
		job.Memory = func() machine.Memory {
			if largest < 6 {
				return machine.Memory{Limit: 800, Free: 800}
			}
			if checks++; checks > 10 {
				cancel()
			}
			return machine.Memory{Limit: 800, Free: 99}
		}
		f, err := Measure(ctx, job, Findings{})
		if err != nil || len(f.Profile.Sizes) != 6 || f.StopReason != "memory is low" {
			t.Errorf("%+v, %v", f, err)
		}
	})
}

func TestAModelThatCannotRunOneRowIsNotMeasured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := errors.New("broken")
		b := &bench{takes: linear, fails: func(int) error { return broken }}
		if _, err := Measure(t.Context(), b.job(Bounds{MaxRows: 8, Instances: 1}), Findings{}); !errors.Is(err, broken) {
			t.Errorf("%v", err)
		}
		exhausted := &bench{takes: linear, fails: func(int) error { return engine.ErrExhausted }}
		if f, err := Measure(t.Context(), exhausted.job(Bounds{MaxRows: 8, Instances: 1}), Findings{}); err != nil || len(f.Profile.Sizes) != 0 || f.StopReason != "memory ran out" {
			t.Errorf("%+v, %v", f, err)
		}
		endless := &bench{takes: func(int, int) time.Duration { return time.Hour }}
		if _, err := Measure(t.Context(), endless.job(Bounds{MaxRows: 8, Instances: 1}), Findings{}); !errors.Is(err, errStepTimeout) {
			t.Errorf("%v", err)
		}
	})
}
