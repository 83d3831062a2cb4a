package modelconfig

import (
	"reflect"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
)

func TestWhatTheConfigurationSaysOfBatchingIsKept(t *testing.T) {
	delay := 5 * time.Millisecond
	dynamic := &Dynamic{
		Preferred: []int{8, 4}, MaxDelay: &delay, PreserveOrdering: true, Levels: 2, DefaultLevel: 2,
		Default:  QueuePolicy{MaxSize: 10},
		PerLevel: map[int]QueuePolicy{1: {Action: Delay, Timeout: time.Second, AllowOverride: true}},
	}
	for _, tt := range []struct {
		name string
		cfg  Config
		want batching.Config
	}{
		{"no batch dimension", Config{Dynamic: &Dynamic{}}, batching.Config{MaxRows: 1}},
		{"no scheduling block", Config{MaxBatchSize: 8}, batching.Config{MaxRows: 8}},
		{"all unset", Config{MaxBatchSize: 8, Dynamic: &Dynamic{}}, batching.Config{
			MaxRows: 8, Policy: batching.Triton{MaxRows: 8}, Levels: []batching.Level{{}}, DefaultLevel: 1,
		}},
		{"all set", Config{MaxBatchSize: 8, Dynamic: dynamic}, batching.Config{
			MaxRows: 8, Policy: batching.Triton{MaxRows: 8, Preferred: []int{4, 8}, MaxDelay: delay}, KeepOrder: true,
			Levels: []batching.Level{{Timeout: time.Second, AllowOverride: true, DelayLate: true}, {MaxQueue: 10}}, DefaultLevel: 2,
		}},
	} {
		if got := tt.cfg.Batching(); !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
		}
	}
}
