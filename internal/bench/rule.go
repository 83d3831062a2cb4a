package bench

import "slices"

// stableWindows is the number of consecutive windows that must agree.
const stableWindows = 3

// A Rule decides when the windows are stable.
type Rule struct {
	Percent    float64 // maximum difference between windows
	Percentile float64 // of the latency to compare; 0 means the mean
}

// Stable reports whether the last three windows agree: in throughput and in latency the
// largest is at most Percent above the smallest. A window without answers never agrees.
func (r Rule) Stable(windows []*Window) bool {
	if len(windows) < stableWindows {
		return false
	}
	var rates, latencies []float64
	for _, w := range last(windows) {
		if w.Requests() == 0 {
			return false
		}
		rates = append(rates, w.Rate())
		latencies = append(latencies, float64(w.Latency(r.Percentile)))
	}
	return r.agree(rates) && r.agree(latencies)
}

func (r Rule) agree(values []float64) bool {
	return slices.Max(values) <= slices.Min(values)*(1+r.Percent/100)
}

// last returns the reported windows: the last stableWindows of them, or all if there are
// fewer.
func last[W any](windows []W) []W { return windows[max(0, len(windows)-stableWindows):] }
