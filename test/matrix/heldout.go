package matrix

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/shoal-serving/shoal/internal/device"
)

// heldOutSeed is a date. All other numbers here are drawn from it.
const heldOutSeed = 20261115

// HeldOut returns cells that were not used to choose the constants of the policy.
//
// They are ten models with eighteen kinds of traffic each. All parameters are random and
// rounded to two digits. Times are log-uniform.
//
//   - six models a + c·b on a serial device: a from 0.4 to 20 ms, c from 0.01 to
//     1.2 times a;
//   - one with a square: a from 1 to 10 ms, c from 0.02 to 0.2 times a, and c/5 to
//     c/50 for each row squared;
//   - one that pads to a multiple of 3 to 20 rows;
//   - one on two to four independent executors, with a from 1 to 12 ms and c from
//     0.02 to 0.2 times a;
//   - one on a device with a total speed of 1.15 to 1.7 for two parallel batches, and
//     of up to 0.3 more for three;
//   - the traffic of each: seven closed loops of 1 to 250 clients and think times from
//     0.1 to 20 ms, with a spread from 0 to 0.8; four Poisson processes with 0.08 to
//     0.93 of the capacity; two that switch randomly between rates, one of them between
//     on and off; bursts of 3 to 40; a ramp; a spike; a mix of closed and open loop; the
//     generated recording.
//
// Noise is 1 to 6 %, and one in 500 to 5,000 batches takes 2 to 5 times as long. Use these
// cells to judge a policy, and never to choose its constants: a cell that was used for
// that must move to [Tuned].
func HeldOut() []*Cell {
	d := draw{rand.New(rand.NewPCG(heldOutSeed, 1))}
	var cells []*Cell
	add := func(m Model, dev Device) {
		noise := device.Noise{Spread: d.uniform(0.01, 0.06), Outliers: 1 / d.logUniform(500, 5_000), Times: d.uniform(2, 5)}
		for _, t := range d.traffic() {
			cells = append(cells, &Cell{Model: m, Device: dev, Traffic: t, Noise: noise, Seed: heldOutSeed})
		}
	}
	for i := range 6 {
		a := d.logUniform(0.4, 20)
		add(line(fmt.Sprintf("line %d", i+1), a, round(a*d.logUniform(0.01, 1.2))), serial)
	}
	a := d.logUniform(1, 10)
	square := line("square", a, round(a*d.logUniform(0.02, 0.2)))
	square.Curve.Square = time.Duration(float64(square.Curve.PerRow) / d.logUniform(5, 50))
	add(square, serial)

	a = d.logUniform(1, 10)
	pads := line("pads", a, round(a*d.logUniform(0.02, 0.3)))
	pads.Curve.Step = d.integer(3, 20)
	add(pads, serial)

	a = d.logUniform(1, 12)
	several := Device{Name: "several"}
	for n := range d.integer(2, 4) {
		several.Speed = append(several.Speed, float64(n+1))
	}
	add(line("apart", a, round(a*d.logUniform(0.02, 0.2))), several)

	a = d.logUniform(1, 12)
	two := d.uniform(1.15, 1.7)
	add(line("shared", a, round(a*d.logUniform(0.02, 0.2))), Device{Name: "shared", Speed: []float64{1, two, two + d.uniform(0, 0.3)}})
	return cells
}

// line returns a model whose batches of b rows take a + c·b milliseconds.
func line(name string, a, c float64) Model {
	return Model{Name: fmt.Sprintf("%s %g+%gb", name, a, c), Curve: device.Curve{Fixed: millis(a), PerRow: millis(c)}}
}

func millis(n float64) time.Duration { return time.Duration(math.Round(n * float64(ms))) }

// round keeps two significant digits, so that names are readable.
func round(n float64) float64 {
	n, err := strconv.ParseFloat(strconv.FormatFloat(n, 'g', 2, 64), 64)
	if err != nil {
		panic(err) // FormatFloat wrote it
	}
	return n
}

// draw generates random parameters.
type draw struct{ *rand.Rand }

func (d draw) uniform(from, to float64) float64 { return round(from + (to-from)*d.Float64()) }

func (d draw) logUniform(from, to float64) float64 {
	return round(from * math.Exp(d.Float64()*math.Log(to/from)))
}

func (d draw) integer(from, to int) int { return from + d.IntN(to-from+1) }

func (d draw) time(from, to float64) time.Duration { return millis(d.logUniform(from, to)) }

func (d draw) traffic() []Traffic {
	var all []Traffic
	for range 7 {
		t := closed(int(d.logUniform(1, 250)), d.time(0.1, 20))
		t.Loads[0].Spread = d.uniform(0, 0.8)
		all = append(all, t)
	}
	for range 4 {
		all = append(all, poisson(d.uniform(0.08, 0.93)))
	}
	all = append(all,
		mmpp(d.uniform(0.05, 0.4), d.uniform(0.6, 1.3), d.time(60, 600), d.time(20, 150)),
		mmpp(0, d.uniform(0.5, 0.95), d.time(20, 200), d.time(20, 200)),
		bursts(d.uniform(0.2, 0.7), d.integer(3, 40), d.time(0.004, 0.04)),
		ramp(d.uniform(0.02, 0.3), d.uniform(0.7, 0.95), d.time(2_000, 9_000)),
		spike(d.uniform(0.3, 0.6), d.uniform(1.5, 4), d.time(150, 500), 10*time.Second),
		mixed(d.integer(2, 40), d.time(0.1, 5), d.uniform(0.1, 0.5)),
		Traffic{Name: "trace", Trace: true, Screen: trace.Screen},
	)
	return all
}
