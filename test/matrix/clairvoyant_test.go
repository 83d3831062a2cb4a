package matrix

import (
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/device"
)

func TestTheClairvoyantWaitsForLaterRequests(t *testing.T) {
	curve := device.Curve{Fixed: 10 * ms, PerRow: 1 * ms}
	for _, tt := range []struct {
		name     string
		arrivals []time.Duration
		want     time.Duration
	}{
		{"a single request begins at once", []time.Duration{0}, 11 * ms},
		{"the first waits for the second", []time.Duration{0, 2 * ms}, (14*ms + 12*ms) / 2},
		{"the first does not wait for one that arrives when it is done", []time.Duration{0, 11 * ms}, 11 * ms},
		{"two groups", []time.Duration{0, 0, 30 * ms, 30 * ms}, 12 * ms},
	} {
		if got := clairvoyant(tt.arrivals, curve); got != tt.want {
			t.Errorf("%s: mean latency %v, want %v", tt.name, got, tt.want)
		}
	}
}
