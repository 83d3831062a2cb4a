package automatic

import (
	"cmp"

	"github.com/shoal-serving/shoal/internal/batching"
)

// minPadGain is the factor in efficiency at which requests of other shapes join a batch. A
// smaller gain may be noise of the curves.
const minPadGain = 1.03

var _ batching.Padder = (*Policy)(nil)

// Pad implements [batching.Padder]. Requests of other shapes save batches, and their padding
// is computed in vain. Both are weighed by the efficiency of the batch: the time that its
// rows need at least, without padding and in batches of the best size, by the time that the
// batch takes. Pad chooses the number of requests with the highest efficiency.
//
// Comparing with a batch for each joining request would be wrong: requests that do not join
// this batch can join each other in the next, so that they do not need a batch each.
//
// The efficiency is an expectation, and mostly of sizes that never ran. So padding is only
// used where padded batches have been faster (see padTrial); elsewhere, it is tried.
func (p *Policy) Pad(_ batching.Time, items []*batching.Item, host int) (take int, reason batching.Reason) {
	if len(p.opt.Preferred) > 0 || p.audit.greedily(p.ledger.batch) {
		return host, batching.Padded
	}
	var b padded
	for _, it := range items[:host] {
		if !b.add(p, it) {
			return host, batching.Padded
		}
	}
	maxRows, hostRows := p.maxPadded(b.rows), b.rows
	best := minPadGain * b.efficiency(p)
	bestTrial, trial := 0.0, 0
	take = host
	var first, chosen paddingTimes
	for i, it := range items[host:] {
		if !b.add(p, it) || b.rows > maxRows {
			break
		}
		times := paddingTimes{1, b.separate + b.last, b.time(p)}
		if i == 0 {
			first = times
		}
		e := b.efficiency(p)
		if e > best && p.padTrial.pays && b.rows <= p.padTrial.maxRows(hostRows) {
			best, take, chosen = e, host+i+1, times
		}
		if e > bestTrial && p.padTrial.due(p.ledger.batch) && b.rows <= 2*hostRows {
			bestTrial, trial = e, host+i+1
		}
	}
	if take > host {
		p.padding.used.add(chosen)
		return take, batching.Padded
	}
	p.padding.rejected.add(first)
	if trial > 0 {
		return trial, batching.Retest
	}
	return host, batching.Padded
}

const (
	trialBatches = 3    // padded batches that must have been faster before padding is used
	trialGain    = 1.1  // factor by which they must have been faster
	trialProven  = 64   // padded batches after which padding that stops to pay is tried again soon
	trialDecay   = 0.85 // factor of the sums with each padded batch
	maxTrialLoss = 2    // limit of the time of one batch, as a multiple of that without padding: it may be an outlier
)

// A padTrial measures for a size class whether padded batches are faster than batches
// without padding. The times of the curve cannot say so: sizes that only padded batches
// reach are extrapolated, and where requests are padded, few batches without padding run.
// It counts the time of padded batches, and the time of their rows in batches of the size
// that ran while nothing was padded.
type padTrial struct {
	pays    bool
	batches int // padded batches since it last began to pay, or to be tried
	largest int // rows of the largest of them
	// Weighted sums over the last padded batches.
	separate, together float64

	aloneRows float64 // average size of a batch without padding, while padding did not pay
	next      retest  // trial, while it does not pay
}

// due reports whether a padded batch should run although it is not known to pay.
func (t *padTrial) due(batch uint64) bool { return !t.pays && batch >= t.next.next }

// maxRows returns the limit of a padded batch that the given number of rows of one shape is
// the beginning of. It grows with what was measured.
func (t *padTrial) maxRows(host int) int { return 2 * max(host, t.largest) }

// recordAlone adds a batch without padding.
func (t *padTrial) recordAlone(rows int) {
	if t.pays {
		return // the requests of one shape that wait are those that no padded batch has taken
	}
	if t.aloneRows == 0 {
		t.aloneRows = float64(rows)
	}
	t.aloneRows += (float64(rows) - t.aloneRows) / 16
}

