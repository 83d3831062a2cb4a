package calibrate

import (
	"slices"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
)

func profile(slowdown []float64, sizes ...batching.Timing) Findings {
	return Findings{Profile: batching.Profile{Sizes: sizes, Slowdown: slowdown}}
}

func TestTheChoice(t *testing.T) {
	size := func(rows int, took time.Duration) batching.Timing {
		return batching.Timing{Rows: rows, Median: took, P95: took, Runs: 5}
	}
	for _, tt := range []struct {
		name     string
		settings []Setting
		want     Choice
	}{
		{
			"batching costs: one row, on both cores",
			[]Setting{
				{1, profile([]float64{1, 1}, size(1, 20*ms), size(2, 53*ms))},
				{2, profile(nil, size(1, 19*ms), size(2, 50*ms))},
			},
			Choice{Threads: 1, Instances: 2, Rows: 1, PerSecond: 100, SingleLatency: 20 * ms},
		},
		{
			"two threads are twice as fast while nobody else wants a core: one thread each, and both for one that is alone",
			[]Setting{
				{1, profile([]float64{1, 1}, size(1, 4*ms), size(2, 8*ms))},
				{2, profile(nil, size(1, 2*ms), size(2, 4*ms))},
			},
			Choice{Threads: 1, ExclusiveThreads: 2, Instances: 2, Rows: 1, PerSecond: 500, SingleLatency: 2 * ms},
		},
		{
			"instances disturb each other: two threads for each batch",
			[]Setting{
				{1, profile([]float64{1, 1.6}, size(1, 4*ms), size(2, 8*ms))},
				{2, profile(nil, size(1, 2*ms), size(2, 4*ms))},
			},
			Choice{Threads: 2, Instances: 1, Rows: 1, PerSecond: 500, SingleLatency: 2 * ms},
		},
		{
			"one that is alone has little of two threads",
			[]Setting{
				{1, profile([]float64{1, 1}, size(1, 4*ms), size(2, 8*ms))},
				{2, profile(nil, size(1, 3800*time.Microsecond), size(2, 7500*time.Microsecond))},
			},
			Choice{Threads: 1, Instances: 2, Rows: 1, PerSecond: 500, SingleLatency: 4 * ms},
		},
		{
			"one row takes longer on two threads",
			[]Setting{
				{1, profile([]float64{1, 1}, size(1, 4*ms), size(2, 8*ms), size(3, 12*ms))},
				{2, profile(nil, size(1, 5*ms), size(2, 6*ms), size(3, 7*ms))},
			},
			Choice{Threads: 1, Instances: 2, Rows: 1, PerSecond: 500, SingleLatency: 4 * ms},
		},
		{
			"of several sizes one was disturbed",
			[]Setting{
				{1, profile([]float64{1, 1}, size(1, 4*ms), size(2, 8*ms), size(3, 12*ms))},
				{2, profile(nil, size(1, 4*ms), size(2, 4*ms), size(3, 6*ms))},
			},
			Choice{Threads: 1, ExclusiveThreads: 2, Instances: 2, Rows: 1, PerSecond: 500, SingleLatency: 4 * ms},
		},
		{
			"there is one instance: all batches are alone",
			[]Setting{{1, profile(nil, size(1, 4*ms))}, {2, profile(nil, size(1, 2*ms))}},
			Choice{Threads: 2, Instances: 1, Rows: 1, PerSecond: 500, SingleLatency: 2 * ms},
		},
		{
			"a second instance brings nothing",
			[]Setting{{1, profile([]float64{1, 2}, size(1, 4*ms), size(4, 8*ms))}},
			Choice{Threads: 1, Instances: 1, Rows: 4, PerSecond: 500, SingleLatency: 4 * ms},
		},
		{
			"a second instance brings two percent",
			[]Setting{{1, profile([]float64{1, 1.96}, size(1, 4*ms))}},
			Choice{Threads: 1, Instances: 1, Rows: 1, PerSecond: 250, SingleLatency: 4 * ms},
		},
		{
			"a second instance brings four percent",
			[]Setting{{1, profile([]float64{1, 1.92}, size(1, 4*ms))}},
			Choice{Threads: 1, Instances: 2, Rows: 1, PerSecond: 250 * 2 / 1.92, SingleLatency: 4 * ms},
		},
		{
			"four threads are as good as two",
			[]Setting{{1, profile(nil, size(1, 8*ms))}, {2, profile(nil, size(1, 4*ms))}, {4, profile(nil, size(1, 4*ms))}},
			Choice{Threads: 2, Instances: 1, Rows: 1, PerSecond: 250, SingleLatency: 4 * ms},
		},
		{
			"batches never overlap: no second copy for exclusive ones",
			[]Setting{{1, profile([]float64{1}, size(1, 6*ms))}, {2, profile(nil, size(1, 5*ms))}},
			Choice{Threads: 1, Instances: 1, Rows: 1, PerSecond: 1000.0 / 6, SingleLatency: 6 * ms},
		},
		{
			"more threads bring nothing",
			[]Setting{{1, profile(nil, size(1, 4*ms))}, {2, profile(nil, size(1, 4*ms))}},
			Choice{Threads: 1, Instances: 1, Rows: 1, PerSecond: 250, SingleLatency: 4 * ms},
		},
	} {
		if got := Choose(tt.settings); got != tt.want {
			t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
		}
	}
}

func TestAnExclusiveBatchIsFasterThanOthers(t *testing.T) {
	settings := []Setting{
		{1, profile([]float64{1, 1.2}, batching.Timing{Rows: 1, Median: 4 * ms})},
		{2, profile(nil, batching.Timing{Rows: 1, Median: 2 * ms})},
	}
	runs := Choice{Threads: 1, ExclusiveThreads: 2}
	got := runs.Profile(settings)
	// Half as long, and somewhat more while there are clients.
	if !slices.Equal(got.Slowdown, []float64{0.5 / threadedLoadFactor, 1.2}) || timeOf(got, 1) != 4*ms {
		t.Errorf("found %+v", got)
	}
	if settings[0].Findings.Profile.Slowdown[0] != 1 {
		t.Error("what was measured has changed")
	}
	if got := runs.Profile(settings[1:]); len(got.Sizes) > 0 {
		t.Errorf("without a figure of the usual number of threads: %+v", got)
	}
}

func TestThreadsThatAreTried(t *testing.T) {
	for cores, want := range map[int][]int{0: {1}, 1: {1}, 2: {1, 2}, 6: {1, 2, 4, 6}, 8: {1, 2, 4, 8}} {
		if got := ThreadCounts(cores); !slices.Equal(got, want) {
			t.Errorf("%d cores: %v, want %v", cores, got, want)
		}
	}
}
