package modelconfig

import (
	"reflect"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
)

func TestWhatTheConfigurationSaysOfBatchingIsKept(t *testing.T) {
	delay, ten, none := 5*time.Millisecond, 10, 0
	bound := batching.Bound{Requests: 7, Bytes: 9}
	shared := []batching.Level{{UseSharedBound: true, TimeoutIsDeadline: true}}
	dynamic := &Dynamic{
		Preferred: []int{8, 4}, MaxDelay: &delay, PreserveOrdering: true, Levels: 2, DefaultLevel: 2,
		Default:  QueuePolicy{Written: true, MaxSize: &ten},
		PerLevel: map[int]QueuePolicy{1: {Written: true, Action: Delay, Timeout: time.Second, AllowOverride: true}},
	}
	for _, tt := range []struct {
		name string
		cfg  Config
		want batching.Config
	}{
		{"no batch dimension", Config{Dynamic: &Dynamic{}}, batching.Config{MaxRows: 1, Shared: bound, Levels: shared, DefaultLevel: 1}},
		{"no scheduling block", Config{MaxBatchSize: 8}, batching.Config{MaxRows: 8, Shared: bound, Levels: shared, DefaultLevel: 1}},
		{"all unset", Config{MaxBatchSize: 8, Dynamic: &Dynamic{}}, batching.Config{
			MaxRows: 8, Shared: bound, Policy: batching.Triton{MaxRows: 8}, Levels: shared, DefaultLevel: 1,
		}},
		{"a written 0", Config{MaxBatchSize: 8, Dynamic: &Dynamic{Default: QueuePolicy{Written: true, MaxSize: &none}}}, batching.Config{
			MaxRows: 8, Shared: bound, Policy: batching.Triton{MaxRows: 8}, Levels: []batching.Level{{}}, DefaultLevel: 1,
		}},
		{"all set", Config{MaxBatchSize: 8, Dynamic: dynamic}, batching.Config{
			MaxRows: 8, Shared: bound, Policy: batching.Triton{MaxRows: 8, Preferred: []int{4, 8}, MaxDelay: delay}, KeepOrder: true,
			Levels: []batching.Level{{Timeout: time.Second, AllowOverride: true, DelayOnTimeout: true, UseSharedBound: true}, {MaxQueue: 10}}, DefaultLevel: 2,
		}},
	} {
		if got := tt.cfg.Batching(bound); !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
		}
	}
}

func TestWhatTheFileLeavesOutTunesItself(t *testing.T) {
	none := time.Duration(0)
	for _, tt := range []struct {
		name string
		cfg  Config
		want bool
	}{
		{"nothing written", Config{Automatic: true, MaxBatchSize: 8, Dynamic: &Dynamic{}}, true},
		{"nothing of when a batch closes", Config{Automatic: true, MaxBatchSize: 8, Dynamic: &Dynamic{PreserveOrdering: true, Default: QueuePolicy{Written: true}}}, true},
		{"a written 0", Config{Automatic: true, MaxBatchSize: 8, Dynamic: &Dynamic{MaxDelay: &none}}, false},
		{"a preferred size", Config{Automatic: true, MaxBatchSize: 8, Dynamic: &Dynamic{Preferred: []int{4}}}, true},
		{"a preferred size and a delay", Config{Automatic: true, MaxBatchSize: 8, Dynamic: &Dynamic{Preferred: []int{4}, MaxDelay: &none}}, false},
		{"no scheduling block", Config{Automatic: true, MaxBatchSize: 8}, false},
		{"one row at a time", Config{Automatic: true, MaxBatchSize: 1, Dynamic: &Dynamic{}}, false},
		{"as in Triton", Config{MaxBatchSize: 8, Dynamic: &Dynamic{}}, false},
	} {
		if got := tt.cfg.Tunes(); got != tt.want {
			t.Errorf("%s: %t", tt.name, got)
		}
	}
}
