package batchingtest

import (
	"fmt"
	"slices"

	"github.com/shoal-serving/shoal/internal/batching"
)

// A SequenceReferee checks one [batching.Sequences]: no slot is ever held by two sequences,
// requests of a sequence run one at a time, in order and in the sequence's slot, those that have
// to run again do so, and requests are rejected only for a cause. A [Referee] may check the core behind it, which has to
// answer for what it is given.
type SequenceReferee struct {
	cfg batching.SequenceConfig

	now      batching.Time
	event    batching.Event
	requests map[*batching.Item]*member
	all      []*sequence                        // those that are not over, by start
	live     map[batching.Correlation]*sequence // those that take more requests
	holders  map[place]*sequence
	serving  map[int]bool
	batches  map[int][]*member // by instance
	broken   bool              // some instance cannot be started
	closing  bool
	newcomer *member
}

// A place is a slot of an instance.
type place struct{ instance, slot int }

type sequence struct {
	id    batching.Correlation
	open  []*member // that have not run, by arrival
	runs  *member   // nil if none does
	at    place     // instance 0 until it first runs
	idle  batching.Time
	ended bool // it takes no more requests
	gap   bool // a request left without having run
	late  bool // a request timed out before the sequence got a slot
	lost  bool // its instance has left
	last  bool // its last request runs, or has run, and its slot is free
}

type member struct {
	item     *batching.Item
	seq      *sequence
	arrived  batching.Time
	answered bool
	ran      bool
	done     bool // its batch has ended
	again    bool // it has run before, and runs once more
}

// NewSequences returns a referee for new sequences with the given configuration.
func NewSequences(cfg batching.SequenceConfig) *SequenceReferee {
	return &SequenceReferee{
		cfg: cfg, requests: map[*batching.Item]*member{}, live: map[batching.Correlation]*sequence{}, holders: map[place]*sequence{},
		serving: map[int]bool{}, batches: map[int][]*member{},
	}
}

// Check checks one step: an event, the actions, and what s says of itself afterwards. The
// referee must not be used after an error.
func (r *SequenceReferee) Check(now batching.Time, ev batching.Event, out *batching.Actions, s *batching.Sequences) error {
	r.now, r.event, r.newcomer = now, ev, nil
	r.expireIdle()
	breach := r.happens()
	for i := 0; breach == "" && i < len(out.List); i++ {
		switch a := &out.List[i]; a.Kind {
		case batching.Run:
			breach = r.run(a)
		case batching.Deliver:
			breach = r.deliver(r.requests[a.Item])
		case batching.Reject:
			breach = r.answer(r.requests[a.Item], a.Verdict)
		case batching.Unpark, batching.Stop, batching.Leave, batching.Ask, batching.Yield:
		}
	}
	if breach == "" {
		breach = r.owed(out, s)
	}
	if breach != "" {
		return fmt.Errorf("at %v, on %s: %s", now, kinds[ev.Kind], breach)
	}
	return nil
}

// Finish reports what is unfinished when all work should be done.
func (r *SequenceReferee) Finish() error {
	for it, m := range r.requests {
		if !m.answered {
			return fmt.Errorf("request %v was never answered", it.Owner)
		}
	}
	return nil
}

// expireIdle ends the sequences that have had no request for too long.
func (r *SequenceReferee) expireIdle() {
	for _, q := range slices.Clone(r.all) {
		if r.idles(q) && r.cfg.MaxIdle > 0 && q.idle+r.cfg.MaxIdle <= r.now {
			r.over(q)
		}
	}
}

// idles reports whether the sequence has a slot, and no request.
func (r *SequenceReferee) idles(q *sequence) bool { return len(q.open) == 0 && q.runs == nil }

// over forgets a sequence that has ended.
func (r *SequenceReferee) over(q *sequence) {
	r.end(q)
	if r.holders[q.at] == q {
		delete(r.holders, q.at)
	}
	r.all = slices.DeleteFunc(r.all, func(other *sequence) bool { return other == q })
}

func (r *SequenceReferee) end(q *sequence) {
	q.ended = true
	if r.live[q.id] == q {
		delete(r.live, q.id)
	}
}

// settle forgets the sequence if nothing is left of it.
func (r *SequenceReferee) settle(q *sequence) {
	if !r.idles(q) {
		return
	}
	q.idle = r.now
	if q.ended || r.closing || q.lost {
		r.over(q)
	}
}

