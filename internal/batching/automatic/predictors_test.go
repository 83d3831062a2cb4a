package automatic_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/batching/automatic"
	"github.com/shoal-serving/shoal/internal/device"
	"github.com/shoal-serving/shoal/internal/simulate"
)

// A predicted model runs batches one after the other, while several predictors learn.
type predicted struct {
	curve  device.Curve
	noise  device.Noise
	chance *rand.Rand
	now    batching.Time

	learner    batching.Learner
	cold, warm *automatic.Policy
}

const predictedRows = 32

func newPredicted(curve device.Curve, noise device.Noise) *predicted {
	return &predicted{
		curve: curve, noise: noise, chance: rand.New(rand.NewPCG(1, 2)),
		cold: automatic.New(automatic.Options{MaxRows: predictedRows}),
		warm: automatic.New(automatic.Options{MaxRows: predictedRows, Profile: simulate.Calibrated(curve, nil, predictedRows, 1)}),
	}
}

func (p *predicted) predictors() map[string]batching.Predictor {
	return map[string]batching.Predictor{"learner": &p.learner, "policy": p.cold, "calibrated policy": p.warm}
}

// run runs a batch that takes the given multiple of the curve's time.
func (p *predicted) run(rows int, times float64) time.Duration {
	took := time.Duration(times * p.noise.Factor(p.chance) * float64(p.curve.Takes(rows)))
	items := []*batching.Item{{Rows: rows}}
	for _, policy := range []*automatic.Policy{p.cold, p.warm} {
		policy.Arrived(p.now, items[0])
		policy.Began(p.now, &batching.Action{Instance: 1, Items: items})
		policy.Ended(p.now+took, 1, items, false)
	}
	p.learner.Record(rows, 1, took)
	p.now += took + 1
	return took
}

// p95 returns the p95 of batch times, relative to the curve.
func (p *predicted) p95() float64 {
	all := make([]float64, 10_000)
	rnd := rand.New(rand.NewPCG(3, 4))
	for i := range all {
		all[i] = p.noise.Factor(rnd)
	}
	slices.Sort(all)
	return all[len(all)*95/100]
}

var (
	predictedCurves = map[string]device.Curve{
		"line":  {Fixed: 4 * ms, PerRow: 200 * us},
		"steps": {Fixed: 2 * ms, PerRow: 500 * us, Step: 8},
		"bent":  {Fixed: 2 * ms, PerRow: 50 * us, Square: 20 * us},
	}
	predictedNoise = map[string]device.Noise{
		"none":  {},
		"usual": {Spread: 0.03, Outliers: 0.01, Times: 3},
		"high":  {Spread: 0.15, Outliers: 0.02, Times: 3},
	}
)

// TestPredictorsAreComparedWhereTheyDiffer has the figures of docs/adr/0015. It prints
// them with -v.
func TestPredictorsAreComparedWhereTheyDiffer(t *testing.T) {
	off := map[string]float64{} // the largest error of all noises, by curve and predictor
	for curve, c := range predictedCurves {
		for noise, n := range predictedNoise {
			p := newPredicted(c, n)
			p95 := p.p95()
			above, errors, all := map[string]int{}, map[string]float64{}, 0
			for i := range 4_000 {
				rows := 1 + p.chance.IntN(predictedRows)
				before := map[string]time.Duration{}
				for name, by := range p.predictors() {
					before[name] = by.Predict(batching.Size{Rows: rows}, 1)
				}
				took := p.run(rows, 1)
				if i < 1_000 {
					continue
				}
				all++
				for name, d := range before {
					errors[name] += math.Abs(float64(d)/(p95*float64(c.Takes(rows))) - 1)
					if took > d+1 {
						above[name]++
					}
				}
			}
			for name := range p.predictors() {
				errors[name] /= float64(all)
				off[curve+", "+name] = max(off[curve+", "+name], errors[name])
				t.Logf("%-5s  noise %-5s  %-17s  error %4.1f %%, %4.1f %% take longer", curve, noise, name, 100*errors[name], 100*float64(above[name])/float64(all))
			}
		}
	}
	for _, curve := range []string{"steps", "bent"} {
		if learner, policy := off[curve+", learner"], off[curve+", policy"]; learner < 1.5*policy {
			t.Errorf("%s: the learner is off by %.1f %%, and the policy by %.1f %%: if it is no better, one of them is enough", curve, 100*learner, 100*policy)
		}
	}
	if learner := off["line, learner"]; learner > 0.15 {
		t.Errorf("line: the learner is off by %.1f %%", 100*learner)
	}
}

// batchesUntil returns the number of batches of random sizes after which all predictions
// are within a tenth of the p95; 1000 if they are not by then.
func (p *predicted) batchesUntil(times float64) map[string]int {
	p95, reached := p.p95(), map[string]int{}
	for i := range 1_000 {
		for name, by := range p.predictors() {
			near := true
			for rows := 1; rows <= predictedRows; rows++ {
				near = near && math.Abs(float64(by.Predict(batching.Size{Rows: rows}, 1))/(times*p95*float64(p.curve.Takes(rows)))-1) < 0.1
			}
			if _, done := reached[name]; near && !done {
				reached[name] = i
			}
		}
		p.run(1+p.chance.IntN(predictedRows), times)
	}
	for name := range p.predictors() {
		if _, done := reached[name]; !done {
			reached[name] = 1_000
		}
	}
	return reached
}

func TestPredictorsAreComparedWhereTheSpeedChanges(t *testing.T) {
	p := newPredicted(predictedCurves["line"], predictedNoise["none"])
	start := p.batchesUntil(1)
	slower := p.batchesUntil(2)
	t.Log("batches until all sizes are predicted within a tenth: from the start", fmt.Sprint(start), "after the model became twice as slow", fmt.Sprint(slower))
	if start["learner"] > 20 || slower["learner"] > 300 {
		t.Errorf("the learner needs %d batches from the start, and %d after a change", start["learner"], slower["learner"])
	}
}

// TestPredictorsAreComparedWhereBatchesNeverRunAlone always runs two batches in parallel,
// each taking 1.5 times as long, which a policy with fixed rules allows.
func TestPredictorsAreComparedWhereBatchesNeverRunAlone(t *testing.T) {
	curve, rnd := predictedCurves["line"], rand.New(rand.NewPCG(5, 6))
	policy, learner := automatic.New(automatic.Options{MaxRows: predictedRows, Instances: 2}), &batching.Learner{}
	now := batching.Time(0)
	for range 2_000 {
		rows := 1 + rnd.IntN(predictedRows)
		items, took := []*batching.Item{{Rows: rows}}, curve.Takes(rows)*3/2
		for n := range 2 {
			policy.Arrived(now, items[0])
			policy.Began(now, &batching.Action{Instance: n + 1, Items: items})
		}
		for n := range 2 {
			policy.Ended(now+took, n+1, items, false)
			learner.Record(rows, 2, took)
		}
		now += took + 1
	}
	want := curve.Takes(8) * 3 / 2
	if d := policy.Predict(batching.Size{Rows: 8}, 2); d < want*95/100 || d > want*110/100 {
		t.Errorf("the policy predicts %v from batches that never ran alone, want %v", d, want)
	}
	if d := learner.Predict(batching.Size{Rows: 8}, 2); d < want*95/100 || d > want*105/100 {
		t.Errorf("the learner predicts %v, want %v", d, want)
	}
}
