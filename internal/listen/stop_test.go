package listen

import (
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A busyServer has requests in flight until they end.
type busyServer struct {
	ends    time.Time
	drained bool
}

func (b *busyServer) Drain() { b.drained = true }

func (b *busyServer) InFlight() int {
	if time.Now().Before(b.ends) {
		return 2
	}
	return 0
}

func TestStopWaitsForRequestsInFlight(t *testing.T) {
	for _, tt := range []struct {
		takes, want time.Duration
		aborted     string // in the error; "" means none
	}{
		{0, 0, ""},
		{3 * time.Second, 3 * time.Second, ""},
		{time.Hour, 5 * time.Second, "2 requests"},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := &busyServer{ends: time.Now().Add(tt.takes)}
			ports, err := Open(b, nil, Options{Log: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			err = ports.Stop(5 * time.Second)
			if took := time.Since(began); took != tt.want || !b.drained {
				t.Errorf("requests of %v: stopped after %v, want %v; drained %t", tt.takes, took, tt.want, b.drained)
			}
			if (err != nil) != (tt.aborted != "") || err != nil && !strings.Contains(err.Error(), tt.aborted) {
				t.Errorf("requests of %v: %v", tt.takes, err)
			}
		})
	}
}
