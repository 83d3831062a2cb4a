// Package device models a compute device: how long a single batch takes, and how much
// parallel batches slow each other down. Time is an argument, so that the simulator uses
// it in virtual time and the simulated engine in real time.
package device

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// Time is the time since a start that the caller chose.
type Time = time.Duration

// Never is later than any other time.
const Never Time = math.MaxInt64

// A Curve is the duration of a single batch by its rows: a fixed time plus a time
// per row, or, if Table has points, a linear interpolation between them.
type Curve struct {
	Fixed  time.Duration
	PerRow time.Duration
	Square time.Duration // multiplied by the square of the rows
	Step   int           // the model pads the rows to a multiple of it; 0 means 1
	Table  []Point       // ascending; empty means Fixed, PerRow, Square and Step
}

// A Point is one measured size.
type Point struct {
	Rows  int
	Takes time.Duration
}

// Takes returns the duration of a batch of the given number of rows.
func (c Curve) Takes(rows int) time.Duration {
	if len(c.Table) == 0 {
		if c.Step > 1 {
			rows = (rows + c.Step - 1) / c.Step * c.Step
		}
		return c.Fixed + time.Duration(rows)*c.PerRow + time.Duration(rows*rows)*c.Square
	}
	i, found := slices.BinarySearchFunc(c.Table, rows, func(p Point, rows int) int { return cmp.Compare(p.Rows, rows) })
	switch {
	case found:
		return c.Table[i].Takes
	case i == 0:
		return c.Table[0].Takes // no batch is faster than the smallest measured size
	case len(c.Table) == 1:
		return c.Table[0].Takes * time.Duration(rows) / time.Duration(c.Table[0].Rows)
	case i == len(c.Table):
		i-- // extrapolate the last segment
	}
	a, b := c.Table[i-1], c.Table[i]
	return a.Takes + (b.Takes-a.Takes)*time.Duration(rows-a.Rows)/time.Duration(b.Rows-a.Rows)
}

// Noise is the variation between runs of the same batch.
type Noise struct {
	Spread   float64 // standard deviation of the logarithm of the time: 0.03 is about 3 %
	Outliers float64 // share of runs that take much longer
	Times    float64 // how many times longer outliers take
}

// Factor draws the factor for the time of one run. Without outliers its mean is 1.
func (n Noise) Factor(chance *rand.Rand) float64 {
	factor := 1.0
	if n.Spread > 0 {
		factor = math.Exp(n.Spread*chance.NormFloat64() - n.Spread*n.Spread/2)
	}
	if n.Outliers > 0 && chance.Float64() < n.Outliers {
		factor *= n.Times
	}
	return factor
}

// A Change is a change of speed: starting at At, batches take Times as long as at the
// beginning.
type Change struct {
	At    Time
	Times float64
}

// TimesAt returns the factor for the time of a batch that begins now. The changes must be
// sorted by time.
func TimesAt(changes []Change, now Time) float64 {
	times := 1.0
	for _, c := range changes {
		if c.At > now {
			break
		}
		times = c.Times
	}
	return times
}

// A Device runs batches in parallel, each slower the more there are. It is not safe for
// concurrent use.
type Device struct {
	// Slowdown[n-1] is how many times longer a batch takes while n batches run. The last
	// value applies to larger numbers; empty means that batches do not slow each other
	// down.
	Slowdown []float64

	// Speed are the changes of the device's own speed, sorted by time. Unlike a change that
	// applies to batches that begin after it, it also slows down those that run.
	Speed []Change

	now  Time
	jobs []job // in the order of their start
}

type job struct {
	id   int
	left float64 // remaining work, in nanoseconds without parallel batches
}

// Start begins a batch that would take the given time without parallel batches. The id
// must not be in use.
func (d *Device) Start(now Time, id int, solo time.Duration) {
	d.advance(now)
	d.jobs = append(d.jobs, job{id, float64(solo)})
}

// Next returns the batch that ends next, and when, unless another one starts or stops
// before. It returns Never if no batch runs.
func (d *Device) Next() (id int, at Time) {
	at = Never
	for _, j := range d.jobs {
		if t := d.endOf(j); t < at {
			id, at = j.id, t
		}
	}
	return id, at
}

// EndOf returns when a batch ends, unless another one starts or stops before.
func (d *Device) EndOf(id int) Time {
	i := slices.IndexFunc(d.jobs, func(j job) bool { return j.id == id })
	return d.endOf(d.jobs[i])
}

func (d *Device) endOf(j job) Time {
	left, at := j.left*d.slowdown(), d.now
	for i := range d.Speed {
		c := d.Speed[i]
		if c.At <= at {
			continue
		}
		times := TimesAt(d.Speed[:i], at)
		if did := float64(c.At-at) / times; did < left {
			left, at = left-did, c.At
			continue
		}
		return at + time.Duration(math.Ceil(left*times))
	}
	return at + time.Duration(math.Ceil(left*TimesAt(d.Speed, at)))
}

// End removes a batch that has ended or was stopped. now may be later than the actual end
// if no other method was called since.
func (d *Device) End(now Time, id int) {
	d.advance(now)
	d.jobs = slices.DeleteFunc(d.jobs, func(j job) bool { return j.id == id })
}

func (d *Device) advance(now Time) {
	now = max(now, d.now)
	did := 0.0
	for _, c := range d.Speed {
		if c.At > d.now && c.At < now {
			did += float64(c.At-d.now) / TimesAt(d.Speed, d.now) / d.slowdown()
			d.now = c.At
		}
	}
	did += float64(now-d.now) / TimesAt(d.Speed, d.now) / d.slowdown()
	for i := range d.jobs {
		d.jobs[i].left = max(0, d.jobs[i].left-did)
	}
	d.now = now
}

func (d *Device) slowdown() float64 {
	if len(d.Slowdown) == 0 || len(d.jobs) == 0 {
		return 1
	}
	return d.Slowdown[min(len(d.jobs), len(d.Slowdown))-1]
}
