package automatic

import "github.com/shoal-serving/shoal/internal/batching"

const (
	retestFirst = 16   // batches until the first retest
	retestMax   = 128  // upper limit; the number doubles while retests only confirm what is known
	retestGain  = 0.9  // a retest that takes less than this share of the expected time is fast
	retestCost  = 200  // batches between retests for each batch whose time a retest costs: they cost at most 1/200 of the time
	retestRare  = 4096 // upper limit of that
)

// A retest schedules runs of a larger batch size than the curve says is best, or of a smaller one
// if requests would be held for the best. Without retests, a size that the curve excludes would
// never be measured again, so a few slow batches, a disturbed calibration, or a guess after a
// change of speed, would exclude it for good.
type retest struct {
	next uint64 // the batch at which the next retest is due
	wait uint64 // batches between the last retest and the next
	fast bool   // the last one contradicted what was measured; one of thousands does by chance, so the next one decides
}

// retestDue reports whether the next batch should have another size than is best.
func (p *Policy) retestDue() bool {
	return p.ledger.batch >= p.retest.next && p.curve.known() && len(p.opt.Preferred) == 0
}

// retestItems returns the number of requests of a batch that is up to twice as large as
// the one of take requests, if a retest is due, or else 0. If twice the size is faster, the
// next retest follows at once, so that few batches pass until only sizes are excluded that
// should be.
func (p *Policy) retestItems(s *situation, line batching.Line, take int) int {
	if !p.retestDue() {
		return 0
	}
	rows := s.rows
	if take < s.items {
		it := line.First()
		for rows = it.Rows; take > 1; take-- {
			it = line.After(it)
			rows += it.Rows
		}
	}
	largest := min(p.sizes.max, maxGrowth*p.curve.largest)
	if rows >= largest {
		return 0
	}
	items, _, _ := line.Fit(min(2*rows, largest))
	return items
}

// confirmed schedules the retest after one that ended at the given batch and took as long as
// expected. It cost the time of the given number of batches.
func (r *retest) confirmed(batch uint64, cost float64) {
	r.fast = false
	r.wait = max(retestFirst, min(2*r.wait, retestMax))
	if r.wait == retestMax {
		r.wait = uint64(min(max(retestMax, retestCost*cost), retestRare))
	}
	r.next = batch + r.wait
}

// restart schedules a retest soon, because what is known has changed.
func (r *retest) restart(batch uint64) {
	r.fast = false
	if r.next > batch+retestFirst {
		*r = retest{next: batch + retestFirst}
	}
}
