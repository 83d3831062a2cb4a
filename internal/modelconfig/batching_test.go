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
	shared := []batching.Level{{Shares: true, Ends: true}}
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
			Levels: []batching.Level{{Timeout: time.Second, AllowOverride: true, DelayLate: true, Shares: true}, {MaxQueue: 10}}, DefaultLevel: 2,
		}},
	} {
		if got := tt.cfg.Batching(bound); !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
		}
	}
}
