package batching

import (
	"math"
	"math/bits"
	"time"
)

// A Predictor predicts how long batches take.
type Predictor interface {
	// Predict returns the p95 of the duration of a batch of the given size while the given
	// number of batches run, including this one. Zero means unknown.
	Predict(size Size, running int) time.Duration
}

// A Size is the size of a batch.
type Size struct {
	Rows     int
	Elements int64 // of each row; see [Item]
}

// PredictorFor returns the policy if it is a [Predictor], and otherwise a new [Learner].
func PredictorFor(p Policy) Predictor {
	if predictor, ok := p.(Predictor); ok {
		return predictor
	}
	return &Learner{}
}

// A backlogger is a policy that knows how it works off a long queue: the batch size in
// rows of the given number of elements, and the number of parallel batches. Zeros mean the
// maximum.
type backlogger interface {
	Backlog(elements int64) (rows, running int)
}

// A learner is a predictor to which the core reports how long each batch took, and the
// average number of batches that ran meanwhile, rounded.
type learner interface {
	Record(rows, running int, took time.Duration)
}

var _ learner = (*Learner)(nil)

// Tolerances of predictions. A divisor n stands for a share of 1/n.
const (
	// Share of the objective that is reserved for what the core does not see: the transport
	// of the request and of its answer.
	overheadDivisor = 20
	// Maximum share of the objective that the known transport overhead takes in addition: a
	// client whose overhead exceeds its objective must not be refused forever.
	maxOverheadDivisor = 4
	// Share of the batch time that an accepted request must have to spare. The batch before
	// it may take longer than its p95, and the request would wait only to be refused later.
	marginDivisor = 25
	// Share of the batch time by which a hold ends before the request would be late,
	// because timers may be late.
	timerDivisor = 8
	// A model that has been idle for this many times the predicted latency accepts the
	// request in any case: the prediction may be out of date, and nothing new is learned
	// while all requests are refused.
	staleFactor = 10
)

func withMargin(d time.Duration) time.Duration { return d + d/marginDivisor }

// dueAt returns when a request that arrives now should be answered; Never if it has
// neither a deadline nor an objective, or nothing can be predicted.
func (c *Core) dueAt(it *Item) Time {
	switch {
	case c.cfg.Predictor == nil, it.Instance != 0: // there are no predictions for a single instance
		return Never
	case c.cfg.Objective == 0:
		return it.endsAt
	}
	return min(it.endsAt, c.now+c.cfg.Objective-c.cfg.Objective/overheadDivisor-min(it.TransportDelay, c.cfg.Objective/maxOverheadDivisor))
}

// giveUpAt returns when it is too late to answer a request. That is later than its due
// time at arrival, because refusing it now would waste the time that it has waited.
func (c *Core) giveUpAt(it *Item) Time {
	if it.due == Never {
		return Never
	}
	return min(it.endsAt, it.due+c.cfg.Objective/(2*overheadDivisor))
}

// tooLate reports whether a request that arrives now would be answered too late, and by
// how much.
func (c *Core) tooLate(it *Item) (by time.Duration, late bool) {
	if it.due == Never {
		return 0, false
	}
	_, end, known := c.predict(it)
	if !known || end <= it.due {
		return 0, false
	}
	if c.waiting == 0 && c.running == 0 && c.now-c.lastEnded >= staleFactor*(end-c.now) {
		it.due = Never
		return 0, false
	}
	return end - it.due, true
}

// queueTime returns how long it takes until all requests that wait now have begun to run;
// 0 if it is unknown.
func (c *Core) queueTime(it *Item) time.Duration {
	if c.cfg.Predictor == nil {
		return 0
	}
	start, _, _ := c.predict(it)
	return start - c.now
}

// predict returns when a request that arrives now would begin to run, and when it would
// be answered. It assumes that all requests ahead of it have the average number of rows. If
// known is false, the result omits the unknown part.
func (c *Core) predict(it *Item) (start, end Time, known bool) {
	maxRows, parallel := c.backlog(it.Elements)
	if parallel == 0 {
		return c.now, c.now, false
	}
	items, rows, overtakes := 1, it.Rows, false
	for level := range it.level + 1 {
		if q := &c.tenants[level]; level == it.level && q.compete(c.tenantOf(it)) {
			n, r := c.startBefore(level, q.start(c.tenantOf(it)))
			items, rows, overtakes = items+n, rows+r, n < c.perLevel[level]
			continue
		}
		items += c.perLevel[level]
		rows += c.rowsPerLevel[level]
	}
	perBatch := 1
	if c.combines {
		perBatch = max(1, maxRows*items/rows)
	}
	start, known = c.firstFree(parallel)
	parallelWith := c.running + 1 // parallel batches while it runs
	ownRows := it.Rows
	ahead := c.ahead(it, items-1, perBatch, max(1, perBatch*rows/items), parallel, overtakes)
	if ahead.batches > 0 || c.parked+c.awake == 0 || c.atLimit(parallel) {
		parallelWith = parallel
	}
	if ahead.batches > 0 {
		known = known && ahead.known
		start += ahead.take / time.Duration(parallel)
	}
	if c.combines {
		ownRows = max(ownRows, (ahead.joined+1)*rows/items) + c.arrivalRate.expect(c.now, start-c.now)/ahead.lanes
		ownRows = max(it.Rows, min(ownRows, maxRows))
	}
	takes := c.cfg.Predictor.Predict(Size{ownRows, it.Elements}, parallelWith)
	return start, start + withMargin(takes), known && takes > 0
}

