package automatic

import "github.com/shoal-serving/shoal/internal/batching"

// gaps is a histogram of the times between consecutive arrivals. Bursts show as many
// short gaps among long ones.
type gaps struct {
	count   [bins]float64
	total   float64 // including gaps beyond the last bin
	last    batching.Time
	started bool
	misses  missedHolds
}

const (
	maxGaps        = 400 // gaps after which old ones decay, by a tenth at a time
	minGaps        = 50  // gaps before the histogram is used
	minBurstFactor = 4   // times as likely as at random; less is not a burst
)

func (g *gaps) arrived(now batching.Time, unit float64) {
	if g.started {
		g.misses.arrived(now - g.last)
	}
	if g.started && unit > 0 {
		if k := binOf(float64(now-g.last) / unit); k < bins {
			g.count[k]++
		}
		if g.total++; g.total > maxGaps {
			for k := range g.count {
				g.count[k] *= 0.9
			}
			g.total *= 0.9
		}
	}
	g.last, g.started = now, true
}

// shareWithin returns the share of requests that arrive within the given time after
// another one.
func (g *gaps) shareWithin(nanos, unit float64) float64 {
	if g.total < minGaps || unit <= 0 {
		return 0
	}
	n, units := 0.0, nanos/unit
	for k := 0; k < bins && edges[k] < units; k++ {
		n += g.count[k] * min(1, (units-edges[k])/(edges[k+1]-edges[k]))
	}
	return n / g.total
}

// bestWait returns how long to wait for the next request of a burst, in nanoseconds, or 0
// if waiting does not pay. gain is the time saved if the request arrives, waiting the
// number of requests that wait for it, rate the rate of all requests, and longest the
// limit of the wait.
func (g *gaps) bestWait(now batching.Time, unit, rate, gain, waiting, longest float64) float64 {
	if g.total < minGaps || unit <= 0 {
		return 0
	}
	since := float64(now-g.last) / unit
	first := binOf(since)
	if first >= bins {
		return 0
	}
	left := g.total // gaps longer than the current one so far
	for k := range first {
		left -= g.count[k]
	}
	within := (edges[first+1] - since) / (edges[first+1] - edges[first])
	left -= g.count[first] * (1 - within)
	if left < 5 {
		return 0
	}
	var seen, waited, at, best, bestWait float64
	missing := 1.0 // probability that it has not come
	for k := first; k < bins; k++ {
		n := g.count[k]
		if k == first {
			n *= within
		}
		seen += n
		w := (edges[k+1] - since) * unit
		if w > longest {
			break
		}
		p := seen / left
		waited += (w - at) * (missing + 1 - p) / 2
		at, missing = w, 1-p
		chance := rate * w / (1 + rate*w/2) // approximates 1-exp(-rate*w) from above
		if value := p*gain - waiting*waited; value > best && p >= minBurstFactor*min(chance, 1) {
			best, bestWait = value, w
		}
	}
	return bestWait
}
