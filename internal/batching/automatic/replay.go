package automatic

import (
	"math"

	"github.com/shoal-serving/shoal/internal/batching"
)

// A replay compares what happens with what greedy would have done, from the moment
// on at which they part. Times are nanoseconds since then.
type replay struct {
	rule       rule // none if there is no replay
	from       batching.Time
	remaining  int // batches that are still taken in
	greedyRows int // rows that greedy fills a batch up to

	lastRows int     // rows of the last batch that began
	begun    int     // requests that have begun
	actual   float64 // when the requests are answered that have begun, summed up
	done     float64 // when the last of them is

	greedy   float64                   // when the requests are answered that greedy has begun, summed up
	running  [maxParallel]virtualBatch // the batches that greedy runs
	requests int                       // that wait for greedy
	rows     int                       // that they have
	ready    float64                   // when the first of them came
}

// A virtual batch is one that greedy would run. Its instance is free when it is
// over.
type virtualBatch struct {
	until    float64
	requests int
}

// start begins a replay, if none is under way. Greedy would now run up to size
// rows of what waits.
func (p *Policy) startReplay(r rule, now batching.Time, size int) {
	p.ledger.accounts[r].uses++
	rp := &p.ledger.replay
	if rp.rule != none {
		return
	}
	*rp = replay{rule: r, from: now, remaining: 1 + replayBatches, greedyRows: size, requests: p.waiting, rows: p.rows}
	if r == gather {
		rp.remaining = 1
	}
	n := 0
	for i := range p.runs {
		if b := &p.runs[i]; b.busy && n < maxParallel {
			rp.running[n] = virtualBatch{max(0, float64(b.began-now)+p.contention.slowdown(p.running)*p.curve.expected(b.rows)), b.requests}
			n++
		}
	}
	p.advanceReplay(now)
}

// replayTo lets greedy run what it would have run by now, and says who was better
// when it is time.
func (p *Policy) advanceReplay(now batching.Time) {
	rp := &p.ledger.replay
	if rp.rule == none {
		return
	}
	at := float64(now - rp.from)
	places := rp.running[:p.parallel(rp.rows)]
	for rp.requests > 0 {
		first := 0
		for i := range places {
			if places[i].until < places[first].until {
				first = i
			}
		}
		begin := max(places[first].until, rp.ready)
		if begin > at {
			break
		}
		p.runGreedy(places, first, begin)
	}
	switch {
	case rp.remaining == 0:
		p.settleReplay(at)
	case p.waiting == 0 && rp.done <= at && rp.requests == 0 && rp.idle(at):
		p.settleReplay(at)
	}
}

func (rp *replay) idle(at float64) bool {
	for i := range rp.running {
		if rp.running[i].until > at {
			return false
		}
	}
	return true
}

// greedyRuns begins a batch of greedy's.
func (p *Policy) runGreedy(places []virtualBatch, place int, begin float64) {
	rp := &p.ledger.replay
	requests, rows := rp.requests, rp.rows
	if rows > rp.greedyRows {
		requests = max(1, rp.requests*rp.greedyRows/rp.rows)
		rows = max(1, rp.rows*requests/rp.requests)
	}
	rp.requests -= requests
	rp.rows -= rows
	beside := 0
	for i := range places {
		if places[i].until > begin {
			beside++
		}
	}
	takes := p.contention.slowdown(beside+1) * p.curve.expected(rows)
	more := p.contention.slowdown(beside+1)/p.contention.slowdown(beside) - 1
	for i := range places {
		if left := places[i].until - begin; left > 0 && more > 0 {
			late := more * min(left, takes)
			places[i].until += late
			rp.greedy += late * float64(places[i].requests)
		}
	}
	places[place] = virtualBatch{begin + takes, requests}
	rp.greedy += (begin + takes) * float64(requests)
}

// replayArrived gives a request to greedy as well.
func (p *Policy) replayArrived(now batching.Time, rows int) {
	rp := &p.ledger.replay
	if rp.rule == none {
		return
	}
	p.advanceReplay(now)
	if rp.requests == 0 {
		rp.ready = float64(now - rp.from)
	}
	rp.requests++
	rp.rows += rows
	p.advanceReplay(now)
}

// replayLeft takes one from greedy that did not wait to be run. If greedy has run
// it already, the comparison is off by one, and is dropped.
func (p *Policy) replayRemoved(rows int) {
	rp := &p.ledger.replay
	if rp.requests > 0 {
		rp.requests--
		rp.rows = max(rp.requests, rp.rows-rows)
		return
	}
	rp.rule = none
}

// replayBegan takes in a batch that really began, and which is not counted as
// running yet.
func (p *Policy) replayBegan(now batching.Time, requests, rows int) {
	rp := &p.ledger.replay
	if rp.rule == none {
		return
	}
	p.advanceReplay(now)
	if rp.rule == none {
		return
	}
	begin := float64(now - rp.from)
	takes := p.contention.slowdown(p.running+1) * p.curve.expected(rows)
	more := p.contention.slowdown(p.running+1)/p.contention.slowdown(p.running) - 1
	for i := range p.runs {
		if b := &p.runs[i]; b.busy && more > 0 {
			left := float64(b.began-now) + p.contention.slowdown(p.running)*p.curve.expected(b.rows)
			rp.actual += more * max(0, min(left, takes)) * float64(b.requests)
		}
	}
	rp.actual += (begin + takes) * float64(requests)
	rp.done = max(rp.done, begin+takes)
	rp.lastRows = rows
	rp.begun += requests
	rp.remaining--
}

// answered returns how long it takes on average until rows are answered, in batches
// of one size, from when the first instance is free.
func (p *Policy) meanCompletion(rows, size int) float64 {
	size = max(1, min(size, rows))
	k := p.parallel(rows)
	return (max(1, float64(rows)/float64(size*k)) + 1) / 2 * p.contention.slowdown(k) * p.curve.expected(size)
}

// free returns when the first instance is, in the replay's time.
func (p *Policy) firstFree(at float64) float64 {
	if p.running < p.parallel(p.rows) {
		return at
	}
	first := math.Inf(1)
	for i := range p.runs {
		if b := &p.runs[i]; b.busy {
			first = min(first, float64(b.began-p.ledger.replay.from)+p.contention.slowdown(p.running)*p.curve.expected(b.rows))
		}
	}
	return max(at, first)
}

// settle enters the difference. What still waits on either side is taken to run
// next.
//
// In a closed loop whoever is answered sooner comes back sooner and waits for the
// others: what counts is when the round is over.
func (p *Policy) settleReplay(at float64) {
	rp := &p.ledger.replay
	if p.waiting > 0 {
		rp.actual += float64(p.waiting) * (p.firstFree(at) + p.meanCompletion(p.rows, rp.lastRows))
	}
	first, last := rp.running[0].until, 0.0
	for _, v := range rp.running[:p.parallel(rp.rows)] {
		first, last = min(first, v.until), max(last, v.until)
	}
	if rp.requests > 0 {
		rp.greedy += float64(rp.requests) * (max(at, first) + p.meanCompletion(rp.rows, rp.greedyRows))
		last = max(last, max(at, first)+p.curve.expected(rp.rows))
	}
	if rp.rule == gather {
		rp.actual, rp.greedy = rp.done*float64(rp.begun), last*float64(rp.begun)
	}
	p.ledger.accounts[rp.rule].add(rp.actual-rp.greedy, p.ledger.current)
	rp.rule = none
}
