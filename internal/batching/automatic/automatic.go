package automatic

import (
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
)

// Options configure a policy.
type Options struct {
	// MaxRows is the maximum batch size in rows. Zero means 1.
	MaxRows int

	// Instances is the maximum number of batches that run in parallel. The policy decides
	// how many of them it uses. Zero means 1.
	Instances int

	// Exclusive means that exclusive batches, which the core marks in the action Run, have
	// more threads than others. Any other batch keeps the smaller number of threads until
	// it ends, even if it is the only one running by then.
	Exclusive bool

	// Preferred are the configured preferred batch sizes, in ascending order, if no queue
	// delay is configured. A batch of a preferred size runs immediately, and no batch is
	// larger than the largest preferred size.
	Preferred []int

	// Profile is the result of calibration.
	Profile batching.Profile

	// Objective is the configured latency objective of a request. It limits the batch size
	// so that a request may wait for one batch and run in the next. Zero means no limit.
	Objective time.Duration
}

// A Policy makes the batching decisions for one model. It is not safe for concurrent use:
// the scheduler's lock guards both the policy and the core that calls it.
//
// A Policy owns what it has learned from the events of the core: the curve of batch
// times, how much batches slow each other down, how requests arrive, and a ledger of what
// each rule has cost and saved. Only events change it. Decide reads it, and changes no more
// than which size class is selected, so the core may call Decide any number of times. Until
// something is measured the policy is greedy. Each rule that departs from greedy is compared
// with a greedy server in a replay, and is disabled when it costs more than it saves.
//
// Two approaches were tried and rejected. The first excluded a batch size for good after
// it was measured to be slow: that size never ran again, so one slow moment of the
// machine cost half of the throughput; hence [batching.Retest]. The second took the times
// of exclusive batches as the curve and applied a slowdown to all others: batches under
// load then had the size that suits all threads, and the p99 grew (ADR 14).
type Policy struct {
	opt     Options
	classes []*costs // by size class; models without variable dimensions have one
	*costs           // of the class of the request or batch at hand, selected by selectClass: p.curve, p.sizes, p.drift and p.retest are its fields
	unknown costs    // of classes without requests
	latest  *costs   // of the last request that arrived; before the first, of the last profile

	// Learned from events.
	contention  contention
	rate        rate
	shapes      shapes
	gaps        gaps
	returns     returns
	busyPeriod  busyPeriod
	unit        float64 // width of the smallest bin in nanoseconds; 0 until the curve is known
	cycle       cycle
	probed      int    // batches run in the current round of probing
	alone       int    // batches since the last calibration beside which no other ran
	aloneDue    bool   // batches run one at a time until minSamples have
	retry       retest // of more parallel batches than are in use
	audit       audit
	padding     padding
	small       smallBatches
	inUse       int    // number of parallel batches in use when the last batch ended
	pausedUntil uint64 // rules are paused until this batch, after a change of the model's speed

	// Current state.
	waiting     int // waiting requests
	waitingRows int // rows of the waiting requests
	running     int // running batches
	runs        []run
	lastChange  batching.Time // when the number of running batches last changed
	lastBegan   batching.Time // when the last batch began
	hold        hold

	// Outcomes.
	ledger ledger
	closed [batching.NumReasons]uint64 // number of batches by the reason why they were closed
}

// A hold is a batch that could run now but waits for further requests.
type hold struct {
	rule  rule // none if no batch is held
	since batching.Time
	until batching.Time
	full  int // number of waiting requests that ends the hold; 0 means that only until does
}

var _ batching.Watcher = (*Policy)(nil)

// New returns a policy that knows opt.Profile and has not seen any traffic.
func New(opt Options) *Policy {
	opt.MaxRows, opt.Instances = max(1, opt.MaxRows), max(1, opt.Instances)
	p := &Policy{opt: opt, unknown: costs{class: -1, curve: newCurve(opt.MaxRows)}, contention: newContention(opt.Instances), runs: make([]run, opt.Instances), audit: audit{next: auditMax, wait: auditMax}}
	p.unknown.sizes = sizesOf(&p.unknown.curve, &p.rate, 0)
	p.costs = &p.unknown
	p.Calibrated(opt.Profile)
	return p
}

// Calibrated implements [batching.Tunable].
func (p *Policy) Calibrated(profile batching.Profile) {
	p.ensureClass(profile.Elements)
	if p.rate.n == 0 {
		p.latest = p.costs
	}
	p.curve.calibrate(profile.Sizes)
	p.retest.restart(p.ledger.batch)
	p.retry.restart(p.ledger.batch)
	if p.ledger.batch > 0 || len(profile.Sizes) == 0 || disturbed(profile.Sizes) {
		p.audit.doubt(p.ledger.batch)
	}
	p.contention.calibrate(profile.Slowdown, p.opt.Instances)
	if p.ledger.batch > 0 {
		p.contention.retried = p.contention.samples // traffic has not confirmed them
	}
	p.alone, p.aloneDue = 0, false
	p.resize()
}

// disturbed reports whether a calibrated size took noticeably longer than a larger one.
func disturbed(sizes []batching.Timing) bool {
	slowest := time.Duration(0)
	for _, s := range sizes {
		if float64(s.Median) < retestGain*float64(slowest) {
			return true
		}
		slowest = max(slowest, s.Median)
	}
	return false
}

// Recalibrated implements [batching.Tunable]. It discards what the policy learned and
// decided for the old shape, but keeps track of waiting requests and running batches.
func (p *Policy) Recalibrated(profile batching.Profile) {
	p.ensureClass(profile.Elements)
	p.curve, p.contention = newCurve(p.opt.MaxRows), newContention(p.opt.Instances)
	p.drift = drift{count: p.drift.count, factor: p.drift.factor}
	p.gaps, p.returns, p.unit = gaps{}, returns{}, 0 // the width of bins depends on the curve
	p.busyPeriod, p.cycle, p.hold = busyPeriod{}, cycle{}, hold{}
	p.probed, p.pausedUntil = 0, 0
	p.ledger.restart()
	p.Calibrated(profile)
}

// Scaled implements [batching.Tunable].
func (p *Policy) Scaled(instances int) {
	if instances = max(1, instances); instances == p.opt.Instances {
		return
	}
	p.opt.Instances = instances
	p.retry.restart(p.ledger.batch)
	p.contention.choose(instances)
}

// resize recomputes the values that follow from the curve.
func (p *Policy) resize() {
	p.sizes = sizesOf(&p.curve, &p.rate, p.opt.Objective)
	if p.unit == 0 {
		p.unit = p.curve.expected(1) / unitsPerRow
	}
}
