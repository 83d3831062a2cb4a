package batchingtest

import (
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
)

// This file restates the predictions of the core. How many rows will still join the batch
// of a request cannot be known, so the referee computes the earliest and the latest end
// of that batch, and accepts any decision in between.

// combines reports whether requests may share a batch.
func (r *Referee) combines() bool {
	_, alone := r.cfg.Policy.(batching.None)
	return r.cfg.Policy != nil && !alone
}

// parallel returns how many batches may run in parallel.
func (r *Referee) parallel() (n int) {
	for _, in := range r.instances {
		if in.serves() {
			n++
		}
	}
	if _, running := r.backlog(); running > 0 {
		n = min(n, running)
	}
	return n
}

// backlog asks a policy without a rule how it works off a long queue.
func (r *Referee) backlog() (rows, running int) {
	if p, ok := r.cfg.Policy.(interface{ Backlog() (rows, running int) }); ok && r.rule == nil {
		return p.Backlog()
	}
	return 0, 0
}

// backlogRows returns the batch size in rows while the queue is long.
func (r *Referee) backlogRows() int {
	most := r.cfg.MaxRows
	if p, ok := r.cfg.Policy.(batching.Triton); ok && len(p.Preferred) > 0 {
		most = p.Preferred[len(p.Preferred)-1]
	}
	if rows, _ := r.backlog(); rows > 0 {
		most = rows
	}
	side := time.Duration(r.parallel())
	if r.cfg.Objective == 0 || !r.combines() || side == 0 {
		return most
	}
	for n := most; n > 1; n-- {
		if takes := r.cfg.Predictor.Predict(n, int(side)); takes+takes/side <= r.cfg.Objective {
			return n
		}
	}
	return 1
}

// due returns when the arriving request q should be answered.
func (r *Referee) dueOf(q *request) batching.Time {
	if r.cfg.Predictor == nil || q.item.Instance != 0 {
		return batching.Never
	}
	due := q.deadline()
	if o := r.cfg.Objective; o > 0 {
		due = min(due, r.now+o-o/20-min(q.item.TransportDelay, o/4))
	}
	return due
}

// foresee sets when q should be answered, and returns whether it would be late, for
// certain or possibly.
func (r *Referee) foresee(q *request) (certain, perhaps bool) {
	q.due = r.dueOf(q)
	if q.due == batching.Never || r.parallel() == 0 {
		return false, false
	}
	items, rows, idle := 1, q.item.Rows, r.count(busy) == 0
	for _, other := range r.queue {
		if other.over(r.now) {
			continue
		}
		idle = false
		// Requests of its level that are behind it because they timed out count as well.
		if other.level <= q.level {
			items++
			rows += other.item.Rows
		}
	}
	together := 1
	if r.combines() {
		together = max(1, r.backlogRows()*items/rows)
	}
	before, size, joined := (items-1)/together, together, (items-1)%together
	if others, own := r.shapesWaiting(q, together); r.cfg.OvertakeOtherShapes && r.combines() && others > 0 {
		before, joined = min(items-1, others+own/together), min(items-1, own%together)
		size = max(1, (items-1-joined)/max(1, before))
	}
	start, beside := r.firstFree(), r.count(busy)+1
	if before > 0 || r.count(parked)+r.count(awake) == 0 {
		beside = r.parallel()
	}
	if before > 0 {
		start += time.Duration(before) * r.cfg.Predictor.Predict(max(1, size*rows/items), r.parallel()) / time.Duration(r.parallel())
	}
	least, most := q.item.Rows, q.item.Rows
	if r.combines() {
		most = max(most, r.backlogRows())
		least = max(least, min((joined+1)*rows/items, most))
	}
	if start == r.now {
		most = least // no request can join it
	}
	end := func(rows int) batching.Time {
		takes := r.cfg.Predictor.Predict(rows, beside)
		return start + takes + takes/25
	}
	if idle && end(most) > q.due && r.now-r.lastEnd >= 10*(end(most)-r.now) {
		q.due = batching.Never
	}
	return end(least) > q.due, end(most) > q.due
}

// shapesWaiting returns how many batches the queued requests of other shapes than q's need,
// if a batch has up to together requests, and how many requests of q's shape are queued.
func (r *Referee) shapesWaiting(q *request, together int) (others, own int) {
	count := map[[2]uint64]int{}
	shape := func(q *request) [2]uint64 { return [2]uint64{q.item.Shape, uint64(q.item.Instance)} }
	for _, other := range r.queue {
		if !other.over(r.now) {
			count[shape(other)]++
		}
	}
	own = count[shape(q)]
	delete(count, shape(q))
	for _, n := range count {
		others += (n + together - 1) / together
	}
	return others, own
}

func (r *Referee) firstFree() batching.Time {
	if r.count(parked)+r.count(awake) > 0 {
		return r.now
	}
	first := batching.Never
	for _, in := range r.instances {
		if in.state == busy && !in.leaving {
			first = min(first, max(r.now, in.began+r.cfg.Predictor.Predict(rowsOf(in.batch), r.count(busy))))
		}
	}
	return first
}

func rowsOf(list []*request) (rows int) {
	for _, q := range list {
		rows += q.item.Rows
	}
	return rows
}

// wouldBeLate reports whether a batch of the given rows that begins now answers q too
// late.
func (r *Referee) wouldBeLate(q *request, rows int) bool {
	lost := min(q.deadline(), q.due+r.cfg.Objective/40) // half of the share of the objective that is reserved for transport
	return q.due != batching.Never && lost <= r.now+r.cfg.Predictor.Predict(rows, r.count(busy)+1)
}

// meetDeadlines restates how the core changes a policy's decision so that no request is
// late: n requests from the front of a line, or none until at.
func (r *Referee) meetDeadlines(l line, n int, at batching.Time) (int, batching.Time) {
	dated := false
	for _, q := range r.queue {
		dated = dated || q.due != batching.Never
	}
	if !dated || n == 0 && at == batching.Never {
		return n, at
	}
	most, due := r.backlogRows(), batching.Never
	fit := 1
	for fit < len(l.requests) && rowsOf(l.requests[:fit+1]) <= most {
		fit++
	}
	switch {
	case n > 0 && r.cfg.Objective > 0 && r.combines():
		return min(n, fit), at
	case n > 0:
		return n, at
	case fit < len(l.requests) || rowsOf(l.requests) >= most:
		return fit, 0
	}
	for _, q := range l.requests {
		due = min(due, q.due)
	}
	if due == batching.Never {
		return n, at
	}
	takes := r.cfg.Predictor.Predict(min(rowsOf(l.requests)+1, most), r.count(busy)+1)
	if last := due - takes - takes/8; last > r.now {
		return 0, min(at, last)
	}
	return fit, 0
}
