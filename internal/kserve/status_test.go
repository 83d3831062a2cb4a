package kserve

import (
	"testing"
	"time"
)

func TestTheTimeToRetryIsInWholeSeconds(t *testing.T) {
	for after, want := range map[time.Duration]string{0: "1", time.Millisecond: "1", time.Second: "1", 1001 * time.Millisecond: "2"} {
		if got := RetrySeconds(after); got != want {
			t.Errorf("%v: %s seconds, want %s", after, got, want)
		}
	}
}
