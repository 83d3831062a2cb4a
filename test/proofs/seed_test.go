//go:build e2e

package proofs

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/client"
	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/simulate"
	"github.com/shoal-serving/shoal/test/servertest"
)

// TestSeedDeviceAtFullLoad holds the throughput of 16 clients against what the
// device can do at the most.
func TestSeedDeviceAtFullLoad(t *testing.T) {
	s := servertest.Start(t, servertest.Root+"/examples/seed-device")
	room, measure := servertest.StrictOr(1, 0.85), servertest.StrictOr(3*time.Second, time.Second)
	for _, g := range []struct {
		model string
		limit float64 // of the device, in infer/s
		share float64 // of it that is promised
	}{
		{"seed_dynamic", 8 / servertest.SeedCurve.Takes(8).Seconds(), 0.97},
		{"seed_two", 16 / (servertest.SeedSlowdown[1] * servertest.SeedCurve.Takes(8).Seconds()), 0.95},
		{"seed_none", 2 / servertest.SeedCurve.Takes(2).Seconds(), 950 / (2 / servertest.SeedCurve.Takes(2).Seconds())},
	} {
		servertest.Hold(t, fmt.Sprintf("%s, share of %.0f infer/s", g.model, g.limit), room*g.share, 1.01, func() float64 {
			return servertest.ClosedLoop(t, s, g.model, 16, measure).InfersPerSecond / g.limit
		})
	}
}

// TestSeedDeviceAgreesWithTheSimulator compares 1 to 14 clients with the
// simulator. What the simulator does not know is how long a request travels between
// its client and the scheduler. That is measured beside each figure, as so many
// clients of a model where nobody waits for anybody, and given to the simulator as
// the clients' think time.
func TestSeedDeviceAgreesWithTheSimulator(t *testing.T) {
	const probeTakes = 2 * time.Millisecond
	s := servertest.Start(t, servertest.Repository(t, map[string]string{
		"none":    servertest.SeedConfig(1, "", servertest.SeedSpeed),
		"dynamic": servertest.SeedConfig(1, "dynamic_batching { max_queue_delay_microseconds: 0 }", servertest.SeedSpeed),
		"two":     servertest.SeedConfig(2, "dynamic_batching { max_queue_delay_microseconds: 0 }", servertest.SeedSpeed),
		"probe":   servertest.SeedConfig(16, "", `parameters { key: "fixed_us" value { string_value: "2000" } }`),
	}))
	room, measure := servertest.StrictOr(0.05, 0.2), servertest.StrictOr(time.Second, 500*time.Millisecond)
	for _, clients := range servertest.StrictOr([]int{1, 2, 4, 6, 8, 10, 12, 14}, []int{1, 8}) {
		for _, m := range []struct {
			name      string
			policy    batching.Policy
			instances int
		}{
			{"none", batching.None{}, 1},
			{"dynamic", batching.Triton{MaxRows: 8}, 1},
			{"two", batching.Triton{MaxRows: 8}, 2},
		} {
			servertest.Hold(t, fmt.Sprintf("%s with %d clients, share of the simulator's", m.name, clients), 1-room, 1+room, func() float64 {
				var think []simulate.Span
				for _, d := range servertest.ClosedLoop(t, s, "probe", clients, measure/2).Latencies {
					think = append(think, simulate.Span{From: d - probeTakes, To: d - probeTakes})
				}
				loop := simulate.ClosedLoop{
					Config: batching.Config{MaxRows: 8, Policy: m.policy}, Curve: servertest.SeedCurve, Slowdown: servertest.SeedSlowdown,
					Instances: m.instances, Clients: clients, Rows: 2, Think: think, Duration: 5 * time.Second,
				}
				want, err := loop.Run()
				if err != nil {
					t.Fatal(err)
				}
				return servertest.ClosedLoop(t, s, m.name, clients, measure).InfersPerSecond / want.RowsPerSecond
			})
		}
	}
}

