package simulate

import (
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/device"
)

// Calibrated returns the profile that an exact calibration on an idle device would
// measure: the times of some sizes, and the slowdown of parallel batches.
func Calibrated(curve device.Curve, slowdown []float64, rows, instances int) batching.Profile {
	const runs = 5
	var p batching.Profile
	for n := 0; n < rows; {
		n = min(rows, batching.NextSize(n))
		if took := curve.Takes(n); took > 0 {
			p.Sizes = append(p.Sizes, batching.Timing{Rows: n, Median: took, P95: took, Runs: runs})
		}
	}
	d := device.Device{Slowdown: slowdown}
	for n := range instances {
		d.Start(0, n, time.Hour)
		p.Slowdown = append(p.Slowdown, float64(d.EndOf(0))/float64(time.Hour))
	}
	return p
}
