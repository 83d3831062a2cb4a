package batchingtest

import (
	"fmt"
	"slices"

	"github.com/shoal-serving/shoal/internal/batching"
)

// action checks one action of the core.
func (r *Referee) action(a *batching.Action) (breach string) {
	switch a.Kind {
	case batching.Run:
		return r.run(a)
	case batching.Unpark:
		return r.call(r.instance(a.Instance))
	case batching.Deliver:
		return r.deliver(r.requests[a.Item])
	case batching.Reject:
		return r.answer(r.requests[a.Item], a.Verdict)
	case batching.Stop:
		return r.stop(r.instance(a.Instance), a.Batch)
	case batching.Leave:
		return r.leave(r.instance(a.Instance))
	case batching.Ask:
		return r.ask()
	case batching.Yield:
		return r.yield(a)
	}
	return fmt.Sprintf("the core asked for %d, which is no action", a.Kind)
}

// Instances.

func (r *Referee) run(a *batching.Action) (breach string) {
	in := r.instance(a.Instance)
	switch {
	case in.state == busy:
		return fmt.Sprintf("instance %d was given a batch while it still runs another", in.number)
	case r.event.Kind != batching.Take || r.event.Instance != in.number || in.state != parked:
		return fmt.Sprintf("instance %d was given a batch although it does not take", in.number)
	case r.cfg.TakeTurns && r.turns == 0:
		return fmt.Sprintf("instance %d was given a batch without a turn", in.number)
	case a.Batch <= r.batches:
		return fmt.Sprintf("the batches %d and %d are numbered out of order", r.batches, a.Batch)
	case len(a.Items) == 0:
		return fmt.Sprintf("instance %d was given an empty batch", in.number)
	}
	batch, breach := r.batchOf(a.Items, in)
	if breach != "" {
		return breach
	}
	if breach = r.firstOf(batch, in); breach != "" {
		return breach
	}
	for _, q := range batch {
		if breach = r.serve(q); breach != "" {
			return breach
		}
		r.leaveShare(q, true)
		r.queue = without(r.queue, q)
		q.state, q.on = running, in
	}
	in.state, in.stopped, in.began = busy, false, r.now
	in.lent, in.batch, in.serial = a.Items, batch, a.Batch
	r.batches = a.Batch
	if slices.ContainsFunc(batch, func(q *request) bool { return q.item.Shape != batch[0].item.Shape }) {
		r.paddedUntil = a.Batch + 16
	}
	if r.cfg.TakeTurns {
		r.turns--
	}
	return ""
}

// batchOf finds the requests of a batch, and checks that they may share a batch on this
// instance.
func (r *Referee) batchOf(items []*batching.Item, in *instance) (batch []*request, breach string) {
	rows := 0
	for i, it := range items {
		q := r.requests[it]
		switch first := items[0]; {
		case q == nil || q.state != waiting:
			return nil, fmt.Sprintf("request %v was put into a batch although it does not wait", it.Owner)
		case slices.Contains(items[:i], it):
			return nil, fmt.Sprintf("%v was put into a batch twice", q)
		case q.over(r.now):
			return nil, fmt.Sprintf("%v was put into a batch although its time was over", q)
		case it.Instance != 0 && it.Instance != in.number:
			return nil, fmt.Sprintf("%v was given to instance %d although it is bound to instance %d", q, in.number, it.Instance)
		case it.Shape != first.Shape && !r.padsWith(first, it):
			return nil, fmt.Sprintf("%v shares a batch with request %v, which has another shape", q, first.Owner)
		case it.Instance != first.Instance:
			return nil, fmt.Sprintf("%v shares a batch with request %v, and only one of them is bound", q, first.Owner)
		}
		batch = append(batch, q)
		rows += it.Rows
	}
	if r.cfg.MaxRows > 0 && rows > r.cfg.MaxRows {
		return nil, fmt.Sprintf("instance %d was given %d rows, and may be given %d", in.number, rows, r.cfg.MaxRows)
	}
	for _, q := range batch {
		if r.wouldBeLate(q, sizeOf(batch)) {
			return nil, fmt.Sprintf("%v was put into a batch that answers it too late", q)
		}
	}
	return batch, ""
}