// TestQueuePoliciesCostNoThroughput compares the seed device with and without a
// queue policy and priorities, in turn.
func TestQueuePoliciesCostNoThroughput(t *testing.T) {
	s := servertest.Start(t, servertest.Repository(t, map[string]string{
		"plain":      servertest.SeedConfig(1, "dynamic_batching { }", servertest.SeedSpeed),
		"policy":     servertest.SeedConfig(1, "dynamic_batching { default_queue_policy { max_queue_size: 1000 default_timeout_microseconds: 5000000 } }", servertest.SeedSpeed),
		"priorities": servertest.SeedConfig(1, "dynamic_batching { priority_levels: 2 default_priority_level: 2 }", servertest.SeedSpeed),
	}), "--batching=triton")
	room, measure := servertest.StrictOr(0.03, 0.15), servertest.StrictOr(1500*time.Millisecond, 500*time.Millisecond)
	for _, name := range []string{"policy", "priorities"} {
		for _, clients := range servertest.StrictOr([]int{1, 4, 16}, []int{16}) {
			servertest.Hold(t, fmt.Sprintf("%s with %d clients, share of the throughput without", name, clients), 1-room, 1.2, func() float64 {
				plain := servertest.ClosedLoop(t, s, "plain", clients, measure)
				return servertest.ClosedLoop(t, s, name, clients, measure).InfersPerSecond / plain.InfersPerSecond
			})
		}
	}
}

// TestRequestsThatDoNotDivideTheLargestBatchFillIt has batches of three requests of 2 rows
// on a model that takes 6 and was not calibrated: another model is busy all the time.
func TestRequestsThatDoNotDivideTheLargestBatchFillIt(t *testing.T) {
	const rows = 6
	six := strings.Replace(servertest.SeedConfig(1, "dynamic_batching { }", servertest.SeedSpeed), "max_batch_size: 8", fmt.Sprintf("max_batch_size: %d", rows), 1)
	s := servertest.Start(t, servertest.Repository(t, map[string]string{"six": six, "busy": servertest.SeedConfig(1, "", servertest.SeedSpeed)}))
	ctx, cancel := context.WithCancel(t.Context())
	var busy sync.WaitGroup
	busy.Go(func() {
		for c := s.Client(); ctx.Err() == nil; {
			_, _ = c.Infer(ctx, servertest.SeedRequest("busy", 1))
		}
	})
	limit := rows / servertest.SeedCurve.Takes(rows).Seconds()
	servertest.Hold(t, fmt.Sprintf("share of %.0f rows/s", limit), servertest.StrictOr(0.95, 0.7), 1.01, func() float64 {
		return servertest.ClosedLoop(t, s, "six", 8, servertest.StrictOr(3*time.Second, time.Second)).InfersPerSecond / limit
	})
	cancel()
	busy.Wait()
}

// TestAToE plays the tutorials' scenario for real, with a model that takes X for
// any batch, and compares it with virtual time.
func TestAToE(t *testing.T) {
	const x = 300 * time.Millisecond
	variants := map[string]struct {
		config string
		last   time.Duration // when the last answer comes, in virtual time
	}{
		"one at a time":               {servertest.Config(x, "1", ""), 5 * x},
		"dynamic":                     {servertest.Config(x, "1", "dynamic_batching { }"), 3 * x},
		"with a delay":                {servertest.Config(x, "1", "dynamic_batching { max_queue_delay_microseconds: 150000 }"), x/3 + 2*x},
		"two instances":               {servertest.Config(x, "2", ""), 3 * x},
		"two instances, dynamic":      {servertest.Config(x, "2", "dynamic_batching { }"), 2 * x},
		"two instances, with a delay": {servertest.Config(x, "2", "dynamic_batching { max_queue_delay_microseconds: 150000 }"), 2*x/3 + x},
	}
	configs := map[string]string{}
	names := map[string]string{}
	for name, v := range variants {
		model := fmt.Sprintf("m%d", len(configs))
		configs[model], names[name] = v.config, model
	}
	s := servertest.Start(t, servertest.Repository(t, configs), "--batching=triton") // whose rule the tutorials explain
	for name, v := range variants {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // they sleep
			c := s.Client()
			servertest.Hold(t, fmt.Sprintf("time to the last answer, share of %v", v.last), 0.99, 1.05, func() float64 {
				return float64(playAToE(t, c, names[name], x)) / float64(v.last)
			})
		})
	}
}

// playAToE sends the five requests and returns how long the last answer took.
func playAToE(t *testing.T, c *client.Client, model string, x time.Duration) time.Duration {
	var wg sync.WaitGroup
	began := time.Now()
	for _, r := range []struct {
		at   time.Duration
		rows int
	}{{0, 4}, {0, 2}, {x / 3, 2}, {2 * x / 3, 6}, {2 * x / 3, 2}} {
		wg.Go(func() {
			time.Sleep(r.at)
			if err := servertest.Ask(context.Background(), c, model, r.rows); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	return time.Since(began)
}