// queueAhead is what runs before a request that arrives now.
type queueAhead struct {
	batches int           // that run before its own
	take    time.Duration // sum of the predicted durations of these batches
	known   bool          // all of them could be predicted
	joined  int           // waiting requests that run in its own batch
	lanes   int           // number of shapes that wait, including its own
}

// ahead returns what runs before it, if the given number of requests are ahead of it, batches
// have up to perBatch requests, and that many have the given number of rows. If it overtakes
// requests of other tenants, which lanes the requests ahead are in is not counted.
func (c *Core) ahead(it *Item, requests, perBatch, rows, parallel int, overtakes bool) queueAhead {
	a := queueAhead{joined: requests % perBatch, lanes: 1, known: true}
	if !c.cfg.OvertakeOtherShapes || !c.combines || overtakes {
		a.add(requests/perBatch, c.cfg.Predictor.Predict(Size{rows, it.Elements}, parallel))
		return a
	}
	own := 0 // requests of its lane
	for _, l := range c.lanes {
		switch {
		case l.key == laneKey{it.Shape, it.Instance}:
			own += l.items
		case l.items > 0 && l.key.instance == it.Instance && c.padsWith(it, l.first()):
			own += l.items
		case l.items > 0:
			n := (l.items + perBatch - 1) / perBatch
			a.add(n, c.cfg.Predictor.Predict(Size{max(1, l.rows/n), l.first().Elements}, parallel))
			a.lanes++
		}
	}
	if a.lanes == 1 {
		own = requests
	}
	a.joined = min(requests, own%perBatch)
	a.add(own/perBatch, c.cfg.Predictor.Predict(Size{rows, it.Elements}, parallel))
	if a.batches > requests {
		// Lower priorities are in the lanes, too, but there are no more batches than requests.
		a.take = a.take / time.Duration(a.batches) * time.Duration(requests)
		a.batches = requests
	}
	return a
}

// add adds n batches of the given duration; 0 means that it is unknown.
func (a *queueAhead) add(n int, takes time.Duration) {
	a.batches += n
	a.take += time.Duration(n) * takes
	a.known = a.known && (n == 0 || takes > 0)
}

// atLimit reports whether the policy leaves instances idle because the given number of parallel
// batches run, which is all that it uses.
func (c *Core) atLimit(parallel int) bool { return parallel < c.serving && c.running >= parallel }

// firstFree returns when the first instance is ready for its next batch, if the policy uses the
// given number of them.
func (c *Core) firstFree(parallel int) (at Time, known bool) {
	idle := c.parked+c.awake > 0
	if idle && !c.atLimit(parallel) {
		return c.now, true
	}
	at, known = Never, false
	for _, in := range c.instances {
		if in.state != running || in.leaving && !idle {
			continue
		}
		takes := c.cfg.Predictor.Predict(Size{in.rows, in.elements}, c.running)
		at, known = min(at, max(c.now, in.began+takes)), takes > 0
		if !known {
			break
		}
	}
	if !known {
		return c.now, false
	}
	return at, true
}

// backlog returns the batch size in rows of the given number of elements while the queue is
// long, and the number of parallel batches.
func (c *Core) backlog(elements int64) (rows, parallel int) {
	rows, parallel = c.cfg.MaxRows, c.serving
	if p, ok := c.policy.(backlogger); ok {
		r, s := p.Backlog(elements)
		if r > 0 {
			rows = r
		}
		if s > 0 {
			parallel = min(parallel, s)
		}
	}
	if c.cfg.Objective > 0 {
		rows = min(rows, c.maxRowsInTime(Size{rows, elements}, parallel))
	}
	return rows, parallel
}

// maxRowsInTime returns the largest batch size in rows, up to the given one, with which a request that
// just misses a batch still meets the objective in the next one: it waits until an
// instance is free, which takes longer the fewer there are, and then for its own batch.
//
// The limit does not depend on the requests in a batch. Making a batch smaller because
// its first request has little time left would be the worst choice: smaller batches have
// a lower throughput, so the next batch would have even less time.
func (c *Core) maxRowsInTime(size Size, parallel int) int {
	if !c.combines || parallel == 0 {
		return size.Rows
	}
	if c.rowLimit.size == size && c.rowLimit.parallel == parallel && c.batches < c.rowLimit.until {
		return c.rowLimit.limit
	}
	fits := func(n int) bool {
		takes := c.cfg.Predictor.Predict(Size{n, size.Elements}, parallel)
		return takes+takes/time.Duration(parallel) <= c.cfg.Objective
	}
	largest, tooLarge := 1, size.Rows+1 // a batch of one row is always allowed
	for tooLarge-largest > 1 {
		if n := (largest + tooLarge) / 2; fits(n) {
			largest = n
		} else {
			tooLarge = n
		}
	}
	c.rowLimit = rowLimitCache{size, parallel, largest, c.batches + 16}
	return largest
}