func (r *SequenceReferee) happens() (breach string) {
	switch ev := r.event; ev.Kind {
	case batching.Arrive:
		r.newcomer = &member{item: ev.Item, arrived: r.now}
		r.requests[ev.Item] = r.newcomer
	case batching.Up:
		r.serving[ev.Instance] = true
	case batching.Down:
		delete(r.serving, ev.Instance)
		for _, q := range slices.Clone(r.all) {
			if r.instanceOf(q) == ev.Instance {
				q.lost = true
				r.end(q)
				r.settle(q)
			}
		}
	case batching.Broken:
		r.broken = true
	case batching.Done:
		for _, m := range r.batches[ev.Instance] {
			m.done, m.seq.runs = true, nil
			m.seq.idle = r.now
			switch {
			case m.item.Again && !m.answered && !m.expired(r.now):
				m.ran, m.done, m.again = false, false, true
				m.seq.open = append(m.seq.open, m)
			case r.cfg.Iterative:
				r.end(m.seq)
			}
			r.settle(m.seq)
		}
		delete(r.batches, ev.Instance)
	case batching.Close:
		r.closing = true
		for _, q := range slices.Clone(r.all) {
			r.settle(q)
		}
	case batching.Wake, batching.Cancel, batching.Take, batching.Turn, batching.Flush:
	}
	return ""
}

// instanceOf returns the instance that the sequence has a slot of; 0 if it has none.
func (r *SequenceReferee) instanceOf(q *sequence) int {
	if q.at.instance == 0 && len(q.open) > 0 {
		return q.open[0].item.Instance // it has not run yet
	}
	return q.at.instance
}

func (r *SequenceReferee) run(a *batching.Action) (breach string) {
	r.admitted()
	var taken []int
	for _, it := range a.Items {
		m := r.requests[it]
		if m == nil || m.answered || m.ran {
			return fmt.Sprintf("request %v was put into a batch although it does not wait", it.Owner)
		}
		q, slot := m.seq, it.Sequence().Slot()
		at := place{a.Instance, slot}
		holder := r.holders[at]
		switch {
		case q.runs != nil:
			return fmt.Sprintf("request %v runs while request %v of its sequence does", it.Owner, q.runs.item.Owner)
		case q.open[0] != m:
			return fmt.Sprintf("request %v runs before request %v of its sequence", it.Owner, q.open[0].item.Owner)
		case slices.Contains(taken, slot):
			return fmt.Sprintf("request %v runs in slot %d, which another request of the batch has", it.Owner, slot)
		case slot < 0 || slot >= r.cfg.Slots:
			return fmt.Sprintf("request %v runs in slot %d of %d", it.Owner, slot, r.cfg.Slots)
		case holder != nil && holder != q:
			return fmt.Sprintf("request %v runs in slot %d of instance %d, which another sequence holds", it.Owner, slot, a.Instance)
		case q.at.instance != 0 && q.at != at:
			return fmt.Sprintf("request %v runs in slot %d of instance %d, and its sequence has slot %d of instance %d", it.Owner, slot, a.Instance, q.at.slot, q.at.instance)
		}
		taken = append(taken, slot)
		r.holders[at], q.at, q.runs, q.open = q, at, m, q.open[1:]
		m.ran = true
		if q.last = it.End; q.last {
			delete(r.holders, at)
		}
		r.batches[a.Instance] = append(r.batches[a.Instance], m)
	}
	return ""
}

func (r *SequenceReferee) deliver(m *member) (breach string) {
	if m == nil || m.answered || !m.done {
		return "an outcome was delivered that nobody waits for, or before its batch had ended"
	}
	m.answered = true
	return ""
}

// admitted adds the newcomer, which was not refused, to its sequence.
func (r *SequenceReferee) admitted() (breach string) {
	m := r.newcomer
	r.newcomer = nil
	if m == nil {
		return ""
	}
	q := r.live[m.item.Correlation]
	if q == nil {
		if !m.item.Start {
			return fmt.Sprintf("request %v was let in, but its sequence does not exist", m.item.Owner)
		}
		q = &sequence{id: m.item.Correlation}
		r.live[q.id] = q
		r.all = append(r.all, q)
	}
	m.seq = q
	q.open = append(q.open, m)
	if m.item.End {
		r.end(q)
	}
	return ""
}

