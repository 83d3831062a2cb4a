package batchingtest

import (
	"fmt"
	"slices"

	"github.com/shoal-serving/shoal/internal/batching"
)

// owed reports what the core should have done by the end of the step and did not.
func (r *Referee) owed() (breach string) {
	if q := r.newcomer; q != nil && q.state == arriving {
		return fmt.Sprintf("%v was let in although it was to be rejected: %v", q, r.refusals)
	}
	if q := r.leaver; q != nil && q.isOpen() {
		return fmt.Sprintf("the client of %v left, but it was not answered", q)
	}
	for i, q := range r.open {
		switch {
		case q.deadline() <= r.now:
			return fmt.Sprintf("%v was not answered at its deadline", q)
		case q.state == waiting && q.expires <= r.now:
			return fmt.Sprintf("%v was not rejected when its time in the queue was over", q)
		case q.state == waiting && q.item.Instance != 0 && !r.instance(q.item.Instance).serves():
			return fmt.Sprintf("%v waits for instance %d, which has left", q, q.item.Instance)
		case q.state == waiting && r.unservable():
			return fmt.Sprintf("%v waits although no instance serves and one cannot be started", q)
		case q.state == ready && (i == 0 || !r.cfg.KeepOrder):
			return fmt.Sprintf("%v was not delivered although nothing holds it up", q)
		}
	}
	for _, in := range r.instances {
		if breach = r.owedBy(in); breach != "" {
			return breach
		}
	}
	switch {
	case r.cfg.TakeTurns && r.ended != nil:
		return fmt.Sprintf("the batch of instance %d has ended, but its turn was kept", r.ended.number)
	case r.turns > 0 && r.count(awake) == 0:
		return "a turn was kept that nobody will use"
	}
	return ""
}

func (r *Referee) owedBy(in *instance) (breach string) {
	wanted := slices.ContainsFunc(in.batch, func(q *request) bool { return q.on == in && q.isOpen() })
	switch {
	case in.state == busy && in.stopped && wanted:
		return fmt.Sprintf("the batch of instance %d was stopped although somebody waits for it", in.number)
	case in.state == busy && !in.stopped && !wanted:
		return fmt.Sprintf("the batch of instance %d was not stopped although everybody in it has left", in.number)
	case in.leaving && in.state == parked,
		in.leaving && in.state == awake && r.event.Kind == batching.Take && r.event.Instance == in.number:
		return fmt.Sprintf("instance %d was to leave, and did not", in.number)
	}
	// Requests that are not bound are left to an awake instance.
	if in.state != parked || r.count(awake) > 0 && !r.hasBound(in) {
		return ""
	}
	take, _ := r.due(in)
	switch {
	case len(take) == 0 || r.asked && r.turns == 0:
		return ""
	case r.cfg.TakeTurns && r.turns == 0:
		return fmt.Sprintf("%v is due, but no turn was asked for", take[0])
	}
	return fmt.Sprintf("%v is due and instance %d is parked, but was not called", take[0], in.number)
}

func (r *Referee) hasBound(in *instance) bool {
	return slices.ContainsFunc(r.queue, func(q *request) bool { return q.item.Instance == in.number })
}

// wake checks when the core wants to be woken: not too late for any guarantee, not in the
// past, and not without a reason.
func (r *Referee) wake(at batching.Time) (breach string) {
	needed := batching.Never
	for _, q := range r.open {
		needed = min(needed, q.deadline())
		if q.state == waiting {
			needed = min(needed, q.expires)
		}
	}
	soonest := needed
	for _, in := range r.instances {
		if in.state != parked {
			continue
		}
		take, until := r.due(in)
		if len(take) > 0 {
			continue // it waits for a turn, or for an awake instance
		}
		soonest = min(soonest, until)
		if r.count(awake) == 0 || r.hasBound(in) {
			needed = min(needed, until)
		}
	}
	switch {
	case at <= r.now:
		return fmt.Sprintf("the core wants to be woken at %v, which has passed", at)
	case at > needed:
		return fmt.Sprintf("the core wants to be woken at %v, but is needed at %v", at, needed)
	case at < soonest && r.rule != nil:
		return fmt.Sprintf("the core wants to be woken at %v, but has nothing to do before %v", at, soonest)
	}
	return ""
}
