package simulate

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/batching/automatic"
	"github.com/shoal-serving/shoal/internal/device"
)

// textEncoder is a model whose inputs are a number of tokens, on a device in virtual time,
// with 64 clients. Each request has a length of its own.
type textEncoder struct {
	maxRows   int
	fixed     time.Duration // of a batch
	perToken  time.Duration
	inputs    int64 // each has an element for each token
	lengths   [2]int
	instances int
	slowdown  []float64
	noise     device.Noise
	seed      uint64
	lasts     time.Duration
}

// run returns the tokens per second, with requests that may be padded or not.
func (e *textEncoder) run(pads bool) (perSecond float64, policy *automatic.Policy) {
	policy = automatic.New(automatic.Options{MaxRows: e.maxRows, Instances: e.instances})
	lengths, noise := rand.New(rand.NewPCG(e.seed, 1)), rand.New(rand.NewPCG(e.seed, 2))
	w := NewWorld(e.slowdown, 0)
	m := w.Add("", batching.Config{MaxRows: e.maxRows, Policy: policy, OvertakeOtherShapes: true}, nil)
	m.Takes = func(items []*batching.Item) time.Duration {
		rows, longest := 0, int64(0)
		for _, it := range items {
			rows += it.Rows
			longest = max(longest, it.Elements/e.inputs)
		}
		return time.Duration(float64(e.fixed+time.Duration(rows)*time.Duration(longest)*e.perToken) * e.noise.Factor(noise))
	}
	tokens := int64(0)
	send := func(it *batching.Item) {
		length := e.lengths[0] + lengths.IntN(e.lengths[1]-e.lengths[0]+1)
		*it = batching.Item{Rows: 1, Shape: uint64(length), Elements: e.inputs * int64(length)}
		if pads {
			it.PadGroup = 1
		}
		m.Arrive(it)
	}
	w.Trace = func(o Occurrence) {
		if o.Action.Kind != batching.Deliver || o.Ended {
			return
		}
		it := o.Action.Item
		tokens += it.Elements / e.inputs
		w.At(o.At+100*time.Microsecond+time.Duration(lengths.Int64N(int64(200*time.Microsecond))), func() { send(it) })
	}
	for n := range e.instances {
		m.Up(n + 1)
	}
	for range 64 {
		it := new(batching.Item)
		w.At(time.Duration(lengths.Int64N(int64(time.Millisecond))), func() { send(it) })
	}
	w.Run(e.lasts)
	return float64(tokens) / e.lasts.Seconds(), policy
}

// ratio returns the throughput with padding, relative to that without, and the number of
// padded batches.
func (e *textEncoder) ratio() (times float64, padded uint64) {
	separate, _ := e.run(false)
	together, policy := e.run(true)
	return together / separate, policy.Explain().Padded.Batches
}

// On a CPU every token costs, and a batch as such nearly nothing: padding never pays, and
// what remains is the cost of trying it.
func TestTryingPaddingCostsLittleWhereEveryTokenCosts(t *testing.T) {
	noises := []device.Noise{{Spread: 0.05}, {Spread: 0.2, Outliers: 0.02, Times: 4}}
	for _, lengths := range [][2]int{{8, 24}, {8, 256}} {
		for instances := 1; instances <= 2; instances++ {
			for seed := range uint64(4) {
				t.Run(fmt.Sprintf("lengths of %d to %d, %d instances, seed %d", lengths[0], lengths[1], instances, seed), func(t *testing.T) {
					e := textEncoder{
						maxRows: 32, perToken: 150 * time.Microsecond, inputs: 3, lengths: lengths, instances: instances, slowdown: []float64{1, 1.1},
						noise: noises[seed%2], seed: seed, lasts: time.Duration(lengths[1]) * 500 * time.Millisecond,
					}
					times, padded := e.ratio()
					t.Logf("%.3f of the throughput without padding, %d padded batches", times, padded)
					if times < 0.97 {
						t.Errorf("%.3f of the throughput without padding, want at least 0.97", times)
					}
				})
			}
		}
	}
}

func TestPaddingIsFoundToPayWhereABatchCosts(t *testing.T) {
	for instances := 1; instances <= 2; instances++ {
		for seed := range uint64(4) {
			t.Run(fmt.Sprintf("%d instances, seed %d", instances, seed), func(t *testing.T) {
				e := textEncoder{
					maxRows: 8, fixed: 1921 * time.Microsecond, perToken: 60 * time.Nanosecond, inputs: 3, lengths: [2]int{1, 1000}, instances: instances, slowdown: []float64{1, 1.1},
					noise: device.Noise{Spread: 0.05}, seed: seed, lasts: 20 * time.Second,
				}
				times, padded := e.ratio()
				t.Logf("%.1f times the throughput without padding, %d padded batches", times, padded)
				if times < 5 {
					t.Errorf("%.1f times the throughput without padding, want 5", times)
				}
			})
		}
	}
}
