package batching

import (
	"math"
	"math/bits"
	"time"
)

// A Predictor says how long batches take.
type Predictor interface {
	// Predict returns how long a batch of so many rows takes while so many batches
	// run, itself among them: 95 of 100 no longer. Zero means that it is not known.
	Predict(rows, running int) time.Duration
}

// PredictorFor returns the policy, if it is a [Predictor], and otherwise one that
// learns from what runs.
func PredictorFor(p Policy) Predictor {
	if predictor, ok := p.(Predictor); ok {
		return predictor
	}
	return &Learner{}
}

// A backlogger is a policy that says what it makes of a long queue: how many rows
// go together, and how many batches run at once. Zeros mean as many as may.
type backlogger interface {
	Backlog() (rows, running int)
}

// A learner is a predictor that the core tells how long a batch took, and how many
// ran meanwhile, on average and rounded.
type learner interface {
	Ran(rows, running int, took time.Duration)
}

// What a prediction leaves room for.
const (
	// Of the objective, one part in so many is for what the core does not see: the
	// way of a request to it, and of the answer to the client.
	unseen = 20
	// What is known of that way is taken off as well, up to one part in so many: who
	// has an objective shorter than its way is not to be refused for good.
	longest = 4
	// Whoever is let in has one part in so many of its batch's time to spare. The
	// batch before may take longer than predicted, as one in twenty does, and it
	// would only wait to be turned away later.
	margin = 25
	// Timers may be late. Whoever is held for company is let go one part in so many
	// of its batch's time before it would be too late for it.
	timers = 8
	// What a predictor knows may be out of date, and nothing new is learnt while all
	// are turned away. So a model that has been idle for so many times as long as a
	// request would take lets it in, whatever is known.
	stale = 10
)

func withMargin(d time.Duration) time.Duration { return d + d/margin }

// dueAt returns by when a request that arrives now should be answered; Never if
// nothing is said about it, or if nothing can be predicted.
func (c *Core) dueAt(it *Item) Time {
	switch {
	case c.cfg.Predictor == nil, it.Instance != 0: // what a single instance does is not predicted
		return Never
	case c.cfg.Objective == 0:
		return it.ends
	}
	return min(it.ends, c.now+c.cfg.Objective-c.cfg.Objective/unseen-min(it.Way, c.cfg.Objective/longest))
}

// lostAt returns from when on it is of no use to answer a request that is due. That
// is later than it was promised when the request was let in: turned away now, it
// would have waited for nothing.
func (c *Core) lostAt(it *Item) Time {
	if it.due == Never {
		return Never
	}
	return min(it.ends, it.due+c.cfg.Objective/(2*unseen))
}

// tooLate reports whether a request that arrives now would be answered too late,
// and by how much.
func (c *Core) tooLate(it *Item) (by time.Duration, late bool) {
	if it.due == Never {
		return 0, false
	}
	_, end, known := c.predict(it)
	if !known || end <= it.due {
		return 0, false
	}
	if c.waiting == 0 && c.running == 0 && c.now-c.ended >= stale*(end-c.now) {
		it.due = Never
		return 0, false
	}
	return end - it.due, true
}

// untilRoom returns how long it takes until what waits now has run; 0 if that is
// not known.
func (c *Core) untilRoom(it *Item) time.Duration {
	if c.cfg.Predictor == nil {
		return 0
	}
	start, _, _ := c.predict(it)
	return start - c.now
}

// predict returns when a request that arrives now would begin to run, and when it
// would be answered. It takes those ahead of it for requests of its shape, each
// with as many rows as the average. What is not known is left out.
func (c *Core) predict(it *Item) (start, end Time, known bool) {
	most, side := c.backlog()
	if side == 0 {
		return c.now, c.now, false
	}
	items, rows := 1, it.Rows
	for level := range it.level + 1 {
		items += c.perLevel[level]
		rows += c.rowsPerLevel[level]
	}
	together := 1
	if c.combines {
		together = max(1, most*items/rows)
	}
	start, known = c.firstFree()
	at := c.running + 1 // that run beside it
	own := it.Rows
	full := (items - 1) / together // batches before its own
	if full > 0 || c.parked+c.awake == 0 {
		at = side
	}
	if full > 0 {
		takes := c.cfg.Predictor.Predict(together*rows/items, side)
		known = known && takes > 0
		start += time.Duration(full) * takes / time.Duration(side)
	}
	if c.combines {
		own = max(own, (items-full*together)*rows/items) + c.recently.expect(c.now, start-c.now)
		own = max(it.Rows, min(own, most))
	}
	takes := c.cfg.Predictor.Predict(own, at)
	return start, start + withMargin(takes), known && takes > 0
}

