package automatic

import "github.com/shoal-serving/shoal/internal/batching"

// A cycle is the best way to serve a closed loop: batches of a fixed number of rows on a
// fixed number of instances. In a closed loop every client waits for an answer before it
// sends its next request, so the best throughput also gives the lowest latency.
type cycle struct {
	clients  float64 // average number of concurrent requests
	rows     int     // average size of the largest batches; 0 if there is no cycle
	least    int     // batches of at least this size are not held: not all have the same number of clients
	requests int     // number of requests that have least rows on average
	limit    int     // maximum size, if all requests of a batch are large ones
	parallel int
}

const (
	minSwitchGain = 1.02 // minimum factor in throughput to change the cycle, or to run one more batch under overload
	minSplitGain  = 1.05 // minimum factor in throughput to split clients into more batches than run in parallel, and hold them
)

// clientCount returns the number of clients, rounded: each round would wait in vain for a
// fraction of a client.
func (c *cycle) clientCount() int { return max(1, int(c.clients+0.5)) }

// updateCycle updates the estimate of concurrent requests at the end of a batch. It
// counts requests that wait, run, or are expected to return soon.
func (p *Policy) updateCycle(now batching.Time) {
	var back awaited
	p.returns.fillAwaited(now, p.unit, shapeShare{share: 1}, &back)
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

// planCycle chooses the cycle with the best throughput: all clients in one batch, in as
// many batches as run in parallel, or in more, so that some clients think while others
// are served.
func (p *Policy) planCycle() {
	clients := p.cycle.clientCount()
	room, peak := p.rate.fill(p.curve.max()), p.rate.fill(p.sizes.peak)
	bestLeast, bestRows, bestParallel, best := 0.0, 0.0, 0, 0.0
	try := func(least, rows float64, parallel, parts int) {
		if max(least, rows) > 1.02*room || rows > float64(p.sizes.efficient+p.sizes.efficient/3)+0.5 && rows != peak {
			return // they do not fit, as far as averages say that, or larger batches gain nothing
		}
		x := p.throughput(least, rows, parallel)
		if rows > float64(p.sizes.efficient) {
			x *= efficientShare // more rows must raise the throughput noticeably
		}
		if rounded(rows) == p.cycle.rows && parallel == p.cycle.parallel {
			x *= minSwitchGain
		}
		need := minSwitchGain
		switch {
		case parts > parallel:
			need = minSplitGain
		case parallel > 1 && parallel <= p.contention.useful:
			need = 1 // with more instances fewer requests are held
		}
		if x > need*best {
			best, bestLeast, bestRows, bestParallel = x, least, rows, parallel
		}
	}
	for parallel := 1; parallel <= max(p.contention.useful, p.contention.backlog); parallel++ {
		for parts := parallel; parts <= 3*parallel+1; parts++ {
			requests := (clients + parts - 1) / parts
			if parts == parallel+1 && parallel > 1 && clients >= parts {
				// One more than run in parallel: those that return meanwhile are in the next batch,
				// and no batch is held for them.
				try(p.rate.rows*float64(clients/parts), min(room, p.rate.rows*float64(requests)), parallel, parallel)
				continue
			}
			if requests*(parts-1) >= clients && parts > 1 {
				continue // fewer parts hold all clients
			}
			least := requests
			if parts > parallel {
				least = clients / parts // the other clients are in the batch after it
			}
			try(p.rate.rows*float64(least), p.rate.rows*float64(requests), parallel, parts)
		}
		if p.rate.rows*float64(clients) > float64(parallel*p.sizes.efficient) {
			for _, rows := range [...]float64{p.rate.fill(p.sizes.efficient), peak} {
				try(rows, rows, parallel, parallel)
			}
		}
	}
	if bestRows > 0 {
		p.cycle.least, p.cycle.rows, p.cycle.parallel = rounded(bestLeast), rounded(bestRows), bestParallel
		p.cycle.requests = rounded(bestLeast / p.rate.rows)
		p.cycle.limit = int(bestRows*p.rate.largest/p.rate.rows + 0.5)
		if bestRows+p.rate.rows > room {
			p.cycle.limit = p.curve.max() // no further request fits on average, but small ones do
		}
	}
}

func rounded(rows float64) int { return max(1, int(rows+0.5)) }

// throughput returns the rows per nanosecond of a closed loop with batches of the given
// sizes, of which the given number runs in parallel.
func (p *Policy) throughput(least, rows float64, parallel int) float64 {
	takes := p.contention.slowdown(parallel) * (p.curve.between(least) + p.curve.between(rows)) / 2
	size, all := (least+rows)/2, float64(p.cycle.clientCount())*p.rate.rows
	// The clients that are not running have returned by the time a batch ends, or return
	// first; the batch has to wait for the rest.
	missing := max(0, min(1, (size-(all-float64(parallel)*size))/size))
	wait := 0.0
	if missing > 0 {
		requests := size / p.rate.rows
		wait = p.returns.quantile(missing*requests/(requests+1)) * p.unit // of the last of them, on average
	}
	n := min(float64(parallel), all/size)
	return min(n*size/(takes+wait), all/(takes+p.returns.quantile(0.5)*p.unit))
}