func (r *SequenceReferee) answer(m *member, v batching.Verdict) (breach string) {
	if m == nil || m.answered {
		return "a request was rejected twice, or is unknown"
	}
	m.answered = true
	if m == r.newcomer {
		if cause := r.mayRefuse(m, v); cause {
			r.newcomer = nil
			return ""
		}
		r.admitted()
	}
	q := m.seq
	if q == nil {
		return fmt.Sprintf("request %v was refused without cause: %v", m.item.Owner, v)
	}
	cause := false
	switch v {
	case batching.Expired:
		cause = m.expired(r.now)
	case batching.Cancelled:
		cause = r.event.Kind == batching.Cancel && r.event.Item == m.item
	case batching.Discontinued:
		cause = !m.ran && q.gap
	case batching.SequenceTimedOut:
		q.late = q.late || r.timedOut(q) || r.overdue(m)
		cause = !m.ran && q.at.instance == 0 && q.late
	case batching.Unbound:
		leaves := r.event.Kind == batching.Down && (q.lost || m.item.Instance == r.event.Instance)
		cause = !m.ran && (leaves || m.again && q.lost)
	case batching.NoInstance:
		cause = !m.ran && r.broken && len(r.serving) == 0
	case batching.TooLarge, batching.QueueFull, batching.TimedOut, batching.Closed, batching.Late, batching.NoStart:
	}
	if !cause {
		return fmt.Sprintf("request %v was rejected without cause: %v", m.item.Owner, v)
	}
	if !m.ran {
		q.gap = true
		r.end(q)
		q.open = slices.DeleteFunc(q.open, func(other *member) bool { return other == m })
		r.settle(q)
	}
	return ""
}

// expired reports whether the deadline of the request has passed.
func (m *member) expired(now batching.Time) bool {
	return m.item.Deadline != 0 && m.item.Deadline <= now
}

// timedOut reports whether a request of a sequence without a slot has waited for its timeout.
func (r *SequenceReferee) timedOut(q *sequence) bool { return slices.ContainsFunc(q.open, r.overdue) }

func (r *SequenceReferee) overdue(m *member) bool {
	return m.item.Timeout > 0 && m.arrived+m.item.Timeout <= r.now
}

// mayRefuse reports whether there is a cause to refuse the newcomer.
func (r *SequenceReferee) mayRefuse(m *member, v batching.Verdict) bool {
	switch v {
	case batching.Closed:
		return r.closing
	case batching.TooLarge:
		return m.item.Rows != 1
	case batching.NoStart:
		return r.live[m.item.Correlation] == nil && !m.item.Start
	case batching.Expired:
		return m.expired(r.now)
	case batching.NoInstance:
		return r.broken && len(r.serving) == 0
	case batching.QueueFull:
		return true // the game compares it with the bound
	case batching.TimedOut, batching.Cancelled, batching.Unbound, batching.Late, batching.Discontinued, batching.SequenceTimedOut:
	}
	return false
}

// owed reports what should have happened by the end of the step and did not.
func (r *SequenceReferee) owed(out *batching.Actions, s *batching.Sequences) (breach string) {
	if breach = r.admitted(); breach != "" {
		return breach
	}
	active, waiting := s.Live()
	if want := len(r.serving) * r.cfg.Slots; waiting > 0 && active != want {
		return fmt.Sprintf("%d sequences wait, and %d of %d slots are held", waiting, active, want)
	}
	slotted, wakes := 0, batching.Never
	for _, q := range r.all {
		if q.lost {
			continue
		}
		if r.instanceOf(q) != 0 && !q.last {
			slotted++
		}
		switch {
		case r.idles(q):
			if r.cfg.MaxIdle > 0 {
				wakes = min(wakes, q.idle+r.cfg.MaxIdle)
			}
		case q.gap && len(q.open) > 0 && q.open[0].expired(r.now):
			return fmt.Sprintf("request %v was not answered at its deadline", q.open[0].item.Owner)
		case q.runs == nil && r.instanceOf(q) != 0 && !q.open[0].item.Queued():
			return fmt.Sprintf("request %v is the next of a sequence that has a slot, and is not in the queue", q.open[0].item.Owner)
		}
		for _, m := range q.open {
			if m.item.Deadline != 0 {
				wakes = min(wakes, m.item.Deadline)
			}
			if r.instanceOf(q) == 0 && m.item.Timeout > 0 {
				wakes = min(wakes, m.arrived+m.item.Timeout)
			}
		}
	}
	switch {
	case slotted != active:
		return fmt.Sprintf("%d sequences have a slot, but the core says %d", slotted, active)
	case len(r.live) > len(r.all):
		return "a sequence takes requests that is over"
	case out.Wake > wakes:
		return fmt.Sprintf("the core wants to be woken at %v, but is needed at %v", out.Wake, wakes)
	}
	return ""
}
