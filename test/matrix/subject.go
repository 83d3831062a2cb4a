package matrix

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/batching/automatic"
	"github.com/shoal-serving/shoal/internal/simulate"
)

// A Subject is the policy that is compared with the static settings.
type Subject struct {
	// New returns a policy for the given number of instances. An empty profile means that
	// nothing was calibrated.
	New func(instances int, profile batching.Profile) batching.Policy
}

// Automatic is the server's policy for models without batching settings.
var Automatic = Subject{New: func(instances int, profile batching.Profile) batching.Policy {
	return automatic.New(automatic.Options{MaxRows: MaxRows, Instances: instances, Profile: profile})
}}

// Greedy never waits. In tests it represents a broken policy.
var Greedy = Subject{New: func(int, batching.Profile) batching.Policy { return batching.Triton{MaxRows: MaxRows} }}

// A Trial is the results of a cell with a subject.
type Trial struct {
	Cell        string    `json:"cell"` // its key
	Name        string    `json:"name"`
	Version     string    `json:"version"` // of the policy's code
	Effort      Effort    `json:"effort"`
	Calibrated  []Figures `json:"calibrated"` // by seed
	Cold        []Figures `json:"cold"`       // without a profile; with one instance if more do not help
	Windows     []Window  `json:"windows"`
	ColdWindows []Window  `json:"cold_windows"`
	Took        float64   `json:"took_s"`
}

// Evaluate runs a cell with a subject, calibrated and cold, with the same requests as
// [FindBest].
func Evaluate(c *Cell, s Subject, e Effort) (*Trial, error) {
	t := &Trial{Cell: c.Key(), Name: c.Name(), Effort: e}
	for seed := range uint64(e.Seeds) {
		r := run{requests: e.Full, seed: seed + 1}
		warm, err := c.measure(s.New(Instances, c.calibrate(r.seed)), MaxRows, Instances, r)
		if err != nil {
			return nil, err
		}
		cold, err := c.measure(s.New(c.coldInstances(), batching.Profile{}), MaxRows, c.coldInstances(), r)
		if err != nil {
			return nil, err
		}
		t.Calibrated, t.Cold = append(t.Calibrated, warm), append(t.Cold, cold)
	}
	if e.Minutes == 0 {
		return t, nil
	}
	var err error
	if t.Windows, err = c.windows(s.New(Instances, c.calibrate(1)), MaxRows, Instances, e.Minutes); err != nil || e.OneGuard {
		return t, err
	}
	t.ColdWindows, err = c.windows(s.New(c.coldInstances(), batching.Profile{}), MaxRows, c.coldInstances(), e.Minutes)
	return t, err
}

// coldInstances returns the number of instances that a user would choose who knows the
// device but has measured nothing.
func (c *Cell) coldInstances() int {
	if c.Device.Executors() == "one" {
		return 1
	}
	return Instances
}

// calibrate returns the profile that calibration would measure of the cell's model,
// including noise. Its requests all have the mean length.
func (c *Cell) calibrate(seed uint64) batching.Profile {
	chance := rand.New(rand.NewPCG(c.Seed+seed, 55))
	curve := c.Model.Curve
	if l := c.Model.Lengths; l != (simulate.Range{}) {
		curve.PerRow = time.Duration((l.From + l.To) / 2 * float64(curve.PerRow))
	}
	p := simulate.Calibrated(curve, c.Device.slowdown(), MaxRows, Instances)
	measured := func(runs int) (median, slow float64) {
		factors := make([]float64, runs)
		for i := range factors {
			factors[i] = c.Noise.Factor(chance)
		}
		slices.Sort(factors)
		return factors[runs/2], factors[(runs-1)*95/100] // as in package calibrate
	}
	for i := range p.Sizes {
		size := &p.Sizes[i]
		median, slow := measured(size.Runs)
		size.Median, size.P95 = time.Duration(median*float64(size.Median)), time.Duration(slow*float64(size.Median))
	}
	for n := 1; n < len(p.Slowdown); n++ {
		median, _ := measured(3)
		p.Slowdown[n] = max(1, median*p.Slowdown[n])
	}
	return p
}
