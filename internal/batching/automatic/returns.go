package automatic

import (
	"math"

	"github.com/shoal-serving/shoal/internal/batching"
)

const (
	maxCohorts    = 8     // batches whose clients may still return
	learnEvery    = 8     // batches between two updates
	returnsDecay  = 0.886 // factor of the counts every learnEvery batches: 0.985 per batch
	minLoopShare  = 0.8   // share of returning clients at which the traffic becomes a closed loop
	keepLoopShare = 0.7   // share at which it stays one: the estimate is accurate to a tenth
	minPeakFactor = 1.5   // multiple of the base rate that makes a peak of returns
	unrelatedBin  = 19    // first bin whose arrivals are unrelated to the answer; it begins at the time of one row
)

// returns detects a closed loop, in which each client sends its next request soon after
// an answer. It counts arrivals by the time since each of the last batches ended.
// Arrivals at much more than the base rate are returns, until all answered clients have
// returned.
type returns struct {
	arrivals    [bins]float64
	time        [bins]float64     // time spent in the bin
	answered    [bins]float64     // requests answered by the batches that reached the bin
	returnShare [bins]float64     // returns per answered request
	shareFrom   [bins + 1]float64 // share of answered clients that return in this bin or later
	share       float64           // share of answered clients that return: the sum of returnShare
	keepsShape  float64           // share of clients that send the same shape each time; the others choose by chance
	closedLoop  bool              // most clients wait for an answer before they send the next request

	ended   int // number of ended batches
	cohorts [maxCohorts]cohort
}

// A cohort is the requests that one batch answered.
type cohort struct {
	ended    batching.Time
	shape    uint64  // of its requests
	answered float64 // 0 if there was no such batch yet
	returned float64 // arrivals that are attributed to it
}

// arrived counts an arrival, and attributes it to the cohort from which a return is most
// likely now.
func (r *returns) arrived(now batching.Time, unit float64, shape shapeShare) {
	var best *cohort
	likeliest := 0.0
	for i := range r.cohorts {
		c := &r.cohorts[i]
		if c.answered == 0 {
			continue
		}
		k := binOf(float64(now-c.ended) / unit)
		if k >= bins {
			continue
		}
		r.arrivals[k]++
		left := r.share*c.answered - c.returned
		if left <= 0 {
			continue
		}
		// The small constants keep the likelihood above 0 while little is known.
		if h := left * (r.returnShare[k] + 1e-4) / (edges[k+1] - edges[k]) * (r.shapeChance(c, shape) + 1e-3); h > likeliest {
			best, likeliest = c, h
		}
	}
	if best != nil {
		best.returned++
		r.learnShape(best.shape == shape.id, shape.share)
	}
}

// shapeChance returns the probability that a client of the cohort returns with a request of
// the given shape.
func (r *returns) shapeChance(c *cohort, shape shapeShare) float64 {
	switch {
	case shape.share == 1:
		return 1
	case c.shape == shape.id:
		return r.keepsShape + (1-r.keepsShape)*shape.share
	}
	return (1 - r.keepsShape) * shape.share
}

// learnShape records whether a returning client kept its shape. The given share of clients
// would have done so by chance.
func (r *returns) learnShape(kept bool, share float64) {
	if share > 0.9 {
		return // nearly all requests have this shape, so keeping it says nothing
	}
	seen := 0.0
	if kept {
		seen = 1
	}
	r.keepsShape += ((seen-share)/(1-share) - r.keepsShape) / shareWindow
	r.keepsShape = min(1, max(0, r.keepsShape))
}

// batchEnded records a batch that answered the given number of requests.
func (r *returns) batchEnded(now batching.Time, requests int, shape uint64, unit float64) {
	if unit == 0 {
		return
	}
	c := &r.cohorts[r.ended%maxCohorts]
	if c.answered > 0 {
		r.addTime(float64(now-c.ended)/unit, c.answered)
	}
	*c = cohort{ended: now, shape: shape, answered: float64(requests)}
	r.ended++
	if r.ended > maxCohorts && (r.ended < 4*learnEvery || r.ended%learnEvery == 0) {
		r.learn()
	}
}

// addTime adds the time since a batch ended to the bins that it covers.
func (r *returns) addTime(units, answered float64) {
	for k := 0; k < bins && edges[k] < units; k++ {
		width := edges[k+1] - edges[k]
		part := min(1, (units-edges[k])/width)
		r.time[k] += part * width
		r.answered[k] += part * answered
	}
}

