package automatic

import (
	"math"

	"github.com/shoal-serving/shoal/internal/batching"
)

const (
	maxCohorts    = 8     // batches whose clients may still come back
	returnsKeep   = 0.985 // of what was counted, with each batch
	learnEvery    = 8     // batches between two looks at the counts
	minLoopShare  = 0.8   // share of clients that come back, from which on the traffic is a closed loop
	keepLoopShare = 0.7   // and this keeps it one: the share is known to a tenth
	minPeakFactor = 1.5   // times the usual rate; less is not a return
	unrelatedBin  = 19    // the bin from which on arrivals have nothing to do with the answer: one row's time
)

// returns are what comes after an answer: in a closed loop each client that was
// answered sends its next request soon. Arrivals are counted by the time since each
// of the last batches ended. Where they come much faster than they usually do,
// they are returns, until all that were answered are back.
type returns struct {
	arrivals    [bins]float64
	time        [bins]float64 // that was spent in the bin
	released    [bins]float64 // requests that were answered, of batches that the bin was reached after
	returnShare [bins]float64 // returns per released request
	tail        [bins + 1]float64
	share       float64 // of released requests that come back: the sum of back
	closedLoop  bool    // the traffic is mostly clients that wait for their answers

	ended   int // batches
	cohorts [maxCohorts]cohort
}

// A cohort is the requests that one batch has answered.
type cohort struct {
	ended    batching.Time
	released float64 // 0 if there was no such batch yet
	returned float64 // arrivals that are taken for its
}

// arrived counts an arrival, and takes it for a return of the cohort from which
// one is most likely now.
func (r *returns) arrived(now batching.Time, unit float64) {
	var best *cohort
	most := 0.0
	for i := range r.cohorts {
		c := &r.cohorts[i]
		if c.released == 0 {
			continue
		}
		k := binOf(float64(now-c.ended) / unit)
		if k >= bins {
			continue
		}
		r.arrivals[k]++
		left := r.share*c.released - c.returned
		if left <= 0 {
			continue
		}
		if h := left * (r.returnShare[k] + 1e-4) / (edges[k+1] - edges[k]); h > most {
			best, most = c, h
		}
	}
	if best != nil {
		best.returned++
	}
}

// batchEnded takes in that a batch has answered so many requests.
func (r *returns) batchEnded(now batching.Time, requests int, unit float64) {
	if unit == 0 {
		return
	}
	c := &r.cohorts[r.ended%maxCohorts]
	if c.released > 0 {
		r.addTime(float64(now-c.ended)/unit, c.released)
	}
	*c = cohort{ended: now, released: float64(requests)}
	r.ended++
	if r.ended > maxCohorts && (r.ended < 4*learnEvery || r.ended%learnEvery == 0) {
		r.learn()
	}
}

// spend adds the time since a batch ended to the bins that it went through.
func (r *returns) addTime(units, released float64) {
	for k := 0; k < bins && edges[k] < units; k++ {
		width := edges[k+1] - edges[k]
		part := min(1, (units-edges[k])/width)
		r.time[k] += part * width
		r.released[k] += part * released
	}
}

func (r *returns) learn() {
	if r.ended%learnEvery == 0 {
		const keep = 0.886 // returnsKeep, for returnsEach batches at once
		for k := range bins {
			r.arrivals[k] *= keep
			r.time[k] *= keep
			r.released[k] *= keep
		}
	}
	usual := r.baseRate()
	// Requests that follow no answer come as often at one time after it as at any
	// other: no more of them than where the fewest come, but for chance.
	other := usual
	for k := range unrelatedBin {
		if n := r.arrivals[k]; r.time[k] > 0 {
			other = min(other, (n+math.Sqrt(n)+1)/r.time[k])
		}
	}
	r.share = 0
	for k := range bins {
		r.returnShare[k] = 0
		more := r.arrivals[k] - other*r.time[k]
		// What is next to a peak belongs to it. When nearly all are back, another
		// peak is the returns of another batch.
		if r.released[k] > 1 && more > 0 && r.nearPeak(k, usual) && (r.share < 0.9 || r.returnShare[k-1] > 0) {
			r.returnShare[k] = min(1-r.share, more/r.released[k])
			r.share += r.returnShare[k]
		}
	}
	for k := bins - 1; k >= 0; k-- {
		r.tail[k] = r.tail[k+1] + r.returnShare[k]
	}
	// Those that come back later than a batch takes are nobody to wait for, and may as
	// well be others.
	soon := r.quantile(0.9) < 1.25*unitsPerRow
	r.closedLoop = soon && (r.share > minLoopShare || r.closedLoop && r.share > keepLoopShare)
}

// usual returns arrivals per unit of time so long after an answer that they have
// nothing to do with it.
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

// nearPeak reports whether a bin or one next to it stands out.
func (r *returns) nearPeak(k int, rate float64) bool {
	return r.standsOut(k, rate) || k > 0 && r.standsOut(k-1, rate) || k+1 < bins && r.standsOut(k+1, rate)
}

// standsOut reports whether more came in a bin than the rate and its noise
// explain.
func (r *returns) standsOut(k int, rate float64) bool {
	expected := rate * r.time[k]
	more := r.arrivals[k] - minPeakFactor*expected
	return more > 0 && more*more > 4*(expected+0.25)
}

// after returns the share of released requests that come back later than the
// given time.
func (r *returns) shareAfter(units float64) float64 {
	k := binOf(units)
	if k >= bins {
		return 0
	}
	part := (edges[k+1] - units) / (edges[k+1] - edges[k])
	return r.tail[k+1] + r.returnShare[k]*part
}

// within returns by when the given part of those that come back is back, in units.
func (r *returns) quantile(part float64) float64 {
	later := (1 - min(part, 0.95)) * r.share
	for k := range bins {
		if r.tail[k+1] <= later {
			if r.returnShare[k] == 0 {
				return edges[k]
			}
			return edges[k+1] - (edges[k+1]-edges[k])*(later-r.tail[k+1])/r.returnShare[k]
		}
	}
	return edges[bins]
}

// expected returns how many requests will still come back.
func (r *returns) await(now batching.Time, unit float64, out *awaited) {
	out.n, out.requests = 0, 0
	for i := range r.cohorts {
		c := &r.cohorts[i]
		left := r.share*c.released - c.returned
		if left < 0.3 {
			continue
		}
		since := float64(now-c.ended) / unit
		tail := r.shareAfter(since)
		if tail < 0.01*r.share {
			continue
		}
		out.cohorts[out.n] = awaitedCohort{since, left, tail}
		out.n++
		out.requests += left
	}
}

// awaited are the requests that will still come back.
type awaited struct {
	cohorts  [maxCohorts]awaitedCohort
	n        int
	requests float64 // of all parts
}

type awaitedCohort struct{ since, left, tail float64 }

// by returns the share of them that is back after so many more units.
func (a *awaited) shareWithin(r *returns, units float64) float64 {
	back := 0.0
	for _, p := range a.cohorts[:a.n] {
		back += p.left * (1 - r.shareAfter(p.since+units)/p.tail)
	}
	return back / a.requests
}

// atLeast returns the chance that k or more of n happen, each with the chance f.
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
		// Close to the normal distribution, and that to the logistic one.
		z := (float64(n)*f - float64(k) + 0.5) / math.Sqrt(float64(n)*f*(1-f))
		return 1 / (1 + math.Exp(-1.7*z))
	}
	// The sum of the chances of fewer than k.
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
