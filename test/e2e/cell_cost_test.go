//go:build e2e && linux

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/client"
	"github.com/shoal-serving/shoal/internal/cell"
	"github.com/shoal-serving/shoal/test/measure"
	"github.com/shoal-serving/shoal/test/servertest"
)

// askAgainAndAgain runs clients that each send a request, wait for the answer, and send it again.
func askAgainAndAgain(t *testing.T, c *client.Client, req *client.Request, clients int, d time.Duration, usages ...func() time.Duration) servertest.Loop {
	t.Helper()
	return servertest.AskInALoop(t, clients, d, func() error { _, err := c.Infer(context.Background(), req); return err }, usages...)
}

// What the Envoy of a cell adds to a request of 64 B, 12.8 KB and 600 KB, in time and CPU time,
// with everything that the template has.
func TestWhatEnvoyAdds(t *testing.T) {
	sizes := []struct {
		name    string
		numbers int64
	}{{"64 B", 16}, {"12.8 KB", 3200}, {"600 KB", 150528}}
	configs, wanted := map[string]string{}, "models:\n"
	for i, s := range sizes {
		configs[fmt.Sprint("m", i)] = fmt.Sprintf(`backend: "simulated" max_batch_size: 8 input { name: "x" data_type: TYPE_FP32 dims: [ %d ] } output { name: "y" data_type: TYPE_FP32 dims: [ 16 ] }`, s.numbers)
		wanted += fmt.Sprintf("  m%d: {copies: 1}\n", i)
	}
	c := newCellOf(t, servertest.Repository(t, configs), wanted, 1)
	_, api, xds := c.start("--address", "127.0.0.1:0", "--xds-address", "127.0.0.1:0")
	envoy := c.startEnvoy(xds)
	servertest.Eventually(t, "all models have a copy", func() bool {
		d := c.status(api)
		return len(d.Models) == len(sizes) && !slices.ContainsFunc(d.Models, func(m cell.ModelDescription) bool { return len(m.Active) == 0 })
	})
	node := c.nodes[0]
	direct := map[string]*client.Client{"HTTP": c.connectTo(client.NewHTTP, strings.TrimPrefix(node.HTTP, "http://")), "gRPC": c.connectTo(client.NewGRPC, node.GRPC)}
	through := map[string]*client.Client{"HTTP": c.connect(client.NewHTTP), "gRPC": c.connect(client.NewGRPC)}
	d := servertest.StrictOr(2*time.Second, 100*time.Millisecond)
	cpu := func() time.Duration { return node.Usage().CPU + node.UsageOf(envoy.Process.Pid).CPU }
	for i, size := range sizes {
		req := &client.Request{Model: fmt.Sprint("m", i), Inputs: []client.Tensor{client.NewTensor("x", make([]float32, size.numbers), 1, size.numbers)}}
		for _, protocol := range []string{"HTTP", "gRPC"} {
			servertest.Eventually(t, "Envoy answers", func() bool { _, err := through[protocol].Infer(t.Context(), req); return err == nil })
			var ratios, times []float64
			var with, without servertest.Loop
			for round := range servertest.Rounds() {
				without, with = measure.Pair(round,
					func() servertest.Loop { return askAgainAndAgain(t, direct[protocol], req, 1, d, cpu) },
					func() servertest.Loop { return askAgainAndAgain(t, through[protocol], req, 1, d, cpu) })
				ratios, times = append(ratios, with.Used[0]/without.Used[0]), append(times, (with.P50-without.P50).Seconds()*1e6)
			}
			what := size.name + " over " + protocol
			t.Logf("figures: %s: p50 %v direct, %v through Envoy in the last pair; CPU %.0f µs and %.0f µs", what, without.P50, with.P50, without.Used[0], with.Used[0])
			servertest.Judge(t, what+" through Envoy, CPU of a request, times direct", measure.Nothing(), ratios)
			servertest.Judge(t, what+" through Envoy, µs added to the p50", measure.Nothing(), times)
		}
	}
}

// Two nodes run nearly twice as much as one, with Envoy in front of both.
func TestTwoNodesRunTwiceAsMuchAsOne(t *testing.T) {
	const config = `backend: "simulated"
max_batch_size: 8
input [ { name: "INPUT" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "OUTPUT" data_type: TYPE_FP32 dims: [ 4 ] } ]
parameters { key: "device" value { string_value: "0" } }
parameters { key: "fixed_us" value { string_value: "9605" } }
parameters { key: "per_row_us" value { string_value: "296.5" } }`
	var ways [2]*client.Client
	for i := range ways {
		c := newCellOf(t, servertest.Repository(t, map[string]string{"m0": config}), fmt.Sprintf("models:\n  m0: {copies: %d}\n", i+1), i+1)
		_, api, xds := c.start("--address", "127.0.0.1:0", "--xds-address", "127.0.0.1:0")
		c.startEnvoy(xds)
		servertest.Eventually(t, "the model has its copies", func() bool {
			d := c.status(api)
			return len(d.Models) == 1 && len(d.Models[0].Active) == i+1
		})
		ways[i] = c.connect(client.NewGRPC)
		servertest.Eventually(t, "Envoy answers", func() bool { return servertest.Ask(t.Context(), ways[i], "m0", 1) == nil })
	}
	const clients = 48 // both have batches of eight
	d := servertest.StrictOr(10*time.Second, time.Second)
	var ratios []float64
	for round := range servertest.Rounds() {
		one, two := measure.Pair(round,
			func() servertest.Loop {
				return askAgainAndAgain(t, ways[0], servertest.SmallRequest("m0", 1), clients, d)
			},
			func() servertest.Loop {
				return askAgainAndAgain(t, ways[1], servertest.SmallRequest("m0", 1), clients, d)
			})
		t.Logf("%.0f requests/s with one node, %.0f with two", one.PerSecond, two.PerSecond)
		ratios = append(ratios, two.PerSecond/one.PerSecond)
	}
	if *servertest.Strict { // a second is too short to learn the best size
		servertest.Judge(t, "requests per second of two nodes, times one", measure.AtLeast(1.8), ratios)
	}
}