// firstOf checks that a batch was taken from the front of the queue, and that it matches
// the policy's rule.
func (r *Referee) firstOf(batch []*request, in *instance) (breach string) {
	lines := r.lines(in)
	i := slices.IndexFunc(lines, func(l line) bool { return l.holds(batch[0]) })
	if i < 0 {
		return fmt.Sprintf("%v was put into a batch before %v, which is to run first", batch[0], lines[0].requests[0])
	}
	if n := slices.IndexFunc(batch, func(q *request) bool { return !lines[i].holds(q) }); n > 0 {
		if breach = r.padded(batch[n:], lines, len(lines[i].requests)-n); breach != "" {
			return breach
		}
		batch = batch[:n]
	}
	front := lines[i].requests
	for k, q := range batch {
		switch {
		case k == len(front):
			return fmt.Sprintf("%v was put into a batch, and passed over those that stand between", q)
		case q != front[k]:
			return fmt.Sprintf("%v was put into a batch before %v, which is to run first", q, front[k])
		}
	}
	if r.rule == nil {
		return ""
	}
	if take, _ := r.due(in); !slices.Equal(take, batch) {
		return fmt.Sprintf("instance %d was given %v, and should have been given %v", in.number, batch, take)
	}
	return ""
}

// padsWith reports whether requests of different shapes may share a batch.
func (r *Referee) padsWith(a, b *batching.Item) bool {
	_, pads := r.cfg.Policy.(batching.Padder)
	return pads && r.cfg.OvertakeOtherShapes && a.PadGroup != 0 && a.PadGroup == b.PadGroup
}

// padded checks the requests of a batch that have other shapes than the first: they are the
// front of their lines, and none of the first shape was left behind for them.
func (r *Referee) padded(batch []*request, lines []line, left int) (breach string) {
	if left > 0 {
		return fmt.Sprintf("%v was padded to join a batch, and %d requests of the batch's own shape were left behind", batch[0], left)
	}
	taken := make([]int, len(lines))
	for _, q := range batch {
		i := slices.IndexFunc(lines, func(l line) bool { return l.holds(q) })
		if want := lines[i].requests[taken[i]]; q != want {
			return fmt.Sprintf("%v was padded to join a batch before %v, which is to run first", q, want)
		}
		taken[i]++
	}
	return ""
}

func (r *Referee) call(in *instance) (breach string) {
	switch {
	case in.state != parked:
		return fmt.Sprintf("instance %d was called although it is not parked", in.number)
	case in.leaving:
		return fmt.Sprintf("instance %d was called although it is to leave", in.number)
	case r.cfg.TakeTurns && r.turns == 0:
		return fmt.Sprintf("instance %d was called without a turn", in.number)
	}
	if take, _ := r.due(in); r.rule != nil && len(take) == 0 {
		return fmt.Sprintf("instance %d was called although nothing is due", in.number)
	}
	in.state = awake
	return ""
}

// stop only records the action: the last request of the batch may be answered in the same
// step, or may have been answered at the moment when the batch ended.
func (r *Referee) stop(in *instance, serial uint64) (breach string) {
	runs := in.state == busy || r.event.Kind == batching.Done && r.event.Instance == in.number
	switch {
	case !runs || in.serial != serial:
		return fmt.Sprintf("batch %d of instance %d was stopped, which does not run", serial, in.number)
	case in.stopped:
		return fmt.Sprintf("batch %d of instance %d was stopped twice", serial, in.number)
	}
	in.stopped = true
	return ""
}

