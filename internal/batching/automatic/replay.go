package automatic

import (
	"math"

	"github.com/shoal-serving/shoal/internal/batching"
)

// A replay compares what happens with what greedy would have done, starting at the moment
// at which they differ. Times are nanoseconds since then.
type replay struct {
	rule       rule // none if no replay is in progress
	from       batching.Time
	remaining  int // batches until the replay ends
	greedyRows int // maximum batch size of greedy, in rows

	lastRows int     // rows of the last actual batch
	begun    int     // requests of the actual batches
	actual   float64 // sum of the completion times of these requests
	done     float64 // completion time of the last of them

	greedy   float64                   // sum of the completion times of the requests that greedy has begun
	running  [maxParallel]virtualBatch // current batches of greedy
	requests int                       // requests that wait with greedy
	rows     int                       // rows of these requests
	ready    float64                   // when the first of these requests arrived
}

// A virtualBatch is a batch of greedy. Its instance is free after until.
type virtualBatch struct {
	until    float64
	requests int
}

// startReplay begins a replay unless one is in progress. Greedy would now run up to size
// rows of the waiting requests.
func (p *Policy) startReplay(r rule, now batching.Time, size int) {
	p.ledger.accounts[r].uses++
	rp := &p.ledger.replay
	if rp.rule != none || p.shapes.mixed() {
		return
	}
	*rp = replay{rule: r, from: now, remaining: 1 + replayBatches, greedyRows: size, requests: p.waiting, rows: p.waitingRows}
	if r == gather {
		rp.remaining = 1
	}
	n := 0
	for i := range p.runs {
		if b := &p.runs[i]; b.busy && n < maxParallel {
			rp.running[n] = virtualBatch{max(0, float64(b.began-now)+p.contention.slowdown(p.running)*b.costs.curve.expected(b.rows)), b.requests}
			n++
		}
	}
	p.advanceReplay(now)
}

// advanceReplay runs greedy up to now, and settles the replay when it is complete.
func (p *Policy) advanceReplay(now batching.Time) {
	rp := &p.ledger.replay
	if rp.rule == none {
		return
	}
	at := float64(now - rp.from)
	instances := rp.running[:p.estimatedParallel(rp.rows)]
	for rp.requests > 0 {
		first := 0
		for i := range instances {
			if instances[i].until < instances[first].until {
				first = i
			}
		}
		begin := max(instances[first].until, rp.ready)
		if begin > at {
			break
		}
		p.runGreedy(instances, first, begin)
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

// runGreedy begins a batch of greedy.
func (p *Policy) runGreedy(instances []virtualBatch, instance int, begin float64) {
	rp := &p.ledger.replay
	requests, rows := rp.requests, rp.rows
	if rows > rp.greedyRows {
		requests = max(1, rp.requests*rp.greedyRows/rp.rows)
		rows = max(1, rp.rows*requests/rp.requests)
	}
	rp.requests -= requests
	rp.rows -= rows
	beside := 0
	for i := range instances {
		if instances[i].until > begin {
			beside++
		}
	}
	takes := p.contention.slowdown(beside+1) * p.curve.expected(rows)
	extraSlowdown := p.contention.slowdown(beside+1)/p.contention.slowdown(beside) - 1
	for i := range instances {
		if left := instances[i].until - begin; left > 0 && extraSlowdown > 0 {
			delay := extraSlowdown * min(left, takes)
			instances[i].until += delay
			rp.greedy += delay * float64(instances[i].requests)
		}
	}
	instances[instance] = virtualBatch{begin + takes, requests}
	rp.greedy += (begin + takes) * float64(requests)
}

// replayArrived adds an arriving request to greedy's queue.
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

// replayRemoved removes a request from greedy's queue that left the queue without
// running. If greedy has run it already, the two sides are not comparable any more, and
// the replay is dropped.
func (p *Policy) replayRemoved(rows int) {
	rp := &p.ledger.replay
	if rp.requests > 0 {
		rp.requests--
		rp.rows = max(rp.requests, rp.rows-rows)
		return
	}
	rp.rule = none
}

// replayBegan records an actual batch that begins, before it is counted as running.
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
	extraSlowdown := p.contention.slowdown(p.running+1)/p.contention.slowdown(p.running) - 1
	for i := range p.runs {
		if b := &p.runs[i]; b.busy && extraSlowdown > 0 {
			left := float64(b.began-now) + p.contention.slowdown(p.running)*b.costs.curve.expected(b.rows)
			rp.actual += extraSlowdown * max(0, min(left, takes)) * float64(b.requests)
		}
	}
	rp.actual += (begin + takes) * float64(requests)
	rp.done = max(rp.done, begin+takes)
	rp.lastRows = rows
	rp.begun += requests
	rp.remaining--
}

// meanCompletion returns the mean time until the given rows are answered in batches of
// one size, counted from when the first instance is free.
func (p *Policy) meanCompletion(rows, size int) float64 {
	size = max(1, min(size, rows))
	k := p.parallel(rows)
	return (max(1, float64(rows)/float64(size*k)) + 1) / 2 * p.contention.slowdown(k) * p.curve.expected(size)
}

// firstFree returns when the first instance is free, in the replay's time.
func (p *Policy) firstFree(at float64) float64 {
	if p.running < p.parallel(p.waitingRows) {
		return at
	}
	first := math.Inf(1)
	for i := range p.runs {
		if b := &p.runs[i]; b.busy {
			first = min(first, float64(b.began-p.ledger.replay.from)+p.contention.slowdown(p.running)*b.costs.curve.expected(b.rows))
		}
	}
	return max(at, first)
}

// settleReplay adds the difference to the rule's account. It assumes that requests that
// still wait on either side run next.
//
// In a closed loop, a client that is answered sooner returns sooner and then waits for
// the others, so only the end of the round counts.
func (p *Policy) settleReplay(at float64) {
	rp := &p.ledger.replay
	if p.waiting > 0 {
		rp.actual += float64(p.waiting) * (p.firstFree(at) + p.meanCompletion(p.waitingRows, rp.lastRows))
	}
	first, last := rp.running[0].until, 0.0
	for _, v := range rp.running[:p.estimatedParallel(rp.rows)] {
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
