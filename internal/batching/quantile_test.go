package batching_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/shoal-serving/shoal/internal/batching"
)

func TestAQuantileHasItsPartOfTheValuesBelow(t *testing.T) {
	for _, p := range []float64{0.5, 0.95, 0.99} {
		q := batching.Quantile{P: p, Step: 0.02, Max: 100}
		rnd := rand.New(rand.NewPCG(1, 1))
		estimate, sum := 1.0, 0.0
		const n = 200_000
		for i := range 2 * n {
			estimate = q.Next(estimate, rnd.ExpFloat64() > estimate)
			if i >= n {
				sum += estimate / n
			}
		}
		if got := 1 - math.Exp(-sum); !(math.Abs(got-p) <= 0.02) {
			t.Errorf("%.3f of the values are below the quantile %v", got, p)
		}
	}
}

func TestAQuantileKeepsToItsBounds(t *testing.T) {
	q := batching.Quantile{P: 0.95, Step: 0.1, MinStep: 1, Max: 10}
	estimate := 0.0
	if estimate = q.Next(estimate, true); estimate != 0.95 {
		t.Errorf("the first step leads to %v, want 0.95", estimate)
	}
	for range 100 {
		estimate = q.Next(estimate, true)
	}
	if estimate != 10 {
		t.Errorf("at most it is %v, want 10", estimate)
	}
	for range 1000 {
		estimate = q.Next(estimate, false)
	}
	if estimate != 0 {
		t.Errorf("at least it is %v, want 0", estimate)
	}
}
