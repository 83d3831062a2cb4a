package batchingtest

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/shoal-serving/shoal/internal/batching"
)

// This file restates how tenants share a queue, and checks that their shares are fair: the
// order in which requests must run is exact, and so a second, weaker check needs none of it.

// tenants are the shares of one level.
type tenants struct {
	clock  uint64
	credit uint64 // what a tenant may make up for that was idle
	shares map[int]*share
}

type share struct {
	next, unserved uint64
	fifo           []*request // waiting requests
	largest        uint64     // virtual time of its largest request ever
	slack          uint64     // how far its starts were behind, at most, while it competed
}

func (q *request) virtual() uint64 {
	return uint64(q.item.Rows) << 16 / uint64(max(1, q.item.Weight))
}

func (s *share) waiting() (sum uint64) {
	for _, q := range s.fifo {
		sum += q.virtual()
	}
	return sum
}

func (r *Referee) tenantOf(it *batching.Item) int {
	if r.cfg.KeepOrder {
		return 0
	}
	return it.Tenant
}

func (r *Referee) tenantsOf(level int) *tenants {
	for len(r.tenants) <= level {
		r.tenants = append(r.tenants, &tenants{shares: map[int]*share{}, credit: 2 * uint64(max(1, r.cfg.MaxRows)) << 16})
	}
	return r.tenants[level]
}

func (t *tenants) share(tenant int) *share {
	if t.shares[tenant] == nil {
		t.shares[tenant] = &share{}
	}
	return t.shares[tenant]
}

// active returns the tenants that wait.
func (t *tenants) active() (list []int) {
	for tenant, s := range t.shares {
		if len(s.fifo) > 0 {
			list = append(list, tenant)
		}
	}
	return list
}

// start returns when the next request of a tenant starts, in virtual time.
func (t *tenants) start(tenant int) uint64 {
	s := t.share(tenant)
	if len(s.fifo) == 0 {
		return max(s.next, t.clock-min(t.clock, t.credit))
	}
	return s.next
}

// addShare gives a request that joins the queue its start.
func (r *Referee) addShare(q *request) {
	t := r.tenantsOf(q.level)
	tenant := r.tenantOf(q.item)
	s := t.share(tenant)
	others := t.active()
	q.start = t.start(tenant)
	s.next = q.start + q.virtual()
	s.largest = max(s.largest, q.virtual())
	if len(s.fifo) == 0 && len(others) == 1 {
		r.settle(t.shares[others[0]])
	}
	s.fifo = append(s.fifo, q)
}

// leaveShare records that a request left the queue, because it runs or for another reason.
func (r *Referee) leaveShare(q *request, runs bool) {
	t := r.tenantsOf(q.level)
	s := t.share(r.tenantOf(q.item))
	last := s.fifo[len(s.fifo)-1] == q
	s.fifo = without(s.fifo, q)
	switch {
	case runs && q.start > s.unserved:
		t.clock = max(t.clock, q.start-s.unserved)
	case runs:
	case last && s.next == q.start+q.virtual():
		s.next = q.start
	default:
		s.unserved += q.virtual()
	}
	if len(s.fifo) == 0 {
		s.next, s.unserved, s.slack = s.next-s.unserved, 0, 0
	} else if !runs && len(t.active()) > 1 {
		r.settle(s)
	}
}

// settle lets the requests of a tenant move up, if those that left without running are more
// than a 32nd of them.
func (r *Referee) settle(s *share) {
	if s.unserved*32 <= s.waiting() {
		s.slack = max(s.slack, s.unserved)
		return
	}
	s.next -= s.unserved + s.waiting()
	s.unserved = 0
	for _, q := range s.fifo {
		q.start = s.next
		s.next += q.virtual()
	}
	slices.SortStableFunc(r.queue, inOrder)
}

// expireShares records which requests leave the queue, or are moved behind the others, because
// their time is over, in the order in which that happened.
func (r *Referee) expireShares() {
	var over []*request
	for _, q := range r.queue {
		if min(q.expires, q.deadline()) <= r.now {
			over = append(over, q)
		}
	}
	slices.SortFunc(over, func(a, b *request) int {
		return cmp.Or(cmp.Compare(min(a.expires, a.deadline()), min(b.expires, b.deadline())), cmp.Compare(a.joined, b.joined))
	})
	for _, q := range over {
		r.leaveShare(q, false)
		r.interrupt(q)
		if q.deadline() > r.now && r.cfg.Levels[q.level].DelayOnTimeout {
			r.queue = without(r.queue, q)
			q.late, q.expires = true, batching.Never
			r.join(q)
		} else {
			q.left = true
		}
	}
}

