package automatic

import "github.com/shoal-serving/shoal/internal/batching"

const (
	retestFirst = 16   // batches after which a larger size is tried again
	retestDrift = 128  // the same, when the speed has changed: what was known has likely kept its form
	retestMax   = 1024 // batches that this doubles to while it only confirms what was known
	retestGain  = 0.9  // of what is believed; a batch that takes less shows that the belief is wrong
)

// A retest says when the largest batch is run again although a smaller one is believed
// to be better. A size that is ruled out is never measured, so that some slow batches, or
// a guess after the speed has changed, would rule it out for good.
type retest struct {
	next uint64 // the batch from which on it is due
	wait uint64 // batches between the last one and that
}

// due returns how many requests make the largest batch if it is time to try it; 0 if
// not.
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

// began notes that a larger batch is being tried.
func (r *retest) started(batch uint64) {
	r.wait = max(retestFirst, min(2*r.wait, retestMax))
	r.next = batch + r.wait
}

// restart has the next one follow soon: the last has shown that the belief was wrong.
func (r *retest) restart(batch uint64) { *r = retest{next: batch + retestFirst} }

// drifted has the next one follow after some batches, unless it is due before: where the
// speed changes again and again, it must not be put off each time.
func (r *retest) drifted(batch uint64) {
	if r.next <= batch || r.next > batch+retestDrift {
		r.next = batch + retestDrift
	}
	r.wait = retestDrift / 2
}
