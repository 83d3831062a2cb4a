package matrix

import (
	"fmt"
	"time"

	"github.com/shoal-serving/shoal/internal/device"
	"github.com/shoal-serving/shoal/internal/simulate"
)

// The models and devices with which the policy's constants were chosen.
var (
	flat         = Model{Name: "flat", Curve: device.Curve{Fixed: 5 * ms, PerRow: 50 * us}}
	mid          = Model{Name: "mid", Curve: device.Curve{Fixed: 5 * ms, PerRow: 500 * us}}
	linear       = Model{Name: "linear", Curve: device.Curve{Fixed: 1 * ms, PerRow: 1 * ms}}
	proportional = Model{Name: "proportional", Curve: device.Curve{Fixed: 100 * us, PerRow: 1 * ms}}
	convex       = Model{Name: "convex", Curve: device.Curve{Fixed: 3 * ms, PerRow: 200 * us, Square: 20 * us}}
	step         = Model{Name: "step", Curve: device.Curve{Fixed: 2 * ms, PerRow: 250 * us, Step: 8}}
	lengths      = Model{Name: "lengths", Curve: device.Curve{Fixed: 3 * ms, PerRow: 400 * us}, Lengths: simulate.Range{From: 0.5, To: 1.5}}

	serial   = Device{Name: "serial", Speed: []float64{1}}
	partial  = Device{Name: "partial", Speed: []float64{1, 1.4, 1.5}}
	parallel = Device{Name: "parallel", Speed: []float64{1, 2, 3, 4}}
)

// thinkSpread is the spread of think times: their p95 is 2.3 times the median.
const thinkSpread = 0.5

func closed(clients int, think time.Duration) Traffic {
	return Traffic{
		Name: fmt.Sprintf("closed N=%d think %v", clients, think),
		Loads: []simulate.Traffic{{
			Clients: []int{clients}, Think: []simulate.Span{{From: think, To: think}}, Spread: thinkSpread,
		}},
	}
}

func poisson(share float64) Traffic {
	return Traffic{Name: fmt.Sprintf("poisson %g", share), Loads: []simulate.Traffic{{Rate: []float64{share}}}}
}

// mmpp is a Markov-modulated Poisson process: it switches randomly between two rates.
func mmpp(low, high float64, lowLasts, highLasts time.Duration) Traffic {
	return Traffic{
		Name: fmt.Sprintf("mmpp %g/%g %v/%v", low, high, lowLasts, highLasts),
		Loads: []simulate.Traffic{{
			Rate: []float64{1}, Chance: true, Phases: []simulate.Phase{{Times: low, Lasts: lowLasts}, {Times: high, Lasts: highLasts}},
		}},
		Screen: 10_000,
	}
}

func bursts(share float64, size int, spacing time.Duration) Traffic {
	return Traffic{
		Name:  fmt.Sprintf("bursts of %d %g", size, share),
		Loads: []simulate.Traffic{{Rate: []float64{share}, Burst: simulate.Burst{Size: size, Spacing: spacing}}},
	}
}

func ramp(from, to float64, period time.Duration) Traffic {
	return Traffic{
		Name:   fmt.Sprintf("ramp %g-%g %v", from, to, period),
		Loads:  []simulate.Traffic{{Rate: []float64{1}, Ramp: simulate.Ramp{From: from, To: to, Period: period}}},
		Screen: 10_000,
	}
}

// spike is a sudden high rate for a short time.
func spike(normal, high float64, lasts, every time.Duration) Traffic {
	const before = time.Second // so that a short run includes the spike
	return Traffic{
		Name: fmt.Sprintf("crowd %g-%g %v", normal, high, lasts),
		Loads: []simulate.Traffic{{Rate: []float64{1}, Phases: []simulate.Phase{
			{Times: normal, Lasts: before}, {Times: high, Lasts: lasts}, {Times: normal, Lasts: every - before - lasts},
		}}},
		Screen: 20_000,
	}
}

// mixed is a closed loop together with an open one.
func mixed(clients int, think time.Duration, share float64) Traffic {
	t := closed(clients, think)
	t.Loads = append(t.Loads, poisson(share).Loads...)
	t.Name = fmt.Sprintf("mixed N=%d think %v and poisson %g", clients, think, share)
	return t
}

// tenants is two independent open loops: a steady one, and one with ten times the rate
// that switches on and off.
func tenants(share float64) Traffic {
	few, many := poisson(share/11), mmpp(0, 2, 50*ms, 50*ms)
	many.Loads[0].Rate[0] = share * 10 / 11
	return Traffic{Name: fmt.Sprintf("tenants 1:10 %g", share), Loads: append(few.Loads, many.Loads...), Screen: 10_000}
}

var trace = Traffic{Name: "trace", Trace: true, Screen: 10_000}

// Tuned returns the cells with which the policy's constants were chosen.
func Tuned() []*Cell {
	var all []Traffic
	for n := 1; n <= 256; n *= 2 {
		all = append(all, closed(n, 200*us))
	}
	all = append(all, closed(4, 3*ms), closed(16, 3*ms), closed(64, 3*ms), closed(16, 30*ms), closed(64, 30*ms))
	for _, share := range []float64{0.1, 0.3, 0.5, 0.7, 0.85, 0.95} {
		all = append(all, poisson(share))
	}
	all = append(all,
		mmpp(0.2, 0.9, 200*ms, 100*ms), mmpp(0.1, 1.5, 500*ms, 50*ms), mmpp(0, 0.9, 50*ms, 50*ms),
		bursts(0.5, 8, 10*us), bursts(0.5, 32, 10*us), ramp(0.05, 0.95, 5*time.Second), spike(0.6, 3, 500*ms, 10*time.Second),
		mixed(8, 200*us, 0.3), tenants(0.5), trace,
	)
	var cells []*Cell
	add := func(m Model, d Device, traffic ...Traffic) {
		for _, t := range traffic {
			cells = append(cells, &Cell{Model: m, Device: d, Traffic: t, Noise: defaultNoise, Seed: 1})
		}
	}
	for _, m := range []Model{flat, mid, linear, proportional, convex, step, lengths} {
		add(m, serial, all...)
	}
	add(mid, partial, all...)
	add(mid, parallel, all...)
	for _, drift := range []float64{2, 0.5} {
		cells = append(cells, &Cell{Model: mid, Device: serial, Traffic: poisson(0.4), Noise: defaultNoise, Drift: drift, Seed: 1})
	}
	return cells
}