// displaced returns the request that must leave a full queue for q, or nil.
func (r *Referee) displaced(q *request, level batching.Level) *request {
	inScope := func(other *request) bool {
		return !other.over(r.now) && (other.level == q.level || level.UseSharedBound && r.cfg.Levels[other.level].UseSharedBound)
	}
	requests, bytes := 0, int64(0)
	for _, other := range r.queue {
		if inScope(other) {
			requests++
			bytes += other.item.Bytes
		}
	}
	byBytes := level.UseSharedBound && (r.cfg.Shared.Requests == 0 || requests < r.cfg.Shared.Requests)
	size := func(q *request) float64 {
		if byBytes {
			return float64(q.item.Bytes)
		}
		return 1
	}
	weight := func(q *request) float64 { return float64(max(1, q.item.Weight)) }
	own := size(q)
	type place struct{ level, tenant int }
	parts, sizes, last := map[int]float64{}, map[place]float64{}, map[place]*request{}
	for _, other := range r.queue {
		if !inScope(other) {
			continue
		}
		if r.tenantOf(other.item) == r.tenantOf(q.item) {
			own += size(other)
			continue
		}
		at := place{other.level, r.tenantOf(other.item)}
		parts[at.tenant] += size(other)
		sizes[at] += size(other)
		if last[at] == nil || last[at].joined < other.joined {
			last[at] = other
		}
	}
	var victim *request
	most := own / weight(q)
	for at, n := range sizes {
		if part := parts[at.tenant] / weight(last[at]); n > 0 && (part > most || victim != nil && part == most && inOrder(victim, last[at]) < 0) {
			victim, most = last[at], part
		}
	}
	if b := r.cfg.Shared.Bytes; victim != nil && level.UseSharedBound && b > 0 && requests > 1 && bytes-victim.item.Bytes+q.item.Bytes > b {
		return nil
	}
	return victim
}

// Fairness. While two tenants of a level have requests waiting, the rows that they get, each
// divided by the tenant's weight, never differ by more than one request of each, which is the
// bound of start-time fair queueing, the credit of a tenant that was idle, and what was not
// settled yet of requests that left. It is
// checked where nothing but the order of the queue decides what runs: not if requests of a
// shape may overtake others or are bound to an instance, and between requests that leave.

type rivals struct{ level, a, b int } // a < b

// A race is what two tenants got since both wait, in virtual time.
type race [2]uint64

// interrupt ends the races of a request's tenant.
func (r *Referee) interrupt(q *request) {
	for k := range r.races {
		if t := r.tenantOf(q.item); k.level == q.level && (k.a == t || k.b == t) {
			delete(r.races, k)
		}
	}
}

// serve records that q is taken, and returns a violation if another tenant got too little.
func (r *Referee) serve(q *request) (breach string) {
	if r.cfg.OvertakeOtherShapes || r.cfg.Levels[q.level].DelayOnTimeout || r.bound {
		clear(r.races)
		return ""
	}
	tenant := r.tenantOf(q.item)
	t := r.tenantsOf(q.level)
	for other, s := range t.shares {
		if other == tenant {
			continue
		}
		k, i := rivals{q.level, tenant, other}, 0
		if other < tenant {
			k, i = rivals{q.level, other, tenant}, 1
		}
		if len(s.fifo) == 0 {
			delete(r.races, k)
			continue
		}
		got := r.races[k]
		got[i] += q.virtual()
		if own := t.shares[tenant]; got[i] > got[1-i]+s.largest+own.largest+s.slack+own.slack+t.credit {
			return fmt.Sprintf("tenant %d got %.1f rows for each of its weight while tenant %d waited, and that got %.1f", tenant, float64(got[i])/(1<<16), other, float64(got[1-i])/(1<<16))
		}
		r.races[k] = got
	}
	if len(t.shares[tenant].fifo) == 1 { // it was the last one of its tenant
		r.interrupt(q)
	}
	return ""
}
