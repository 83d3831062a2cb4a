package batchingtest

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
)

// A line is the part of the queue that an instance may take from, starting at the front.
type line struct {
	requests []*request
	cut      bool // it is followed by a request that cannot join it
}

// holds reports whether q may share a batch with the line.
func (l line) holds(q *request) bool {
	first := l.requests[0].item
	return first.Shape == q.item.Shape && first.Instance == q.item.Instance
}

// lines returns what the instance may take from: one line for each shape with OvertakeOtherShapes,
// and otherwise only the one at the front.
func (r *Referee) lines(in *instance) []line {
	var lines []line
	for _, q := range r.queue {
		if q.item.Instance != 0 && q.item.Instance != in.number {
			continue
		}
		switch i := slices.IndexFunc(lines, func(l line) bool { return l.holds(q) }); {
		case len(lines) == 0 || r.cfg.OvertakeOtherShapes && i < 0:
			lines = append(lines, line{requests: []*request{q}})
		case i < 0:
			lines[0].cut = true
			return lines
		default:
			lines[i].requests = append(lines[i].requests, q)
		}
	}
	return lines
}

// due returns the batch that the instance must take now. If there is none, it returns
// when there will be one.
func (r *Referee) due(in *instance) (take []*request, until batching.Time) {
	until = batching.Never
	if r.rule == nil {
		return nil, until
	}
	for _, l := range r.lines(in) {
		n, at := r.rule(r.now, l, r.closing)
		n, at = r.meetDeadlines(l, n, at)
		if n > 0 {
			return l.requests[:n], until
		}
		until = min(until, at)
	}
	return nil, until
}

// A rule restates a policy: how many requests from the front of a line are due, or when
// they will be.
type rule func(now batching.Time, l line, closing bool) (n int, at batching.Time)

func ruleOf(p batching.Policy) rule {
	switch p := p.(type) {
	case nil, batching.None:
		return func(batching.Time, line, bool) (int, batching.Time) { return 1, 0 }
	case batching.Triton:
		return func(now batching.Time, l line, closing bool) (int, batching.Time) { return triton(p, now, l, closing) }
	}
	return nil
}

// patience is a policy that limits how long it holds requests while no batch runs.
type patience interface{ Longest() time.Duration }

func patienceOf(p batching.Policy) patience {
	patient, _ := p.(patience)
	return patient
}

// held returns a violation if the core holds a batch for longer than its policy allows.
func (r *Referee) held(wake batching.Time) (breach string) {
	could := slices.ContainsFunc(r.instances, func(in *instance) bool { return in.state == parked && len(r.lines(in)) > 0 })
	if !could || r.count(busy) > 0 || r.count(awake) > 0 || r.asked {
		r.idle = -1
		return ""
	}
	if r.idle < 0 {
		r.idle = r.now
	}
	oldest := slices.MinFunc(r.queue, func(a, b *request) int { return cmp.Compare(a.arrived, b.arrived) })
	r.idle = max(r.idle, oldest.arrived)
	if longest := r.patience.Longest(); wake > r.idle+longest {
		return fmt.Sprintf("nothing runs since %v, and the core holds what waits until %v, for longer than %v", r.idle, wake, longest)
	}
	return ""
}

// triton restates the rule of [batching.Triton], from the largest batch downwards.
func triton(p batching.Triton, now batching.Time, l line, closing bool) (n int, at batching.Time) {
	preferred := p.Preferred
	if len(preferred) == 0 {
		preferred = []int{p.MaxRows}
	}
	largest := preferred[len(preferred)-1]
	rows := func(n int) (sum int) {
		for _, q := range l.requests[:n] {
			sum += q.item.Rows
		}
		return sum
	}
	all := len(l.requests)
	for all > 1 && rows(all) > p.MaxRows {
		all--
	}
	oldest := batching.Never
	for _, q := range l.requests[:all] {
		oldest = min(oldest, q.arrived)
	}
	if p.MaxDelay > 0 && now >= oldest+p.MaxDelay {
		return all, 0
	}
	for n = all; n > 0; n-- {
		if slices.Contains(preferred, rows(n)) {
			return n, 0
		}
	}
	// No preferred size can be formed. If the line is longer than the largest of them, none
	// ever can, and the requests below that run.
	for n = all; n > 1 && rows(n) > largest; n-- {
	}
	if n < all {
		return n, 0
	}
	closed := all < len(l.requests) || l.cut
	if closed || closing || rows(all) >= largest || p.MaxDelay == 0 {
		return all, 0
	}
	return 0, oldest + p.MaxDelay
}