func (r *Referee) leave(in *instance) (breach string) {
	switch {
	case !in.leaving || in.state == away:
		return fmt.Sprintf("instance %d left although it was not to leave", in.number)
	case in.state == busy:
		return fmt.Sprintf("instance %d left while its batch runs", in.number)
	}
	in.state = away
	return ""
}

// Requests.

func (r *Referee) deliver(q *request) (breach string) {
	if q == nil {
		return "an outcome was delivered to nobody"
	}
	switch q.state {
	case waiting:
		return fmt.Sprintf("%v was delivered without having run", q)
	case running:
		return fmt.Sprintf("%v was delivered before its batch had ended", q)
	case delivered:
		return fmt.Sprintf("%v was delivered twice", q)
	case arriving, answered:
		return fmt.Sprintf("%v was delivered although it was rejected", q)
	case ready:
	}
	if r.cfg.KeepOrder && r.open[0] != q {
		return fmt.Sprintf("%v was delivered before %v, which arrived first", q, r.open[0])
	}
	q.state = delivered
	r.open = without(r.open, q)
	return ""
}

func (r *Referee) answer(q *request, v batching.Verdict) (breach string) {
	switch {
	case q == nil:
		return "an unknown request was rejected"
	case q.state == delivered:
		return fmt.Sprintf("%v was rejected after it had been delivered", q)
	case q.state == answered:
		return fmt.Sprintf("%v was rejected twice", q)
	case !r.mayReject(q, v):
		return fmt.Sprintf("%v was rejected without cause: %v", q, v)
	}
	if q.state == waiting {
		r.queue = without(r.queue, q)
		if !q.left {
			r.leaveShare(q, false)
			r.interrupt(q)
		}
	}
	if q.state != arriving {
		r.open = without(r.open, q)
	}
	q.state = answered
	return ""
}

func (r *Referee) mayReject(q *request, v batching.Verdict) bool {
	if q.state == arriving {
		return slices.Contains(r.refusals, v)
	}
	switch v {
	case batching.Expired:
		return q.deadline() <= r.now
	case batching.TimedOut:
		return q.state == waiting && q.expires <= r.now
	case batching.Cancelled:
		return q == r.leaver
	case batching.Unbound:
		return q.state == waiting && r.event.Kind == batching.Down && q.item.Instance == r.event.Instance
	case batching.NoInstance:
		return q.state == waiting && (r.event.Kind == batching.Down || r.event.Kind == batching.Broken) && r.unservable()
	case batching.Late:
		return q == r.newcomer && r.mayRefuse ||
			q.state == waiting && r.event.Kind == batching.Take && r.wouldBeLate(q, batching.Size{Rows: r.largestBatch(), Elements: q.item.Elements})
	case batching.QueueFull:
		return q == r.displaces
	case batching.TooLarge, batching.Closed:
	}
	return false
}

// largestBatch returns the most rows that a batch can have now.
func (r *Referee) largestBatch() int {
	if r.cfg.MaxRows == 0 {
		return rowsOf(r.queue)
	}
	return r.cfg.MaxRows
}

// Turns.

func (r *Referee) ask() (breach string) {
	switch {
	case !r.cfg.TakeTurns:
		return "the core asked for a turn although the model takes none"
	case r.asked:
		return "the core asked for a turn although one is on its way"
	}
	r.asked = true
	return ""
}

// yield checks that the turn of a batch is charged with the duration of the batch, and an
// unused turn with nothing. So the total charge is the time for which the model used the
// device.
func (r *Referee) yield(a *batching.Action) (breach string) {
	switch {
	case r.ended != nil:
		if ran := r.now - r.ended.began; a.Ran != ran {
			return fmt.Sprintf("a turn was charged for %v, and was used for %v", a.Ran, ran)
		}
		r.ended = nil
	case r.turns == 0:
		return "a turn was given back that was not there"
	case a.Ran != 0:
		return fmt.Sprintf("a turn was charged for %v, and was not used", a.Ran)
	default:
		r.turns--
	}
	r.given++
	return ""
}
