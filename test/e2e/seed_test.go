//go:build e2e

package e2e

import (
	"context"
	"flag"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/device"
	"github.com/shoal-serving/shoal/internal/kserve/kservepb"
	"github.com/shoal-serving/shoal/internal/simulate"
)

// strict asks for the figures that a quiet machine gives, with enough repeats to
// tell. Without it there is room for a busy one.
var strict = flag.Bool("strict", false, "measure longer, and hold the figures that are promised")

// The seed device's curve, as in examples/seed-device.
var (
	seedCurve    = device.Curve{Fixed: 1921 * time.Microsecond, PerRow: 59300 * time.Nanosecond}
	seedSlowdown = []float64{1, 1.391}
)

// A load is what a closed loop of clients got out of a server.
type load struct {
	infersPerSecond float64
	mean, p95       time.Duration // of a request, as its client sees it
}

// closedLoop runs clients that each send a request of two rows, wait for the
// answer, and send the next.
func closedLoop(t *testing.T, s *server, model string, clients int, warm, measure time.Duration) load {
	t.Helper()
	var latencies [][]time.Duration
	var done sync.WaitGroup
	var stop atomic.Bool
	began := time.Now()
	for range clients {
		mine := make([]time.Duration, 0, 1<<14)
		latencies = append(latencies, nil)
		n := len(latencies) - 1
		c := s.client()
		req := seedRequest(model, 2)
		done.Go(func() {
			for !stop.Load() {
				sent := time.Now()
				if _, err := c.ModelInfer(context.Background(), req); err != nil {
					t.Error(err)
					return
				}
				if now := time.Now(); sent.Sub(began) > warm {
					mine = append(mine, now.Sub(sent))
				}
			}
			latencies[n] = mine
		})
	}
	time.Sleep(warm + measure)
	stop.Store(true)
	done.Wait()
	all := slices.Concat(latencies...)
	slices.Sort(all)
	if len(all) == 0 {
		t.Fatal("nothing was answered")
	}
	var sum time.Duration
	for _, d := range all {
		sum += d
	}
	return load{
		infersPerSecond: float64(2*len(all)) / measure.Seconds(),
		mean:            sum / time.Duration(len(all)),
		p95:             all[len(all)*95/100],
	}
}

func seedRequest(model string, rows int) *kservepb.ModelInferRequest {
	return &kservepb.ModelInferRequest{
		ModelName: model,
		Inputs: []*kservepb.ModelInferRequest_InferInputTensor{
			{Name: "input.1", Datatype: "FP32", Shape: []int64{int64(rows), 1, 32, 100}},
		},
		RawInputContents: [][]byte{make([]byte, rows*32*100*4)},
	}
}

// median returns the median of values and the 95 % interval of it, by rank.
func median(values []float64) (mid, low, high float64) {
	v := slices.Sorted(slices.Values(values))
	n := float64(len(v))
	half := 1.96 * math.Sqrt(n) / 2
	at := func(rank float64) float64 { return v[max(0, min(len(v)-1, int(math.Round(rank))))] }
	return v[len(v)/2], at(n/2 - half - 0.5), at(n/2 + half - 0.5)
}

// TestSeedDeviceAtFullLoad holds the throughput of 16 clients against what the
// device can do at the most.
func TestSeedDeviceAtFullLoad(t *testing.T) {
	s := start(t, root+"/examples/seed-device")
	repeats, warm, measure, room := 1, 300*time.Millisecond, time.Second, 0.85
	if *strict {
		repeats, warm, measure, room = 7, 500*time.Millisecond, 3*time.Second, 1
	}
	goals := []struct {
		model string
		limit float64 // of the device
		share float64 // of it that is promised
	}{
		{"seed_dynamic", 8 / seedCurve.Takes(8).Seconds(), 0.97},
		{"seed_two", 16 / (seedSlowdown[1] * seedCurve.Takes(8).Seconds()), 0.95},
		{"seed_none", 2 / seedCurve.Takes(2).Seconds(), 950 / (2 / seedCurve.Takes(2).Seconds())},
	}
	got := make([][]float64, len(goals))
	for range repeats {
		for i, g := range goals {
			got[i] = append(got[i], closedLoop(t, s, g.model, 16, warm, measure).infersPerSecond)
		}
	}
	for i, g := range goals {
		mid, low, high := median(got[i])
		t.Logf("%s: %.0f infer/s [%.0f, %.0f] of %.0f: %.1f %%", g.model, mid, low, high, g.limit, 100*mid/g.limit)
		if high < room*g.share*g.limit {
			t.Errorf("%s: %.0f infer/s, want %.0f", g.model, mid, room*g.share*g.limit)
		}
	}
}

