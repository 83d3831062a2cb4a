package batchingtest

import (
	"slices"
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

// serving returns the number of instances that take batches.
func (r *Referee) serving() (n int) {
	for _, in := range r.instances {
		if in.serves() {
			n++
		}
	}
	return n
}

// parallel returns how many batches may run in parallel while rows of the given number of elements
// wait.
func (r *Referee) parallel(elements int64) int {
	n := r.serving()
	if _, running := r.backlog(elements); running > 0 {
		n = min(n, running)
	}
	return n
}

// backlog asks a policy without a rule how it works off a long queue.
func (r *Referee) backlog(elements int64) (rows, running int) {
	if p, ok := r.cfg.Policy.(interface {
		Backlog(elements int64) (rows, running int)
	}); ok && r.rule == nil {
		return p.Backlog(elements)
	}
	return 0, 0
}

// backlogRows returns the batch size in rows of the given number of elements while the queue
// is long.
func (r *Referee) backlogRows(elements int64) int {
	most := r.cfg.MaxRows
	if p, ok := r.cfg.Policy.(batching.Triton); ok && len(p.Preferred) > 0 {
		most = p.Preferred[len(p.Preferred)-1]
	}
	if rows, _ := r.backlog(elements); rows > 0 {
		most = rows
	}
	side := time.Duration(r.parallel(elements))
	if r.cfg.Objective == 0 || !r.combines() || side == 0 {
		return most
	}
	for n := most; n > 1; n-- {
		if takes := r.cfg.Predictor.Predict(batching.Size{Rows: n, Elements: elements}, int(side)); takes+takes/side <= r.cfg.Objective {
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
	parallel := r.parallel(q.item.Elements)
	if q.due == batching.Never || parallel == 0 {
		return false, false
	}
	items, rows, idle, overtakes := 1, q.item.Rows, r.count(busy) == 0, false
	t := r.tenantsOf(q.level)
	others := slices.DeleteFunc(t.active(), func(tenant int) bool { return tenant == r.tenantOf(q.item) })
	for _, other := range r.queue {
		if other.over(r.now) {
			continue
		}
		idle = false
		if other.level == q.level && len(others) > 0 && (other.late || other.start > t.start(r.tenantOf(q.item))) {
			overtakes = true
			continue
		}
		// Requests of its level that are behind it because they timed out count as well.
		if other.level <= q.level {
			items++
			rows += other.item.Rows
		}
	}
	together := 1
	if r.combines() {
		together = max(1, r.backlogRows(q.item.Elements)*items/rows)
	}
	before, takes, joined, known := r.ahead(q, items-1, together, max(1, together*rows/items), overtakes)
	start, free := r.firstFree(parallel)
	beside := r.count(busy) + 1
	if before > 0 || !r.free(parallel) {
		beside = parallel
	}
	if before > 0 {
		start += takes / time.Duration(parallel)
	}
	least, most := q.item.Rows, q.item.Rows
	if r.combines() {
		most = max(most, r.backlogRows(q.item.Elements))
		least = max(least, min((joined+1)*rows/items, most))
	}
	if start == r.now {
		most = least // no request can join it
	}
	end := func(rows int) batching.Time {
		takes := r.cfg.Predictor.Predict(batching.Size{Rows: rows, Elements: q.item.Elements}, beside)
		return start + takes + takes/25
	}
	if known = known && free && r.cfg.Predictor.Predict(batching.Size{Rows: least, Elements: q.item.Elements}, beside) > 0; !known {
		return false, false
	}
	if idle && end(most) > q.due && r.now-r.lastEnd >= 10*(end(most)-r.now) {
		q.due = batching.Never
	}
	return end(least) > q.due, end(most) > q.due
}

// ahead returns how many batches run before that of q, how long they take in total, and how
// many queued requests run with q; and whether all of these times are known. Requests are those ahead of q; a batch has up to together
// requests, and that many have the given rows. Where those are that q overtakes does not matter.
func (r *Referee) ahead(q *request, requests, together, rows int, overtakes bool) (batches int, take time.Duration, joined int, known bool) {
	type shape struct {
		hash     uint64
		instance int
	}
	type count struct{ items, rows int }
	counts := map[shape]count{}
	of := func(other *request) shape {
		if r.batches < r.paddedUntil && q.item.Instance == other.item.Instance && r.padsWith(q.item, other.item) {
			return shape{q.item.Shape, q.item.Instance} // as if it had the same
		}
		return shape{other.item.Shape, other.item.Instance}
	}
	elements := map[shape]int64{}
	for _, other := range r.queue {
		if !other.over(r.now) {
			n := counts[of(other)]
			counts[of(other)] = count{n.items + 1, n.rows + other.item.Rows}
			elements[of(other)] = other.item.Elements
		}
	}
	own := counts[of(q)].items
	delete(counts, of(q))
	if overtakes || !r.cfg.OvertakeOtherShapes || !r.combines() || len(counts) == 0 {
		own, counts = requests, nil
	}
	known = true
	add := func(n int, size batching.Size) {
		takes := r.cfg.Predictor.Predict(size, r.parallel(q.item.Elements))
		batches += n
		take += time.Duration(n) * takes
		known = known && (n == 0 || takes > 0)
	}
	for s, n := range counts {
		needs := (n.items + together - 1) / together
		add(needs, batching.Size{Rows: max(1, n.rows/needs), Elements: elements[s]})
	}
	add(own/together, batching.Size{Rows: rows, Elements: q.item.Elements})
	if batches > requests {
		take = take / time.Duration(batches) * time.Duration(requests)
		batches = requests
	}
	return batches, take, min(requests, own%together), known
}

// free reports whether an instance is idle, and not only because the policy does not use it.
func (r *Referee) free(parallel int) bool {
	unused := parallel < r.serving() && r.count(busy) >= parallel
	return r.count(parked)+r.count(awake) > 0 && !unused
}

// firstFree returns when the first instance is free, and whether that is known.
func (r *Referee) firstFree(parallel int) (first batching.Time, known bool) {
	if r.free(parallel) {
		return r.now, true
	}
	first, known = batching.Never, true
	for _, in := range r.instances {
		if in.state == busy && (!in.leaving || r.count(parked)+r.count(awake) > 0) {
			takes := r.cfg.Predictor.Predict(sizeOf(in.batch), r.count(busy))
			first, known = min(first, max(r.now, in.began+takes)), known && takes > 0
		}
	}
	return first, known
}

func sizeOf(list []*request) batching.Size {
	size := batching.Size{Rows: rowsOf(list)}
	for _, q := range list {
		size.Elements = max(size.Elements, q.item.Elements)
	}
	return size
}

func rowsOf(list []*request) (rows int) {
	for _, q := range list {
		rows += q.item.Rows
	}
	return rows
}

// wouldBeLate reports whether a batch of the given size that begins now answers q too
// late.
func (r *Referee) wouldBeLate(q *request, size batching.Size) bool {
	lost := min(q.deadline(), q.due+r.cfg.Objective/40) // half of the share of the objective that is reserved for transport
	return q.due != batching.Never && lost <= r.now+r.cfg.Predictor.Predict(size, r.count(busy)+1)
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
	elements := l.requests[0].item.Elements
	most, due := r.backlogRows(elements), batching.Never
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
	takes := r.cfg.Predictor.Predict(batching.Size{Rows: min(rowsOf(l.requests)+1, most), Elements: elements}, r.count(busy)+1)
	if last := due - takes - takes/8; last > r.now {
		return 0, min(at, last)
	}
	return fit, 0
}
