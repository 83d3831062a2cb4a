package hunt

import (
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/device"
)

// FreshSeeds is the first seed that must not be used to tune the policy.
const FreshSeeds = 1 << 37

// A Run is one random run.
type Run struct {
	Seed      uint64
	MaxRows   int
	Instances int
	Slowdown  []float64 // of parallel batches
	Shapes    []Shape
	Rows      []int // of the requests, by chance
	Think     [2]time.Duration
	Noise     device.Noise

	Levels      []Level         // in ascending order; the first begins at 0
	Speed       []device.Change // slow moments and stalls of the device
	Calibration []Calibration   // in ascending order
	End         time.Duration
}

// A Shape is one shape of requests.
type Shape struct {
	Elements int64
	Curve    device.Curve
}

// A Level is the traffic from a moment on.
type Level struct {
	At      time.Duration
	Clients int
	Shapes  []int // indices of the shapes that requests have, by chance
}

// A Calibration is a profile that the policy is given at a moment.
type Calibration struct {
	At      time.Duration
	Replace bool // by a change of shape: [batching.Tunable.Recalibrated]
	Profile batching.Profile
}

const ms = time.Millisecond

// A draw makes the random choices of one run.
type draw struct{ *rand.Rand }

func (d draw) chance(p float64) bool { return d.Float64() < p }

// between returns a number between two bounds. All orders of magnitude are equally likely.
func (d draw) between(low, high float64) float64 { return low * math.Pow(high/low, d.Float64()) }

func (d draw) count(low, high int) int {
	return min(high, int(d.between(float64(low), float64(high)+0.999)))
}

func (d draw) duration(low, high time.Duration) time.Duration {
	return time.Duration(d.between(float64(low), float64(high)))
}

// Draw returns the run of a seed.
func Draw(seed uint64) *Run {
	d := draw{rand.New(rand.NewPCG(seed, 0x5ea))}
	r := &Run{Seed: seed, MaxRows: d.count(2, 64), Instances: 1}
	if d.chance(0.4) {
		r.Instances = 2 + d.IntN(3)
		r.Slowdown = d.slowdown(r.Instances)
	}
	r.Rows = []int{1}
	if d.chance(0.6) {
		r.Rows[0] = d.count(1, min(16, r.MaxRows))
		for d.chance(0.4) {
			r.Rows = append(r.Rows, d.count(1, min(16, r.MaxRows)))
		}
	}
	d.shapes(r)
	one := r.Shapes[0].Curve.Takes(1)
	shortest := d.duration(one/50, 3*one)
	r.Think = [2]time.Duration{shortest, d.duration(shortest, 3*shortest)}
	if d.chance(0.7) {
		r.Noise = device.Noise{Spread: d.between(0.005, 0.1)}
	}
	if d.chance(0.3) {
		r.Noise.Outliers, r.Noise.Times = d.between(0.0002, 0.002), d.between(1.5, 8)
	}
	d.levels(r)
	d.disturb(r)
	d.calibrate(r)
	return r
}

// slowdown returns that of a device on which batches run in parallel, one after the other,
// or something in between.
func (d draw) slowdown(instances int) []float64 {
	share := []float64{0, 1, d.Float64()}[d.IntN(3)]
	all := []float64{1}
	for n := 1; n < instances; n++ {
		all = append(all, 1+share*float64(n))
	}
	return all
}

// shapes draws the curve, and the shapes where a model has variable dimensions.
func (d draw) shapes(r *Run) {
	c := device.Curve{Fixed: d.duration(ms/3, 10*ms)}
	c.PerRow = time.Duration(float64(c.Fixed) * d.between(0.003, 1))
	switch {
	case d.chance(0.15):
		c.Square = time.Duration(float64(c.PerRow) * d.between(0.002, 0.2))
	case d.chance(0.1):
		c.Step = 1 << (1 + d.IntN(4))
	}
	r.Shapes = []Shape{{Curve: c}}
	if !d.chance(0.3) {
		return
	}
	byElements := d.chance(0.7) // otherwise only the number of rows matters
	r.Shapes = nil
	for range 2 + d.IntN(5) {
		s := Shape{Elements: int64(d.count(1, 512)), Curve: c}
		if byElements {
			s.Curve.PerRow = max(1, time.Duration(float64(c.PerRow)*float64(s.Elements)/32))
		}
		r.Shapes = append(r.Shapes, s)
	}
}