// TestSeedDeviceAgreesWithTheSimulator compares 1 to 14 clients with the
// simulator. What the simulator does not know is how long a request travels between
// its client and the scheduler. That is measured beside each figure, as so many
// clients of a model where nobody waits for anybody, and given to the simulator as
// the clients' think time.
func TestSeedDeviceAgreesWithTheSimulator(t *testing.T) {
	const probeTakes = 2 * time.Millisecond
	s := start(t, repositoryOf(t, map[string]string{
		"none":    seedConfig(1, "", seedSpeed),
		"dynamic": seedConfig(1, "dynamic_batching { max_queue_delay_microseconds: 0 }", seedSpeed),
		"two":     seedConfig(2, "dynamic_batching { max_queue_delay_microseconds: 0 }", seedSpeed),
		"probe":   seedConfig(16, "", `parameters { key: "fixed_us" value { string_value: "2000" } }`),
	}))
	counts, repeats, measure, room := []int{1, 4, 8}, 1, 700*time.Millisecond, 0.25
	if *strict {
		counts, repeats, measure, room = []int{1, 2, 4, 6, 8, 10, 12, 14}, 7, 1500*time.Millisecond, 0.05
	}
	models := []struct {
		name      string
		policy    batching.Policy
		instances int
	}{
		{"none", batching.None{}, 1},
		{"dynamic", batching.Triton{MaxRows: 8}, 1},
		{"two", batching.Triton{MaxRows: 8}, 2},
	}
	for _, clients := range counts {
		for _, m := range models {
			var rates, ratios []float64
			for range repeats {
				travel := closedLoop(t, s, "probe", clients, 100*time.Millisecond, measure/2).mean - probeTakes
				loop := simulate.ClosedLoop{
					Config: batching.Config{MaxRows: 8, Policy: m.policy}, Curve: seedCurve, Slowdown: seedSlowdown,
					Instances: m.instances, Clients: clients, Rows: 2, Think: simulate.Span{From: travel, To: travel}, Duration: 5 * time.Second,
				}
				want, err := loop.Run()
				if err != nil {
					t.Fatal(err)
				}
				got := closedLoop(t, s, m.name, clients, 100*time.Millisecond, measure).infersPerSecond
				rates = append(rates, got)
				ratios = append(ratios, got/want.RowsPerSecond)
			}
			mid, low, high := median(ratios)
			rate, _, _ := median(rates)
			t.Logf("%-8s %2d clients: %5.0f infer/s, %.3f [%.3f, %.3f] of the simulator", m.name, clients, rate, mid, low, high)
			if high < 1-room || low > 1+room {
				t.Errorf("%s with %d clients: %.3f of what the simulator gives", m.name, clients, mid)
			}
		}
	}
}

const seedSpeed = `
parameters { key: "fixed_us" value { string_value: "1921" } }
parameters { key: "per_row_us" value { string_value: "59.3" } }
parameters { key: "slowdown" value { string_value: "1, 1.391" } }`

// seedConfig writes a model of the seed device's shapes.
func seedConfig(instances int, scheduling, speed string) string {
	return fmt.Sprintf(`backend: "simulated"
max_batch_size: 8
input [ { name: "input.1" data_type: TYPE_FP32 dims: [ 1, 32, 100 ] } ]
output [ { name: "308" data_type: TYPE_FP32 dims: [ 26, 37 ] } ]
instance_group [ { count: %d } ]
%s %s`, instances, scheduling, speed)
}

// TestQueuePoliciesCostNoThroughput compares the seed device with and without a
// queue policy and priorities, in turn.
func TestQueuePoliciesCostNoThroughput(t *testing.T) {
	s := start(t, repositoryOf(t, map[string]string{
		"plain":      seedConfig(1, "dynamic_batching { }", seedSpeed),
		"policy":     seedConfig(1, "dynamic_batching { default_queue_policy { max_queue_size: 1000 default_timeout_microseconds: 5000000 } }", seedSpeed),
		"priorities": seedConfig(1, "dynamic_batching { priority_levels: 2 default_priority_level: 2 }", seedSpeed),
	}))
	repeats, measure, room := 1, 700*time.Millisecond, 0.15
	if *strict {
		repeats, measure, room = 7, 1500*time.Millisecond, 0.03
	}
	for _, name := range []string{"policy", "priorities"} {
		for _, clients := range []int{1, 4, 16} {
			var ratios []float64
			for range repeats {
				plain := closedLoop(t, s, "plain", clients, 200*time.Millisecond, measure)
				other := closedLoop(t, s, name, clients, 200*time.Millisecond, measure)
				ratios = append(ratios, other.infersPerSecond/plain.infersPerSecond)
			}
			mid, low, high := median(ratios)
			t.Logf("%-10s %2d clients: %.3f [%.3f, %.3f] of the throughput without", name, clients, mid, low, high)
			if high < 1-room {
				t.Errorf("%s with %d clients: %.3f of the throughput without", name, clients, mid)
			}
		}
	}
}

// TestAToE plays the tutorials' scenario for real, with a model that takes X for
// any batch, and compares it with virtual time.
func TestAToE(t *testing.T) {
	const x = 300 * time.Millisecond
	variants := map[string]struct {
		config string
		last   time.Duration // when the last answer comes, in virtual time
	}{
		"one at a time":               {config(x, "1", ""), 5 * x},
		"dynamic":                     {config(x, "1", "dynamic_batching { }"), 3 * x},
		"with a delay":                {config(x, "1", "dynamic_batching { max_queue_delay_microseconds: 150000 }"), x/3 + 2*x},
		"two instances":               {config(x, "2", ""), 3 * x},
		"two instances, dynamic":      {config(x, "2", "dynamic_batching { }"), 2 * x},
		"two instances, with a delay": {config(x, "2", "dynamic_batching { max_queue_delay_microseconds: 150000 }"), 2*x/3 + x},
	}
	configs := map[string]string{}
	names := map[string]string{}
	for name, v := range variants {
		model := fmt.Sprintf("m%d", len(configs))
		configs[model], names[name] = v.config, model
	}
	s := start(t, repositoryOf(t, configs))
	for name, v := range variants {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // they sleep
			c := s.client()
			var wg sync.WaitGroup
			began := time.Now()
			for _, r := range []struct {
				at   time.Duration
				rows int
			}{{0, 4}, {0, 2}, {x / 3, 2}, {2 * x / 3, 6}, {2 * x / 3, 2}} {
				wg.Go(func() {
					time.Sleep(r.at)
					if err := ask(context.Background(), c, names[name], r.rows); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			took := time.Since(began)
			t.Logf("last answer after %v, %v in virtual time", took, v.last)
			if ratio := float64(took) / float64(v.last); ratio < 0.99 || ratio > 1.05 {
				t.Errorf("last answer after %v, want %v within 5 %%", took, v.last)
			}
		})
	}
}
