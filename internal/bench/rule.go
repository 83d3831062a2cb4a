package bench

import "slices"

// stableWindows is how many windows in a row have to agree.
const stableWindows = 3

// A Rule says when the windows so far are enough.
type Rule struct {
	Percent    float64 // by which the windows may differ
	Percentile float64 // of the latency that they are compared by; 0 means the mean
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

// last returns the windows that are reported: as many as have to agree, or all
// if there are fewer.
func last[W any](windows []W) []W { return windows[max(0, len(windows)-stableWindows):] }
