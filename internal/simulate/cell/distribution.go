package cell

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/shoal-serving/shoal/internal/device"
)

// A Distribution describes many models by a few numbers.
type Distribution struct {
	Models int
	Zipf   float64 // exponent of the rates: the n-th model has n^-Zipf of the first one's

	Fixed    time.Duration // median fixed cost of a batch
	Spread   float64       // standard deviation of the logarithm of the fixed costs
	RowShare float64       // cost of a row, relative to the fixed cost
	MaxRows  int

	Bytes     int64 // mean memory of a copy; models have from half to one and a half of it
	Objective time.Duration
	LoadTime  time.Duration
	Rate      float64 // requests per second of all models together
	Seed      uint64
}

// Draw returns the models.
func (d Distribution) Draw() []Model {
	chance := rand.New(rand.NewPCG(d.Seed, 3))
	weights := 0.0
	for i := range d.Models {
		weights += math.Pow(float64(i+1), -d.Zipf)
	}
	models := make([]Model, d.Models)
	for i := range models {
		fixed := time.Duration(float64(d.Fixed) * math.Exp(d.Spread*chance.NormFloat64()))
		models[i] = Model{
			Name:      fmt.Sprintf("model-%05d", i),
			Bytes:     int64(float64(d.Bytes) * (0.5 + chance.Float64())),
			Curve:     device.Curve{Fixed: fixed, PerRow: time.Duration(float64(fixed) * d.RowShare)},
			MaxRows:   d.MaxRows,
			Objective: d.Objective,
			LoadTime:  d.LoadTime,
			Rate:      d.Rate / weights * math.Pow(float64(i+1), -d.Zipf),
		}
	}
	return models
}

// Nodes returns n equal nodes in the given number of zones: node-0000 in zone-0, and so on.
func Nodes(n, zones int, bytes int64) []Node {
	nodes := make([]Node, n)
	for i := range nodes {
		nodes[i] = Node{Name: fmt.Sprintf("node-%04d", i), Zone: fmt.Sprintf("zone-%d", i%max(1, zones)), Bytes: bytes}
	}
	return nodes
}