// learn updates what is derived from the counts: which arrivals are returns, when they come,
// and whether the traffic is a closed loop.
func (r *returns) learn() {
	if r.ended%learnEvery == 0 {
		for k := range bins {
			r.arrivals[k] *= returnsDecay
			r.time[k] *= returnsDecay
			r.answered[k] *= returnsDecay
		}
	}
	baseRate := r.baseRate()
	// Arrivals that are not returns are spread evenly over the time after an answer, so
	// there are no more of them than in the bin with the fewest, apart from noise.
	unrelatedRate := baseRate
	for k := range unrelatedBin {
		if n := r.arrivals[k]; r.time[k] > 0 {
			unrelatedRate = min(unrelatedRate, (n+math.Sqrt(n)+1)/r.time[k])
		}
	}
	r.share = 0
	for k := range bins {
		r.returnShare[k] = 0
		excess := r.arrivals[k] - unrelatedRate*r.time[k]
		// The neighbors of a peak belong to it. When nearly all clients have returned,
		// another peak is the returns of another batch. The first bin has no bin before it,
		// but there share is 0.
		if r.answered[k] > 1 && excess > 0 && r.nearPeak(k, baseRate) && (r.share < 0.9 || r.returnShare[k-1] > 0) {
			r.returnShare[k] = min(1-r.share, excess/r.answered[k])
			r.share += r.returnShare[k]
		}
	}
	for k := bins - 1; k >= 0; k-- {
		r.shareFrom[k] = r.shareFrom[k+1] + r.returnShare[k]
	}
	// Clients that return later than a batch of one row takes are not worth waiting for, and
	// may be other clients.
	soon := r.quantile(0.9) < 1.25*unitsPerRow
	r.closedLoop = soon && (r.share > minLoopShare || r.closedLoop && r.share > keepLoopShare)
}

// baseRate returns the arrivals per unit of time long after an answer, where they are
// unrelated to it.
func (r *returns) baseRate() float64 {
	count, time := 0.0, 0.0
	for k := unrelatedBin; k < bins; k++ {
		count += r.arrivals[k]
		time += r.time[k]
	}
	if time == 0 {
		return 0
	}
	return count / time
}

// nearPeak reports whether a bin or one of its neighbors stands out.
func (r *returns) nearPeak(k int, rate float64) bool {
	return r.standsOut(k, rate) || k > 0 && r.standsOut(k-1, rate) || k+1 < bins && r.standsOut(k+1, rate)
}

// standsOut reports whether a bin has more arrivals than the rate and its noise explain.
func (r *returns) standsOut(k int, rate float64) bool {
	expected := rate * r.time[k]
	more := r.arrivals[k] - minPeakFactor*expected
	return more > 0 && more*more > 4*(expected+0.25)
}

// shareAfter returns the share of answered clients that return later than the given time.
func (r *returns) shareAfter(units float64) float64 {
	k := binOf(units)
	if k >= bins {
		return 0
	}
	part := (edges[k+1] - units) / (edges[k+1] - edges[k])
	return r.shareFrom[k+1] + r.returnShare[k]*part
}

// quantile returns the time, in units, after which the given part of returning clients
// has returned. Parts above 0.95 count as 0.95.
func (r *returns) quantile(part float64) float64 {
	later := (1 - min(part, 0.95)) * r.share
	for k := range bins {
		if r.shareFrom[k+1] <= later {
			if r.returnShare[k] == 0 {
				return edges[k]
			}
			return edges[k+1] - (edges[k+1]-edges[k])*(later-r.shareFrom[k+1])/r.returnShare[k]
		}
	}
	return edges[bins]
}

// fillAwaited fills in out with the clients that are expected to return after now. The
// caller owns out, so that nothing is allocated.
func (r *returns) fillAwaited(now batching.Time, unit float64, shape shapeShare, out *awaited) {
	out.n, out.requests = 0, 0
	for i := range r.cohorts {
		c := &r.cohorts[i]
		left := (r.share*c.answered - c.returned) * r.shapeChance(c, shape)
		if left < 0.3 {
			continue
		}
		since := float64(now-c.ended) / unit
		later := r.shareAfter(since)
		if later < 0.01*r.share {
			continue
		}
		out.cohorts[out.n] = awaitedCohort{since, left, later}
		out.n++
		out.requests += left
	}
}

// awaited are the clients that are still expected to return.
type awaited struct {
	cohorts  [maxCohorts]awaitedCohort
	n        int
	requests float64 // sum over all cohorts
}

type awaitedCohort struct {
	since float64 // units of time since its batch ended
	left  float64 // requests that are expected to return and have not
	later float64 // share of clients that return later than since
}

// shareWithin returns the share of the awaited clients that returns within the given units
// of time.
func (a *awaited) shareWithin(r *returns, units float64) float64 {
	back := 0.0
	for _, c := range a.cohorts[:a.n] {
		back += c.left * (1 - r.shareAfter(c.since+units)/c.later)
	}
	return back / a.requests
}

// atLeast returns the probability of at least k successes in n trials with probability f.
func atLeast(k, n int, f float64) float64 {
	switch {
	case f <= 0:
		return 0
	case f >= 1:
		return 1
	case k == n:
		p := 1.0
		for ; n > 0; n >>= 1 {
			if n&1 == 1 {
				p *= f
			}
			f *= f
		}
		return p
	case n > 40:
		// The normal distribution, approximated by the logistic one.
		z := (float64(n)*f - float64(k) + 0.5) / math.Sqrt(float64(n)*f*(1-f))
		return 1 / (1 + math.Exp(-1.7*z))
	}
	// One minus the probability of fewer than k.
	q, odds := 1.0, f/(1-f)
	for range n {
		q *= 1 - f
	}
	sum := 0.0
	for i := range k {
		sum += q
		q *= odds * float64(n-i) / float64(i+1)
	}
	return max(0, 1-sum)
}
