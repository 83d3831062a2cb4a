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

// Limits of every cell, for the automatic policy and for the grid of static settings.
const (
	MaxRows   = 64
	Instances = 4
)

// defaultNoise varies batch times slightly, and makes one in a thousand three times as
// long.
var defaultNoise = device.Noise{Spread: 0.03, Outliers: 0.001, Times: 3}

// A Cell is one model on one device under one kind of traffic.
type Cell struct {
	Model   Model
	Device  Device
	Traffic Traffic
	Noise   device.Noise
	Drift   float64 // factor of batch times in the second half of the run; 0 means no change
	Seed    uint64
}

// A Model is the batch times of a model.
type Model struct {
	Name    string
	Curve   device.Curve
	Lengths simulate.Range
}

// A Device determines how much parallel batches slow each other down.
type Device struct {
	Name  string
	Speed []float64 // Speed[n-1] is the total speed of n parallel batches, relative to a single one
}

// Executors classifies the gain of parallel batches: "one" (none), "independent" (full) or
// "shared" (partial).
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

// Traffic is the requests of a cell.
type Traffic struct {
	Name   string
	Loads  []simulate.Traffic // rates are fractions of the cell's capacity
	Trace  bool               // a generated recording replaces Loads
	Screen int                // minimum number of requests that represents the traffic; 0 means the default
}

// Closed reports whether all loads are closed loops.
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

// share returns the mean rate of the open loops, as a fraction of the capacity.
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

// Name returns a readable name that is unique among the cells of a set.
func (c *Cell) Name() string {
	name := c.Model.Name + "/" + c.Device.Name + " " + c.Traffic.Name
	if c.Drift != 0 {
		name += fmt.Sprintf(", drift ×%g", c.Drift)
	}
	return name
}

// Key returns a hash of the cell's definition.
func (c *Cell) Key() string {
	text, err := json.Marshal(c)
	if err != nil {
		panic(err) // cells contain only plain data
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}

// Capacity returns the highest throughput of any setting, in requests per second.
func (c *Cell) Capacity() float64 {
	most := 0.0
	for rows := 1; rows <= MaxRows; rows++ {
		most = max(most, c.speed(rows, Instances))
	}
	return most
}

// speed returns the throughput of batches of the given size with the given number of
// instances, in requests per second.
func (c *Cell) speed(rows, instances int) float64 {
	most := 0.0
	for n := range instances {
		most = max(most, c.Device.Speed[min(n, len(c.Device.Speed)-1)])
	}
	return most * float64(rows) / c.takes(rows).Seconds()
}

// takes returns the mean time of a single batch.
func (c *Cell) takes(rows int) time.Duration {
	alone := c.Model.Curve.Takes(rows)
	if l := c.Model.Lengths; l != (simulate.Range{}) {
		longest := l.From + (l.To-l.From)*float64(rows)/float64(rows+1)
		alone = c.Model.Curve.Fixed + time.Duration(longest*float64(alone-c.Model.Curve.Fixed))
	}
	return alone
}

// A run is the length and the seed of one simulation of a cell.
type run struct {
	requests int           // 0 means no limit
	duration time.Duration // 0 means no limit
	seed     uint64        // runs with the same seed get the same requests
	drift    []device.Change
}

// scenario returns the recorded requests of the cell, if it has any.
func (c *Cell) scenario(r run) simulate.Scenario {
	if !c.Traffic.Trace {
		return simulate.Scenario{}
	}
	return simulate.Scenario{Recorded: c.trace(r)}
}

// setting returns the cell with the given policy.
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
		default: // several loads end at the same time
			l.Duration = time.Duration(float64(r.requests) / (share * c.Capacity()) * float64(time.Second))
		}
		set.Traffic = append(set.Traffic, l)
	}
	return set
}

const traceShare = 0.5

// trace generates a recording in which gaps between requests vary by a factor of a
// hundred, and the rate drifts. It represents traffic that the other kinds do not cover.
func (c *Cell) trace(r run) []simulate.Arrival {
	chance := rand.New(rand.NewPCG(c.Seed+r.seed, 77))
	const spread, wander = 1.2, 0.35
	typicalGap := 1e9 / (traceShare * c.Capacity()) / math.Exp(spread*spread/2)
	var all []simulate.Arrival
	at, level := 0.0, 0.0
	for r.requests > 0 && len(all) < r.requests || r.duration > 0 && at < float64(r.duration) {
		if len(all)%256 == 0 {
			level = 0.8*level + wander*0.6*chance.NormFloat64()
		}
		at += typicalGap * math.Exp(spread*chance.NormFloat64()-level-wander*wander/2)
		all = append(all, simulate.Arrival{At: time.Duration(at), Rows: 1})
	}
	return all
}
