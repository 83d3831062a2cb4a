package automatic

import (
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

	// Profile is what was measured of the model so far.
	Profile Profile

	// Objective is how long a request may take in all, where the user set that.
	// Batches are then no larger than leaves room for waiting. Zero means any time.
	Objective time.Duration
}

// A Policy decides for one model. Like the core that asks it, it is not safe for
// concurrent use.
type Policy struct {
	opt   Options
	curve curve

	waiting int // requests
	rows    int // that they have
	running int // batches

	sizes sizes
	runs  []run // by instance
}

var _ batching.Watcher = (*Policy)(nil)

// New returns a policy that knows what the options tell, and nothing of the
// traffic.
func New(opt Options) *Policy {
	opt.MaxRows, opt.Instances = max(1, opt.MaxRows), max(1, opt.Instances)
	p := &Policy{opt: opt, curve: newCurve(opt.MaxRows)}
	p.Calibrated(opt.Profile)
	return p
}

// Calibrated takes in what was measured meanwhile.
func (p *Policy) Calibrated(profile Profile) {
	p.opt.Profile = profile
	p.curve.pin(profile.Sizes)
	p.sizes = sizesOf(&p.curve, p.opt.Objective)
}

// Takes returns how long a batch of so many rows is expected to take alone; 0 if
// nothing is known.
func (p *Policy) Takes(rows int) time.Duration { return time.Duration(p.curve.at(rows)) }

// Slow returns what 19 of 20 batches of so many rows keep to; 0 if nothing is
// known.
func (p *Policy) Slow(rows int) time.Duration { return time.Duration(p.curve.slowAt(rows)) }
