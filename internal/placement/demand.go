package placement

import (
	"math"
	"sort"
	"time"
)

const (
	utilization   = 0.6 // share of the time for which an active copy may be busy
	batchDivisor  = 4   // a batch takes at most this part of the objective
	raiseReports  = 2   // consecutive reports that must ask for more copies
	lowerAfter    = 10 * time.Minute
	hysteresis    = 1.2 // the number of copies is lowered only if it would suffice for this multiple of the rate
	minimumActive = 2   // of a model in use
	mostActive    = 1e4 // whatever a node reports
	unmeasured    = time.Millisecond
)

// PlannedBatch returns the batch size in rows that active copies are planned for: the
// efficient one, but at most what takes a quarter of the objective.
func (m *Model) PlannedBatch() int {
	most := max(1, m.Efficient)
	if m.Objective == 0 {
		return most
	}
	tooLong := sort.Search(most-1, func(i int) bool { return m.Curve.Takes(i+2) > m.Objective/batchDivisor })
	return 1 + tooLong
}

// takes returns the duration of a batch; a small one if the model was not measured.
func (m *Model) takes(rows int) time.Duration {
	if d := m.Curve.Takes(rows); d > 0 {
		return d
	}
	return unmeasured
}

// copiesFor returns how many active copies the rate needs, as a fraction.
func (m *Model) copiesFor(rate float64) float64 {
	b := m.PlannedBatch()
	return min(rate*m.takes(b).Seconds()/float64(b)/utilization, mostActive)
}

// deviceTime returns the device time that one of the given number of active copies is
// expected to use, in nanoseconds per second. Batches have the planned size at the highest
// rate that is planned for a copy, and are smaller at lower ones. It is an integer, so that
// sums do not depend on the order of the summands.
func (m *Model) deviceTime(active int) int64 {
	if active == 0 || m.Rate == 0 {
		return 0
	}
	rate, planned := m.Rate/float64(active), m.PlannedBatch()
	batch := min(1+rate*m.takes(planned).Seconds()/utilization, float64(planned))
	low := int(batch)
	takes := float64(m.takes(low)) + (batch-float64(low))*float64(m.takes(low+1)-m.takes(low))
	return int64(rate * takes / batch)
}

// need returns the numbers of copies of a model, given its previous placement, which is nil
// for a new one.
func (m *Model) need(previous *Placement, zones int) Placement {
	p := Placement{Model: m.Name}
	if previous != nil {
		p = *previous
		p.Copies, p.Home, p.OverQuota = nil, "", false
	}
	minimum := m.minimum()
	copies := m.copiesFor(m.Rate)
	raised := max(minimum, int(math.Ceil(copies)))
	lowered := max(minimum, int(math.Ceil(copies*hysteresis)))
	switch {
	case previous == nil:
		p.Active, p.Counted = raised, m.Reported
	case m.Reported != p.Counted:
		p.Counted = m.Reported
		p.count(raised, lowered, m.Reported)
	}
	p.Active = max(p.Active, min(1, minimum), m.Copies) // the copy that was loaded on demand stays
	p.InUse = m.Rate > 0 || m.Copies > 0 || previous != nil && previous.InUse && p.Active >= minimumActive
	p.Spare = 0
	if p.InUse {
		p.Spare = spares(p.Active, zones)
	}
	return p
}

// minimum returns how many active copies the model has at any rate.
func (m *Model) minimum() int {
	switch {
	case m.Rate > 0:
		return max(minimumActive, m.Copies)
	case m.Asked:
		return max(1, m.Copies)
	}
	return m.Copies
}

// count considers one report, which asks for at least raised and at most lowered active copies.
func (p *Placement) count(raised, lowered int, reported Time) {
	if raised <= p.Active {
		p.Raises = 0
	} else if p.Raises++; p.Raises >= raiseReports {
		p.Active, p.Raises = raised, 0
	}
	switch {
	case lowered >= p.Active:
		p.LowSince, p.LowPeak = 0, 0
	case p.LowPeak == 0 && p.LowSince == 0:
		p.LowSince, p.LowPeak = reported, lowered
	default:
		p.LowPeak = max(p.LowPeak, lowered)
		if reported-p.LowSince >= lowerAfter {
			p.Active, p.LowSince, p.LowPeak = p.LowPeak, 0, 0
		}
	}
}

// spares returns how many copies are needed beside the active ones, so that the loss of a
// zone leaves as many as are active.
func spares(active, zones int) int {
	if zones < 2 {
		return 0
	}
	total := active
	for total-(total+zones-1)/zones < active {
		total++
	}
	return total - active
}
