package matrix

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/device"
	"github.com/shoal-serving/shoal/internal/simulate"
)

const (
	ms = time.Millisecond
	us = time.Microsecond
)

// Bounds of every cell: what the automatic policy may use, and the grid goes up to.
const (
	MaxRows   = 64
	Instances = 4
)

// usualNoise is that of all cells, unless they say otherwise: most runs are alike,
// and one in a thousand is not.
var usualNoise = device.Noise{Spread: 0.03, Outliers: 0.001, Times: 3}

// A Cell is one model on one device under one kind of traffic.
type Cell struct {
	Model   Model
	Device  Device
	Traffic Traffic
	Noise   device.Noise
	Drift   float64 // the model takes so many times as long from the middle of the run on; 0 means that it does not change
	Seed    uint64
}

// A Model is something that takes time.
type Model struct {
	Name    string
	Curve   device.Curve
	Lengths simulate.Range
}

// A Device is what the batches of a model share.
type Device struct {
	Name  string
	Speed []float64 // Speed[n-1] is how much n batches at once get done, one alone being 1
}

// Executors says how many batches at once are worth running.
func (d Device) Executors() string {
	switch last := d.Speed[len(d.Speed)-1]; {
	case last == 1:
		return "one"
	case last == float64(len(d.Speed)):
		return "independent"
	}
	return "shared"
}

func (d Device) slowdown() []float64 {
	var slowdown []float64
	for n := range max(Instances, len(d.Speed)) {
		slowdown = append(slowdown, float64(n+1)/d.Speed[min(n, len(d.Speed)-1)])
	}
	return slowdown
}

// Traffic is what arrives.
type Traffic struct {
	Name   string
	Loads  []simulate.Traffic // rates are shares of the cell's capacity
	Trace  bool               // requests of a made-up recording, in place of loads
	Screen int                // requests that show what the traffic is like; 0 means the usual number
}

// Closed reports whether all requests come from clients who wait for their answers.
func (t Traffic) Closed() bool {
	return !t.Trace && !slices.ContainsFunc(t.Loads, func(l simulate.Traffic) bool { return l.Clients == nil })
}

func (t Traffic) clients() int {
	n := 0
	for _, l := range t.Loads {
		if l.Clients != nil {
			n += l.Clients[0]
		}
	}
	return n
}

// share returns the long-run mean of what open loops send, as a share of the
// capacity.
func (t Traffic) share() float64 {
	if t.Trace {
		return traceShare
	}
	all := 0.0
	for _, l := range t.Loads {
		if l.Rate == nil {
			continue
		}
		times := 1.0
		if l.Ramp.Period > 0 {
			times = (l.Ramp.From + l.Ramp.To) / 2
		}
		if len(l.Phases) > 0 {
			sum, length := 0.0, 0.0
			for _, p := range l.Phases {
				sum += p.Times * p.Lasts.Seconds()
				length += p.Lasts.Seconds()
			}
			times = sum / length
		}
		all += l.Rate[0] * times
	}
	return all
}

// Name names the cell.
func (c *Cell) Name() string {
	name := c.Model.Name + "/" + c.Device.Name + " " + c.Traffic.Name
	if c.Drift != 0 {
		name += fmt.Sprintf(", drift ×%g", c.Drift)
	}
	return name
}

// Key is the same for cells that are defined the same.
func (c *Cell) Key() string {
	text, err := json.Marshal(c)
	if err != nil {
		panic(err) // a cell is plain data
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}

// Capacity returns the most requests a second that any setting could answer.
func (c *Cell) Capacity() float64 {
	most := 0.0
	for rows := 1; rows <= MaxRows; rows++ {
		most = max(most, c.speed(rows, Instances))
	}
	return most
}

// speed returns how many requests a second batches of so many rows get done with so
// many instances.
func (c *Cell) speed(rows, instances int) float64 {
	most := 0.0
	for n := range instances {
		most = max(most, c.Device.Speed[min(n, len(c.Device.Speed)-1)])
	}
	return most * float64(rows) / c.takes(rows).Seconds()
}

// takes returns how long a batch takes alone, on average.
func (c *Cell) takes(rows int) time.Duration {
	alone := c.Model.Curve.Takes(rows)
	if l := c.Model.Lengths; l != (simulate.Range{}) {
		longest := l.From + (l.To-l.From)*float64(rows)/float64(rows+1)
		alone = c.Model.Curve.Fixed + time.Duration(longest*float64(alone-c.Model.Curve.Fixed))
	}
	return alone
}

// A run is how much of a cell is simulated.
type run struct {
	requests int           // 0 means any number
	duration time.Duration // 0 means any time
	seed     uint64        // runs of one seed see the same requests
	drift    []device.Change
}

// scenario returns what is simulated of the cell.
func (c *Cell) scenario(r run) simulate.Scenario {
	if !c.Traffic.Trace {
		return simulate.Scenario{}
	}
	return simulate.Scenario{Recorded: c.trace(r)}
}

// setting returns the cell served by a policy.
func (c *Cell) setting(p batching.Policy, maxRows, instances int, r run) simulate.Setting {
	set := simulate.Setting{
		Slowdown: c.Device.slowdown(),
		Models: []simulate.ModelSetting{{
			Config: batching.Config{MaxRows: maxRows, Policy: p},
			Curve:  c.Model.Curve, Lengths: c.Model.Lengths, Noise: c.Noise,
			Instances: instances, Seed: c.Seed + r.seed, Drift: r.drift,
		}},
	}
	if c.Drift != 0 {
		middle := float64(r.requests) / (c.Traffic.share() * c.Capacity()) / 2
		if r.duration != 0 {
			middle = r.duration.Seconds() / 2
		}
		set.Models[0].Drift = []device.Change{{At: time.Duration(middle * float64(time.Second)), Times: c.Drift}}
	}
	if c.Traffic.Trace {
		return set
	}
	share := c.Traffic.share()
	for _, l := range c.Traffic.Loads {
		if l.Rate != nil {
			l.Rate = []float64{l.Rate[0] * c.Capacity()}
		}
		l.Rows, l.Seed, l.Duration = []int{1}, c.Seed+r.seed, r.duration
		switch {
		case r.requests == 0:
		case share == 0 || len(c.Traffic.Loads) == 1:
			l.Requests = r.requests / len(c.Traffic.Loads)
		default: // loads of several kinds end together
			l.Duration = time.Duration(float64(r.requests) / (share * c.Capacity()) * float64(time.Second))
		}
		set.Traffic = append(set.Traffic, l)
	}
	return set
}

const traceShare = 0.5

// trace makes a recording up: gaps between requests that vary a hundredfold, and a
// rate that wanders. It stands for traffic that none of the other kinds describes.
func (c *Cell) trace(r run) []simulate.Arrival {
	chance := rand.New(rand.NewPCG(c.Seed+r.seed, 77))
	const spread, wander = 1.2, 0.35
	usual := 1e9 / (traceShare * c.Capacity()) / math.Exp(spread*spread/2)
	var all []simulate.Arrival
	at, level := 0.0, 0.0
	for r.requests > 0 && len(all) < r.requests || r.duration > 0 && at < float64(r.duration) {
		if len(all)%256 == 0 {
			level = 0.8*level + wander*0.6*chance.NormFloat64()
		}
		at += usual * math.Exp(spread*chance.NormFloat64()-level-wander*wander/2)
		all = append(all, simulate.Arrival{At: time.Duration(at), Rows: 1})
	}
	return all
}
