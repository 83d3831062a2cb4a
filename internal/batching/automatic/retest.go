package automatic

import "github.com/shoal-serving/shoal/internal/batching"

const (
	retestFirst = 16   // batches until the first retest
	retestDrift = 128  // the same after a change of speed: the form of the curve has probably not changed
	retestMax   = 1024 // upper limit; the number doubles while retests only confirm the curve
	retestGain  = 0.9  // a retest that takes less than this share of the expected time proves the curve wrong
)

// A retest schedules runs of the largest batch size even though the curve says that a
// smaller one is better. Without retests, a size that the curve excludes would never be
// measured again, so a few slow batches, or a guess after a change of speed, would
// exclude it for good.
type retest struct {
	next uint64 // the batch at which the next retest is due
	wait uint64 // batches between the last retest and the next
}

// retestItems returns the number of requests of the largest batch if a retest is due, or
// else 0.
func (p *Policy) retestItems(line batching.Line) int {
	if p.ledger.batch < p.retest.next || !p.curve.known() || len(p.opt.Preferred) > 0 {
		return 0
	}
	items, rows, _ := line.Fit(min(p.sizes.max, maxGrowth*p.curve.largest))
	if p.curve.calibrated(rows) {
		return 0
	}
	return items
}

// started schedules the retest after the one that starts at the given batch.
func (r *retest) started(batch uint64) {
	r.wait = max(retestFirst, min(2*r.wait, retestMax))
	r.next = batch + r.wait
}

// restart schedules a retest soon, because the last one proved the curve wrong.
func (r *retest) restart(batch uint64) { *r = retest{next: batch + retestFirst} }

// drifted schedules a retest after a change of speed. It does not postpone a retest that
// is due earlier, so that a speed that changes all the time cannot prevent retests.
func (r *retest) drifted(batch uint64) {
	if r.next <= batch || r.next > batch+retestDrift {
		r.next = batch + retestDrift
	}
	r.wait = retestDrift / 2
}
