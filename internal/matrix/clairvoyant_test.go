package matrix

import (
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/device"
)

func TestTheClairvoyantWaitsForThoseWhoCome(t *testing.T) {
	curve := device.Curve{Fixed: 10 * ms, PerRow: 1 * ms}
	for _, tt := range []struct {
		name     string
		arrivals []time.Duration
		want     time.Duration
	}{
		{"one alone begins at once", []time.Duration{0}, 11 * ms},
		{"the second is waited for, since it would wait longer", []time.Duration{0, 2 * ms}, (14*ms + 12*ms) / 2},
		{"one that comes when the first is done is not", []time.Duration{0, 11 * ms}, 11 * ms},
		{"two groups", []time.Duration{0, 0, 30 * ms, 30 * ms}, 12 * ms},
	} {
		if got := clairvoyant(tt.arrivals, curve); got != tt.want {
			t.Errorf("%s: mean latency %v, want %v", tt.name, got, tt.want)
		}
	}
}