// levels draws how the traffic changes.
func (d draw) levels(r *Run) {
	at := time.Duration(0)
	mixed := d.chance(0.5)
	for range 1 + d.IntN(4) {
		l := Level{At: at, Clients: d.count(1, 48), Shapes: []int{d.IntN(len(r.Shapes))}}
		for i := range r.Shapes {
			if mixed && i != l.Shapes[0] {
				l.Shapes = append(l.Shapes, i)
			}
		}
		r.Levels = append(r.Levels, l)
		rows := min(r.MaxRows, max(1, l.Clients*r.Rows[0]))
		batch := r.Shapes[l.Shapes[0]].Curve.Takes(rows) + r.Think[0]/2
		at += time.Duration(d.between(250, 900) * float64(batch))
	}
	// The last level goes on, so that what the others left behind can be seen.
	last := r.Levels[len(r.Levels)-1]
	r.End = at + (at-last.At)/2
}

// disturb draws slow moments and stalls. Each begins after the one before has ended, and
// all end before the last third of the run. They do not count as time of the run, so that
// it goes on for as long as it would without.
func (d draw) disturb(r *Run) {
	if d.chance(0.15) {
		return
	}
	last := r.End * 2 / 3
	at := time.Duration(d.Float64() * float64(last) / 2)
	for range 1 + d.IntN(8) {
		if at >= last {
			break
		}
		times, lasts := d.between(1.2, 15), d.duration(5*ms, 500*ms)
		if d.chance(0.2) {
			times, lasts = 1e6, d.duration(5*ms, 5*time.Second) // as with SIGSTOP
		}
		r.Speed = append(r.Speed, device.Change{At: at, Times: times}, device.Change{At: at + lasts, Times: 1})
		r.shift(at, lasts)
		last += lasts
		at += lasts + time.Duration(d.between(0.001, 0.5)*float64(r.End))
	}
}

// shift delays all that follows a moment.
func (r *Run) shift(at, by time.Duration) {
	for i := range r.Levels {
		if r.Levels[i].At > at {
			r.Levels[i].At += by
		}
	}
	r.End += by
}

// calibrate draws when calibration has measured which sizes, and how wrong it is. It
// measures one size after the other, and is interrupted by traffic.
func (d draw) calibrate(r *Run) {
	if d.chance(0.3) {
		return
	}
	var times []time.Duration
	for range 1 + d.IntN(6) {
		times = append(times, time.Duration(d.Float64()*0.8*float64(r.End)))
	}
	if d.chance(0.5) {
		times[0] = 0
	}
	slices.Sort(times)
	shape := r.Shapes[r.Levels[0].Shapes[0]]
	p := batching.Profile{Elements: shape.Elements}
	wrong, factor := d.chance(0.4), 1.0
	rows := 0
	for _, at := range times {
		for n := d.count(1, 16); n > 0 && rows < r.MaxRows; n-- {
			rows = min(r.MaxRows, batching.NextSize(rows))
			if wrong && d.chance(0.3) {
				factor = 1
				if d.chance(0.6) {
					factor = d.between(1.1, 8)
				}
			}
			took := time.Duration(float64(shape.Curve.Takes(rows)) * factor * r.Noise.Factor(d.Rand))
			p.Sizes = append(p.Sizes, batching.Timing{Rows: rows, Median: took, P95: took + took/50, Runs: 5})
		}
		if rows == r.MaxRows && r.Instances > 1 && p.Slowdown == nil {
			for n := range r.Instances {
				s := r.Slowdown[n]
				if wrong && n > 0 && d.chance(0.3) {
					s *= d.between(1, 4)
				}
				p.Slowdown = append(p.Slowdown, s)
			}
		}
		r.Calibration = append(r.Calibration, Calibration{At: at, Profile: batching.Profile{
			Elements: p.Elements, Sizes: slices.Clone(p.Sizes), Slowdown: slices.Clone(p.Slowdown),
		}})
	}
	if len(r.Levels) > 1 && len(r.Shapes) > 1 && d.chance(0.5) {
		// The traffic has another shape now, with which calibration begins anew.
		l := r.Levels[1+d.IntN(len(r.Levels)-1)]
		r.Calibration = slices.DeleteFunc(r.Calibration, func(c Calibration) bool { return c.At >= l.At })
		next := r.Shapes[l.Shapes[0]]
		r.Calibration = append(r.Calibration, Calibration{At: l.At, Replace: true, Profile: batching.Profile{
			Elements: next.Elements, Sizes: []batching.Timing{{Rows: 1, Median: next.Curve.Takes(1), P95: next.Curve.Takes(1), Runs: 5}},
		}})
	}
}