// A rowLimitCache is a result of maxRowsInTime, valid until the given number of batches
// have run.
type rowLimitCache struct {
	size            Size
	parallel, limit int
	until           uint64
}

// meetDeadlines adapts a policy's decision to deadlines and the objective: it limits the
// batch size, and ends a wait before a request would be late. It is called only if some
// waiting request is due at some time.
func (c *Core) meetDeadlines(line Line, d Decision) Decision {
	waits := d.Take == 0 && (d.Until != Never || d.Rule != 0) // not for a limit of parallel batches
	elements := line.First().Elements
	maxRows, _ := c.backlog(elements)
	if !waits && (c.cfg.Objective == 0 || !c.combines || d.Take <= 1) {
		return d
	}
	items, rows, due, full := 0, 0, Never, false
	for it := line.First(); it != nil; it = line.After(it) {
		if full = items > 0 && rows+it.Rows > maxRows; full || d.Take > 0 && items == d.Take {
			break
		}
		items++
		rows += it.Rows
		due = min(due, it.due)
	}
	switch {
	case d.Take > items:
		return Decision{Take: items, Reason: Full}
	case !waits:
		return d
	case full || rows >= maxRows:
		return Decision{Take: items, Reason: Full}
	case due == Never:
		return d
	}
	takes := c.cfg.Predictor.Predict(Size{min(rows+1, maxRows), elements}, c.running+1)
	latestStart := due - takes - takes/timerDivisor
	if latestStart <= c.now {
		return Decision{Take: items, Reason: Waited}
	}
	d.Until = min(d.Until, latestStart)
	return d
}

// canWaitForOther reports whether a request has the time to wait for a batch of another
// lane and for its own.
func (c *Core) canWaitForOther(it *Item) bool {
	if it.due == Never {
		return true
	}
	most, _ := c.backlog(it.Elements)
	takes := c.cfg.Predictor.Predict(Size{most, it.Elements}, c.running+1)
	return takes > 0 && c.now+2*withMargin(takes) < it.due
}

// firstLate returns the first request that the batch would answer too late, and by how
// much; nil if there is none.
func (c *Core) firstLate(line Line, take int) (late *Item, by time.Duration) {
	if c.withDeadline == 0 {
		return nil, 0
	}
	rows, n := 0, 0
	for it := line.First(); n < take; it = line.After(it) {
		rows += it.Rows
		n++
	}
	end := c.now + c.cfg.Predictor.Predict(Size{rows, line.First().Elements}, c.running+1)
	n = 0
	for it := line.First(); n < take; it = line.After(it) {
		if giveUp := c.giveUpAt(it); giveUp <= end { // exactly at its deadline is too late, too
			return it, end - giveUp
		}
		n++
	}
	return nil, 0
}

// addBatchTime adds the time since the last change for each running batch. It must be
// called before the number of running batches changes.
func (c *Core) addBatchTime() {
	c.batchTime += time.Duration(c.running) * (c.now - c.lastChange)
	c.lastChange = c.now
}

// learn reports the duration of a batch to the learner, unless the batch was stopped.
func (c *Core) learn(in *instance) {
	took := c.now - in.began
	if c.learner == nil || in.waitingClients == 0 || took <= 0 {
		return
	}
	c.learner.Record(in.rows, max(1, int((c.batchTime-in.batchTimeAtStart+took/2)/took)), took)
}

// recentArrivals measures the rate of rows over the last one to two windows.
type recentArrivals struct{ before, since window }

type window struct {
	from        Time
	items, rows int
}

const windowItems = 32

func (r *recentArrivals) note(now Time, rows int) {
	if r.since.items == windowItems {
		r.before, r.since = r.since, window{from: now}
	}
	r.since.items++
	r.since.rows += rows
}

// expect returns how many rows will arrive in the given time at the current rate; 0 until
// the first window is full.
func (r *recentArrivals) expect(now Time, in time.Duration) int {
	took := now - r.before.from
	if r.before.items == 0 || took <= 0 {
		return 0
	}
	high, low := bits.Mul64(uint64(r.before.rows+r.since.rows), uint64(in))
	if high >= uint64(took) {
		return math.MaxInt32 // more than any batch can have
	}
	rows, _ := bits.Div64(high, low, uint64(took))
	return int(rows)
}
