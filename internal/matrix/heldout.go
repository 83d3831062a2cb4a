package matrix

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/shoal-serving/shoal/internal/device"
)

// heldOutSeed is the only number that was chosen here; it is a date. All others
// are drawn from it.
const heldOutSeed = 20261115

// HeldOut returns cells that no constant of the policy was chosen with.
//
// The recipe: ten models, and eighteen kinds of traffic for each, all with numbers of
// their own, rounded to two digits. Times are drawn so that each octave is as
// likely as any other.
//
//   - six models a + c·b on a serial device: a from 0.4 to 20 ms, c from 0.01 to
//     1.2 times a;
//   - one with a square: a from 1 to 10 ms, c from 0.02 to 0.2 times a, and c/5 to
//     c/50 for each row squared;
//   - one that pads to a multiple of 3 to 20 rows;
//   - one on two to four independent executors, with a from 1 to 12 ms and c from
//     0.02 to 0.2 times a;
//   - one on a device on which two batches get 1.15 to 1.7 times as much done as
//     one, and three up to 0.3 more;
//   - of each: seven closed loops of 1 to 250 clients and think times from 0.1 to
//     20 ms, with a spread from 0 to 0.8; four of Poisson's with 0.08 to 0.93 of
//     the capacity; two that switch by chance between rates, one of which is off in
//     between; bursts of 3 to 40; a ramp; a crowd; a mix of closed and open; the
//     made-up recording.
//
// Noise is from 1 to 6 in a hundred, and outliers of 2 to 5 times as long are one in
// 500 to 5,000. These cells may be run to judge a policy, and not to choose its
// constants: one that was looked at for that belongs to [Tuned].
func HeldOut() []*Cell {
	d := draw{rand.New(rand.NewPCG(heldOutSeed, 1))}
	var cells []*Cell
	add := func(m Model, dev Device) {
		noise := device.Noise{Spread: d.within(0.01, 0.06), Outliers: 1 / d.octave(500, 5_000), Times: d.within(2, 5)}
		for _, t := range d.traffic() {
			cells = append(cells, &Cell{Model: m, Device: dev, Traffic: t, Noise: noise, Seed: heldOutSeed})
		}
	}
	for i := range 6 {
		a := d.octave(0.4, 20)
		add(line(fmt.Sprintf("line %d", i+1), a, round(a*d.octave(0.01, 1.2))), serial)
	}
	a := d.octave(1, 10)
	square := line("square", a, round(a*d.octave(0.02, 0.2)))
	square.Curve.Square = time.Duration(float64(square.Curve.PerRow) / d.octave(5, 50))
	add(square, serial)

	a = d.octave(1, 10)
	pads := line("pads", a, round(a*d.octave(0.02, 0.3)))
	pads.Curve.Step = d.whole(3, 20)
	add(pads, serial)

	a = d.octave(1, 12)
	several := Device{Name: "several"}
	for n := range d.whole(2, 4) {
		several.Speed = append(several.Speed, float64(n+1))
	}
	add(line("apart", a, round(a*d.octave(0.02, 0.2))), several)

	a = d.octave(1, 12)
	two := d.within(1.15, 1.7)
	add(line("shared", a, round(a*d.octave(0.02, 0.2))), Device{Name: "shared", Speed: []float64{1, two, two + d.within(0, 0.3)}})
	return cells
}

// line is a model of a and c milliseconds.
func line(name string, a, c float64) Model {
	return Model{Name: fmt.Sprintf("%s %g+%gb", name, a, c), Curve: device.Curve{Fixed: millis(a), PerRow: millis(c)}}
}

func millis(n float64) time.Duration { return time.Duration(math.Round(n * float64(ms))) }

// round keeps two digits, so that names can be read.
func round(n float64) float64 {
	n, err := strconv.ParseFloat(strconv.FormatFloat(n, 'g', 2, 64), 64)
	if err != nil {
		panic(err) // it was just written
	}
	return n
}

// draw makes numbers up.
type draw struct{ *rand.Rand }

func (d draw) within(from, to float64) float64 { return round(from + (to-from)*d.Float64()) }

func (d draw) octave(from, to float64) float64 {
	return round(from * math.Exp(d.Float64()*math.Log(to/from)))
}

func (d draw) whole(from, to int) int { return from + d.IntN(to-from+1) }

func (d draw) time(from, to float64) time.Duration { return millis(d.octave(from, to)) }

func (d draw) traffic() []Traffic {
	var all []Traffic
	for range 7 {
		t := closed(int(d.octave(1, 250)), d.time(0.1, 20))
		t.Loads[0].Spread = d.within(0, 0.8)
		all = append(all, t)
	}
	for range 4 {
		all = append(all, poisson(d.within(0.08, 0.93)))
	}
	all = append(all,
		byChance(d.within(0.05, 0.4), d.within(0.6, 1.3), d.time(60, 600), d.time(20, 150)),
		byChance(0, d.within(0.5, 0.95), d.time(20, 200), d.time(20, 200)),
		bursts(d.within(0.2, 0.7), d.whole(3, 40), d.time(0.004, 0.04)),
		ramp(d.within(0.02, 0.3), d.within(0.7, 0.95), d.time(2_000, 9_000)),
		crowd(d.within(0.3, 0.6), d.within(1.5, 4), d.time(150, 500), 10*time.Second),
		mixed(d.whole(2, 40), d.time(0.1, 5), d.within(0.1, 0.5)),
		Traffic{Name: "trace", Trace: true, Screen: trace.Screen},
	)
	return all
}
