package automatic

import (
	"math"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
)

// Options are what a policy may do, and what is known from the start.
type Options struct {
	// MaxRows is the most rows that a batch may have. Zero means 1.
	MaxRows int

	// Instances is the most batches that may run at once; the policy says how
	// many do. Zero means 1.
	Instances int

	// Exclusive says that exclusive batches, which the core marks in the action Run, have
	// more threads than others. All others have fewer until they end, also when they are
	// the only one by then.
	Exclusive bool

	// Preferred are sizes that leave at once, ascending, where the user set them but
	// no delay. No other batch is larger than the largest of them.
	Preferred []int

	// Profile is what was measured of the model so far.
	Profile batching.Profile

	// Objective is how long a request may take in all, where the user set that.
	// Batches are then no larger than leaves room for waiting. Zero means any time.
	Objective time.Duration
}

// A Policy decides for one model. Like the core that asks it, it is not safe for
// concurrent use: the scheduler's lock guards both, and the policy has no lock, clock or
// goroutine of its own.
//
// It owns what it has learned from events of the core: the curve of batch times, how
// much batches slow each other down, how requests arrive, and a ledger of what each of
// its rules has cost and saved. Events change it, and Decide only reads it, so that the
// core may ask as often as it likes. Until something is measured the policy is greedy,
// and each rule that departs from that is compared with a greedy server in a replay,
// and switched off when it costs more than it saves.
//
// Two things were tried and rejected. Ruling out for good a size that was measured to be
// slow: it never ran again, and one slow moment of the machine cost half of the
// throughput; hence [batching.Retest]. And times of exclusive batches as the curve, with
// a slowdown for all others: batches under load were as large as suits all threads, and
// the p99 grew (ADR 14).
type Policy struct {
	opt   Options
	sizes sizes

	// What is learned.
	curve       curve
	contention  contention
	rate        rate
	gaps        gaps
	returns     returns
	busyPeriod  busyPeriod
	drift       drift
	retest      retest
	unit        float64 // nanoseconds of the smallest bin; 0 while the model is not known
	cycle       cycle
	probed      int    // batches while it was tried how many at once are worth it
	frozenUntil uint64 // the batch until which rules rest, since the model's speed has changed

	// What is going on.
	waiting    int // requests
	rows       int // that they have
	running    int // batches
	runs       []run
	lastChange batching.Time // when the number of running batches last did
	lastBegan  batching.Time // the last batch
	hold       hold

	// What came of it.
	ledger ledger
	closed [batching.Reasons]uint64
}

// A hold is a batch that could run and does not.
type hold struct {
	rule  rule // none if nothing is held
	since batching.Time
	until batching.Time
	full  int // requests that are waited for to be there; 0 if no number is
}

var _ batching.Watcher = (*Policy)(nil)

// New returns a policy that knows what the options tell, and nothing of the
// traffic.
func New(opt Options) *Policy {
	opt.MaxRows, opt.Instances = max(1, opt.MaxRows), max(1, opt.Instances)
	p := &Policy{opt: opt, curve: newCurve(opt.MaxRows), contention: newContention(opt.Instances), runs: make([]run, opt.Instances)}
	p.Calibrated(opt.Profile)
	return p
}

// Calibrated implements [batching.Tunable].
func (p *Policy) Calibrated(profile batching.Profile) {
	p.curve.calibrate(profile.Sizes)
	p.contention.calibrate(profile.Slowdown, p.opt.Instances)
	p.resize()
}

// Recalibrated implements [batching.Tunable]. What the policy learned about the old
// shape, and what it decided from it, is forgotten; what is going on is not.
func (p *Policy) Recalibrated(profile batching.Profile) {
	p.curve, p.contention = newCurve(p.opt.MaxRows), newContention(p.opt.Instances)
	p.drift = drift{count: p.drift.count, factor: p.drift.factor}
	p.gaps, p.returns, p.unit = gaps{}, returns{}, 0 // bins are parts of what a row takes
	p.busyPeriod, p.cycle, p.hold = busyPeriod{}, cycle{}, hold{}
	p.probed, p.frozenUntil = 0, 0
	p.ledger.restart()
	p.Calibrated(profile)
}

// resize settles what follows from the curve.
func (p *Policy) resize() {
	p.sizes = sizesOf(&p.curve, p.opt.Objective)
	if p.unit == 0 {
		p.unit = p.curve.expected(1) / unitsPerRow
	}
}

// Takes returns how long a batch of so many rows is expected to take alone; 0 if
// nothing is known.
func (p *Policy) Takes(rows int) time.Duration { return time.Duration(p.curve.expected(rows)) }

// Longest returns for how long requests are held at most while nothing runs.
func (p *Policy) Longest() time.Duration {
	rows := p.curve.max()
	return time.Duration(math.Ceil(max(p.curve.expected(rows), p.curve.smooth(rows))))
}
