package automatic

import "github.com/shoal-serving/shoal/internal/batching"

// A cycle is how a closed loop is served best: batches of so many rows, on so many
// instances at once. Everybody waits for somebody there, so the best throughput is
// also the shortest latency.
type cycle struct {
	clients  float64 // requests that are on their way at once, on average
	rows     int     // of a batch; 0 if there is no cycle
	parallel int
}

const (
	minSwitchGain = 1.02 // times the throughput makes another cycle worth a change, or one more batch at once
	minSplitGain  = 1.05 // times the throughput makes it worth to serve clients in more batches than can run at once
)

// whole returns how many clients there are. A part of one would be waited for in
// each round, and never come.
func (c *cycle) clientCount() int { return max(1, int(c.clients+0.5)) }

// observe takes in how many requests are on their way, at the end of a batch:
// waiting, running, or soon to come back.
func (p *Policy) updateCycle(now batching.Time) {
	var back awaited
	p.returns.await(now, p.unit, &back)
	n := float64(p.waiting) + back.requests/p.returns.share
	for i := range p.runs {
		if p.runs[i].busy {
			n += float64(p.runs[i].requests)
		}
	}
	if p.cycle.clients == 0 {
		p.cycle.clients = n
	}
	p.cycle.clients += (n - p.cycle.clients) / 8
	if p.ledger.batch%learnEvery == 0 || p.cycle.rows == 0 {
		p.planCycle()
	}
}

// plan chooses the cycle: all clients in one batch, or in as many as there are
// places, or in more, so that some think while others are served.
func (p *Policy) planCycle() {
	all := p.cycle.clientCount()
	bestRows, bestPlaces, best := 0, 0, 0.0
	try := func(rows, places, parts int) {
		if rows > p.curve.max() || rows > p.sizes.efficient+p.sizes.efficient/3 && rows != p.sizes.peak {
			return // larger than brings anything
		}
		x := p.throughput(rows, places)
		if rows > p.sizes.efficient {
			x *= efficientShare // more rows than that have to bring something
		}
		if rows == p.cycle.rows && places == p.cycle.parallel {
			x *= minSwitchGain
		}
		need := minSwitchGain
		if parts > places {
			need = minSplitGain
		}
		if x > need*best {
			best, bestRows, bestPlaces = x, rows, places
		}
	}
	for places := 1; places <= max(p.contention.useful, p.contention.backlog); places++ {
		for parts := places; parts <= 3*places+1; parts++ {
			requests := (all + parts - 1) / parts
			if requests*(parts-1) >= all && parts > 1 {
				continue // fewer parts would do
			}
			try(p.rowsIn(requests), places, parts)
		}
		if p.rowsIn(all) > places*p.sizes.efficient {
			try(p.sizes.efficient, places, places)
			try(p.sizes.peak, places, places)
		}
	}
	if bestRows > 0 {
		p.cycle.rows, p.cycle.parallel = bestRows, bestPlaces
	}
}

// rowsOf returns how many rows so many requests have.
func (p *Policy) rowsIn(requests int) int { return max(1, int(float64(requests)*p.rate.rows+0.5)) }

// throughput returns rows per nanosecond, if batches have so many rows and so many
// run at once.
func (p *Policy) throughput(rows, places int) float64 {
	takes := p.contention.slowdown(places) * p.curve.smooth(rows)
	size, all := float64(rows), float64(p.cycle.clientCount())*p.rate.rows
	// Those that do not run are back already when a batch ends, or come back first;
	// the rest of the next batch has to be waited for.
	missing := max(0, min(1, (size-(all-float64(places)*size))/size))
	wait := 0.0
	if missing > 0 {
		wait = p.returns.quantile(missing) * p.unit
	}
	n := min(float64(places), all/size)
	return min(n*size/(takes+wait), all/(takes+p.returns.quantile(0.5)*p.unit))
}