// firstFree returns when an instance is ready for its next batch.
func (c *Core) firstFree() (at Time, known bool) {
	if c.parked+c.awake > 0 {
		return c.now, true
	}
	at, known = Never, false
	for _, in := range c.instances {
		if in.state != running || in.leaving {
			continue
		}
		takes := c.cfg.Predictor.Predict(in.rows, c.running)
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

// backlog returns how many rows go together while the queue is long, and how many
// batches run at once.
func (c *Core) backlog() (rows, side int) {
	rows, side = c.cfg.MaxRows, c.serving
	if p, ok := c.policy.(backlogger); ok {
		r, s := p.Backlog()
		if r > 0 {
			rows = r
		}
		if s > 0 {
			side = min(side, s)
		}
	}
	if c.cfg.Objective > 0 {
		rows = min(rows, c.largest(rows, side))
	}
	return rows, side
}

// largest returns how many rows may go together, of so many, if a request that
// just misses a batch is still to be answered in time with the next: it waits for
// an instance to be free, which is the longer the fewer there are, and then for its
// own batch.
//
// This bounds batches whoever is in them. To make a batch smaller because its first
// request has little time left would be the worst that can be done: smaller batches
// make less of the device, so that the next has even less time left.
func (c *Core) largest(rows, side int) int {
	if !c.combines || side == 0 {
		return rows
	}
	if c.bounded.rows == rows && c.bounded.side == side && c.batches < c.bounded.until {
		return c.bounded.most
	}
	fits := func(n int) bool {
		takes := c.cfg.Predictor.Predict(n, side)
		return takes+takes/time.Duration(side) <= c.cfg.Objective
	}
	most, not := 1, rows+1 // the first always runs
	for not-most > 1 {
		if n := (most + not) / 2; fits(n) {
			most = n
		} else {
			not = n
		}
	}
	c.bounded = bounded{rows, side, most, c.batches + 16}
	return most
}

// bounded is what largest has found, until so many batches have run.
type bounded struct {
	rows, side, most int
	until            uint64
}

// inTime makes of a policy's decision one that keeps to what was promised: no batch
// is larger than may be, and no wait is so long that a request is answered too late
// for it. It is asked only where some request is due at some time.
func (c *Core) inTime(line Line, d Decision) Decision {
	waits := d.Take == 0 && d.Until != Never
	most, _ := c.backlog()
	if !waits && (c.cfg.Objective == 0 || !c.combines || d.Take <= 1) {
		return d
	}
	items, rows, due, full := 0, 0, Never, false
	for it := line.First(); it != nil; it = line.After(it) {
		if full = items > 0 && rows+it.Rows > most; full || d.Take > 0 && items == d.Take {
			break
		}
		items++
		rows += it.Rows
		due = min(due, it.due)
	}
	switch {
	case d.Take > items:
		return Decision{Take: items, Why: Full}
	case !waits:
		return d
	case full || rows >= most:
		return Decision{Take: items, Why: Full}
	case due == Never:
		return d
	}
	takes := c.cfg.Predictor.Predict(min(rows+1, most), c.running+1)
	last := due - takes - takes/timers
	if last <= c.now {
		return Decision{Take: items, Why: Waited}
	}
	d.Until = min(d.Until, last)
	return d
}

// hopeless returns the first of those whom a batch would answer too late, and by
// how much; nil if there is none.
func (c *Core) hopeless(line Line, take int) (late *Item, by time.Duration) {
	if c.dated == 0 {
		return nil, 0
	}
	rows, n := 0, 0
	for it := line.First(); n < take; it = line.After(it) {
		rows += it.Rows
		n++
	}
	end := c.now + c.cfg.Predictor.Predict(rows, c.running+1)
	n = 0
	for it := line.First(); n < take; it = line.After(it) {
		if lost := c.lostAt(it); lost <= end { // at its deadline is too late, too
			return it, end - lost
		}
		n++
	}
	return nil, 0
}

// passed counts the time for which batches ran, of each of them. It is called
// before their number changes.
func (c *Core) passed() {
	c.ran += time.Duration(c.running) * (c.now - c.changed)
	c.changed = c.now
}

// learn tells the predictor how long a batch took. One that was stopped tells
// nothing.
func (c *Core) learn(in *instance) {
	took := c.now - in.began
	if c.learner == nil || in.members == 0 || took <= 0 {
		return
	}
	c.learner.Ran(in.rows, max(1, int((c.ran-in.ran+took/2)/took)), took)
}

// recent is how many rows arrived lately.
type recent struct{ before, since window }

type window struct {
	from        Time
	items, rows int
}

const windowItems = 32

func (r *recent) note(now Time, rows int) {
	if r.since.items == windowItems {
		r.before, r.since = r.since, window{from: now}
	}
	r.since.items++
	r.since.rows += rows
}

// expect returns how many rows will arrive in so much time if it goes on so. That is
// none until enough have arrived to say.
func (r *recent) expect(now Time, in time.Duration) int {
	took := now - r.before.from
	if r.before.items == 0 || took <= 0 {
		return 0
	}
	high, low := bits.Mul64(uint64(r.before.rows+r.since.rows), uint64(in))
	if high >= uint64(took) {
		return math.MaxInt32 // more than any batch has
	}
	rows, _ := bits.Div64(high, low, uint64(took))
	return int(rows)
}