// record adds a padded batch, which would have taken the given times with and without
// padding. The unit is the time of a usual batch.
func (t *padTrial) record(batch uint64, rows int, together, separate, unit float64) {
	t.batches++
	t.largest = max(t.largest, rows)
	together = min(together, maxTrialLoss*separate)
	t.separate = t.separate*trialDecay + separate
	t.together = t.together*trialDecay + together
	need := trialGain
	if t.pays {
		need = minPadGain
	}
	if t.batches >= trialProven {
		t.next.wait = 0
	}
	switch {
	case t.separate < need*t.together: // it does not pay
		t.next.confirmed(batch, max(0, t.together-t.separate)/unit)
		*t = padTrial{aloneRows: t.aloneRows, next: t.next}
	case t.batches >= trialBatches && !t.pays:
		t.pays = true
	default:
		t.next.next = batch
	}
}

// padding counts the decisions of Pad, for Explain.
type padding struct {
	used     paddingTimes // batches that requests of other shapes have joined
	rejected paddingTimes // batches that the most similar of them could have joined
}

// paddingTimes are the expected times of a number of batches, in nanoseconds.
type paddingTimes struct {
	batches            uint64
	separate, together float64 // with a batch for each shape, and in one batch with padding
}

func (t *paddingTimes) add(more paddingTimes) {
	t.batches += more.batches
	t.separate += more.separate
	t.together += more.together
}

// padded is a batch of requests that may have different shapes.
type padded struct {
	rows     int
	elements int64   // of a row: the largest of all
	useful   float64 // nanoseconds that the rows need at least

	shape       uint64 // of the last request
	rowsOfShape int
	last        float64 // time of a batch of the requests of that shape
	separate    float64 // time of a batch for each of the shapes before it
}

// add adds a request and selects the size class of the batch. It returns false if the time
// of the batch is unknown.
func (b *padded) add(p *Policy, it *batching.Item) bool {
	p.selectClass(it.Elements)
	if !p.curve.known() {
		return false
	}
	if it.Shape != b.shape {
		b.separate, b.last, b.shape, b.rowsOfShape = b.separate+b.last, 0, it.Shape, 0
	}
	b.rowsOfShape += it.Rows
	scale := p.length.scale(it.Elements)
	b.last = scale * p.curve.smooth(b.rowsOfShape)
	b.useful += float64(it.Rows) * scale * p.bestRowTime()
	b.rows += it.Rows
	if b.elements = max(b.elements, it.Elements); b.elements > it.Elements {
		p.selectClass(b.elements)
	}
	return true
}

// efficiency returns the share of the batch's time that is not spent in vain. The batch's
// size class must be selected.
func (b *padded) efficiency(p *Policy) float64 { return b.useful / b.time(p) }

// time returns the expected time of the batch. Its size class must be selected.
func (b *padded) time(p *Policy) float64 { return p.length.scale(b.elements) * p.curve.smooth(b.rows) }

// bestRowTime returns the time of a row in a batch of the best size, in nanoseconds. A size
// that is far above the largest measured one is not trusted.
func (p *Policy) bestRowTime() float64 {
	rows := min(p.sizes.peak, p.largestRows())
	return p.curve.smooth(rows) / float64(rows)
}

// largestRows returns the size of the largest batch that may run in the selected size class.
func (p *Policy) largestRows() int { return max(1, min(p.sizes.max, maxGrowth*p.curve.largest)) }

// startPadded records in r what the rows of its batch would take without padding, if it has
// several shapes. It selects the size class of the batch.
func (p *Policy) startPadded(r *run, items []*batching.Item) {
	alone := max(1, int(p.padTrial.aloneRows+0.5))
	for _, it := range items {
		p.selectClass(it.Elements)
		r.separate += float64(it.Rows) * p.length.scale(it.Elements) * p.curve.expected(alone) / float64(alone)
	}
	p.selectClass(r.elements)
	p.padTrial.next.next = p.ledger.batch + retestFirst // until this one has ended
}

// learnPadding records the duration of a batch whose requests may be padded.
func (p *Policy) learnPadding(r *run, took float64) {
	if r.separate == 0 {
		p.padTrial.recordAlone(r.rows)
		return
	}
	solo := cmp.Or(p.contention.soloTime(&r.timeBeside), took) // if unknown, the time is an upper limit
	p.padTrial.record(p.ledger.batch, r.rows, solo, r.separate, p.curve.smooth(p.sizes.peak))
}

// maxPadded returns the maximum number of rows of a padded batch, given those of the requests
// that others may join. If several instances can run batches, each gets a part.
func (p *Policy) maxPadded(rows int) int {
	slots := p.parallel(p.waitingRows) - p.running
	if slots <= 1 {
		return p.opt.MaxRows
	}
	return max(rows, (p.waitingRows+slots-1)/slots)
}
