//go:build e2e && proofs

package proofs

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/client"
	"github.com/shoal-serving/shoal/internal/device"
	"github.com/shoal-serving/shoal/internal/placement"
	"github.com/shoal-serving/shoal/internal/simulate/cell"
	"github.com/shoal-serving/shoal/test/measure"
	"github.com/shoal-serving/shoal/test/servertest"
)

// Three nodes with one device each, and eight models on every node.
const (
	cellNodes  = 3
	cellModels = 8
)

var cellCurve = device.Curve{Fixed: 9605 * time.Microsecond, PerRow: 296500}

// cellConfig is the cell in virtual time.
func cellConfig(rate float64, network, lasting time.Duration) cell.Config {
	cfg := cell.Config{
		Nodes: cell.Nodes(cellNodes, cellNodes, 0), Proxies: 1, Network: network, WarmUp: lasting / 4, Duration: lasting, Seed: 1,
	}
	for i := range cellModels {
		cfg.Models = append(cfg.Models, cell.Model{Name: fmt.Sprint("m", i), Curve: cellCurve, MaxRows: 8, Rate: rate / cellModels})
	}
	return cfg
}

// TestProofCell runs the same cell in virtual time and as three real nodes behind a real Envoy, with the
// same placement, and compares batch size, device time and p50.
func TestProofCell(t *testing.T) {
	envoy, nodes := startNodes(t)
	var addresses []string
	for _, n := range nodes {
		addresses = append(addresses, strings.TrimPrefix(n.HTTP, "http://"))
	}
	lasting := servertest.StrictOr(40*time.Second, 8*time.Second)
	for _, rate := range []float64{240, 600, 1000} {
		plan, err := cell.Place(cellConfig(rate, 0, lasting))
		if err != nil {
			t.Fatal(err)
		}
		address := startEnvoy(t, envoy, "LEAST_REQUEST", plan, addresses)
		overhead := transportOverhead(t, address)
		measured := runRealCell(t, nodes, address, rate, lasting)
		simulated, err := cell.Run(cellConfig(rate, overhead/2, lasting))
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%v req/s: batch %.3f real, %.3f simulated; device time %.3f, %.3f; p50 %v, %v; transport overhead %v", rate,
			measured.batch, simulated.MeanBatch, measured.device, simulated.DeviceTime, measured.p50, simulated.P50, overhead)
		for _, c := range []struct {
			what            string
			real, simulated float64
			within          float64
		}{
			{"batch size", measured.batch, simulated.MeanBatch, servertest.StrictOr(0.05, 0.5)},
			{"device time", measured.device, simulated.DeviceTime, servertest.StrictOr(0.05, 0.5)},
			{"p50", measured.p50.Seconds(), simulated.P50.Seconds(), servertest.StrictOr(0.15, 3)},
		} {
			if off := c.real/c.simulated - 1; !(off <= c.within && off >= -c.within) {
				t.Errorf("%v req/s: %s is off by %.1f %%, want at most %.0f %%", rate, c.what, 100*off, 100*c.within)
			}
		}
	}
}

// startNodes starts the nodes, and returns the file of Envoy, too.
func startNodes(t *testing.T) (envoy string, nodes []*servertest.Server) {
	t.Helper()
	envoy = servertest.EnvoyBinary(t)
	configs := map[string]string{}
	for i := range cellModels {
		configs[fmt.Sprint("m", i)] = `backend: "simulated"
max_batch_size: 8
input [ { name: "INPUT" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "OUTPUT" data_type: TYPE_FP32 dims: [ 4 ] } ]
dynamic_batching { }
parameters { key: "device" value { string_value: "0" } }
parameters { key: "fixed_us" value { string_value: "9605" } }
parameters { key: "per_row_us" value { string_value: "296.5" } }`
	}
	for range cellNodes {
		nodes = append(nodes, servertest.Start(t, servertest.Repository(t, configs)))
	}
	return envoy, nodes
}

// TestProofActiveCopies compares a few active copies of each model with all copies, behind the same
// balancers, in the device time and the p50 of the same requests. Toxiproxy adds 2 ms between
// Envoy and the nodes.
func TestProofActiveCopies(t *testing.T) {
	toxics := servertest.StartToxiproxy(t)
	envoy, nodes := startNodes(t)
	var addresses []string
	for i, n := range nodes {
		name := fmt.Sprint("node", i)
		addresses = append(addresses, toxics.Forward(name, strings.TrimPrefix(n.HTTP, "http://")))
		toxics.Delay(name, 2)
	}
	// Each model's copies are on the nodes that follow one another, from another one for each model.
	active := func(copies int) *placement.Plan {
		plan := &placement.Plan{}
		for i := range cellModels {
			p := placement.Placement{Model: fmt.Sprint("m", i)}
			for n := range copies {
				p.Copies = append(p.Copies, placement.Copy{Node: fmt.Sprint("node-", (i+n)%cellNodes), Active: true})
			}
			plan.Models = append(plan.Models, p)
		}
		return plan
	}
	ways := []string{
		startEnvoy(t, envoy, "LEAST_REQUEST", active(1), addresses),
		startEnvoy(t, envoy, "LEAST_REQUEST", active(2), addresses),
		startEnvoy(t, envoy, "LEAST_REQUEST", active(cellNodes), addresses),
		startEnvoy(t, envoy, "ROUND_ROBIN", active(cellNodes), addresses),
	}
	const one, two, all, robin = 0, 1, 2, 3
	samples := servertest.Samples(t, "active-copies")
	lasting := servertest.StrictOr(10*time.Second, 2*time.Second)
	gates := []struct {
		name   string
		rate   float64
		of, to int
		figure func(realCell) float64
		most   float64
	}{
		{"device time at 0.8 of the unbatched capacity, one active copy, times round robin's", 240, one, robin, deviceTime, 0.92},
		{"device time at 0.8 of the unbatched capacity, two active copies, times round robin's", 240, two, robin, deviceTime, 0.97},
		{"p50 at 3.3 times the unbatched capacity, one active copy, times least request's", 1000, one, all, halfTime, 0.6},
		{"p50 at 3.3 times the unbatched capacity, two active copies, times least request's", 1000, two, all, halfTime, 0.85},
	}
	for round := len(samples.Of(gates[len(gates)-1].name)); round < servertest.Rounds(); round++ {
		for _, rate := range []float64{240, 1000} {
			got := make([]realCell, len(ways))
			for way := range measure.Turn(round, len(ways)) {
				got[way] = runRealCell(t, nodes, ways[way], rate, lasting)
			}
			t.Logf("%v req/s: one active copy %.3v, two %.3v, least request over all %.3v, round robin %.3v", rate, got[one], got[two], got[all], got[robin])
			for _, g := range gates {
				if g.rate == rate {
					servertest.Add(t, samples, g.name, g.figure(got[g.of])/g.figure(got[g.to]))
				}
			}
		}
	}
	for _, g := range gates {
		servertest.Judge(t, g.name, measure.AtMost(g.most), samples.Of(g.name))
	}
}

func deviceTime(c realCell) float64 { return c.device }

func halfTime(c realCell) float64 { return c.p50.Seconds() }

// startEnvoy starts an Envoy that routes each model to its active copies, and to spare ones if those
// fail. It returns its URL.
func startEnvoy(t *testing.T, binary, balance string, plan *placement.Plan, nodes []string) string {
	t.Helper()
	type object = map[string]any
	port := servertest.FreePort(t)
	endpoint := func(host string, port int) object {
		return object{"endpoint": object{"address": object{"socket_address": object{"address": host, "port_value": port}}}}
	}
	var routes, clusters []any
	for _, p := range plan.Models {
		priorities := [2][]any{}
		for _, c := range p.Copies {
			var node int
			if _, err := fmt.Sscanf(c.Node, "node-%d", &node); err != nil {
				t.Fatal(err)
			}
			host, service, _ := net.SplitHostPort(nodes[node])
			var number int
			if _, err := fmt.Sscan(service, &number); err != nil {
				t.Fatal(err)
			}
			priority := 1
			if c.Active {
				priority = 0
			}
			priorities[priority] = append(priorities[priority], endpoint(host, number))
		}
		localities := []any{}
		for i, all := range priorities {
			if len(all) > 0 {
				localities = append(localities, object{"priority": i, "lb_endpoints": all})
			}
		}
		clusters = append(clusters, object{
			"name": p.Model, "type": "STATIC", "lb_policy": balance, "connect_timeout": "1s",
			"load_assignment": object{"cluster_name": p.Model, "endpoints": localities},
		})
		routes = append(routes, object{"match": object{"prefix": "/v2/models/" + p.Model + "/"}, "route": object{"cluster": p.Model}})
	}
	manager := object{
		"@type":       "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
		"stat_prefix": "cell", "route_config": object{"virtual_hosts": []any{object{"name": "all", "domains": []string{"*"}, "routes": routes}}},
		"http_filters": []any{object{"name": "envoy.filters.http.router", "typed_config": object{"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}}},
	}
	bootstrap, err := json.Marshal(object{"static_resources": object{
		"listeners": []any{object{
			"name": "cell", "address": object{"socket_address": object{"address": "127.0.0.1", "port_value": port}},
			"filter_chains": []any{object{"filters": []any{object{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}}}},
		}},
		"clusters": clusters,
	}})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "envoy.json")
	if err := os.WriteFile(file, bootstrap, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(binary, "-c", file, "--use-dynamic-base-id", "--concurrency", "1", "-l", "warning")
	cmd.Stderr = t.Output()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { servertest.Kill(cmd) })
	url := fmt.Sprintf("http://127.0.0.1:%d", port)
	servertest.Eventually(t, "Envoy answers", func() bool {
		r, err := (&http.Client{Timeout: time.Second}).Get(url + "/v2/models/m0/ready")
		if err != nil {
			return false
		}
		_ = r.Body.Close()
		return r.StatusCode == http.StatusOK
	})
	return url
}

// transportOverhead returns how much longer a single request takes than its batch.
func transportOverhead(t *testing.T, address string) time.Duration {
	t.Helper()
	c := newClient(t, address)
	var took []time.Duration
	for range 40 {
		began := time.Now()
		if _, err := c.Infer(t.Context(), servertest.SmallRequest("m0", 1)); err != nil {
			t.Fatal(err)
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	return max(0, took[len(took)/2]-cellCurve.Takes(1))
}

func newClient(t *testing.T, address string) *client.Client {
	t.Helper()
	c, err := client.NewHTTP(address, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// realCell is what the real nodes did.
type realCell struct {
	batch, device float64
	p50           time.Duration
}

// runRealCell sends requests at random times, the same number to each model in the mean.
func runRealCell(t *testing.T, nodes []*servertest.Server, address string, rate float64, lasting time.Duration) realCell {
	t.Helper()
	c := newClient(t, address)
	chance := rand.New(rand.NewPCG(1, uint64(rate)))
	var mu sync.Mutex
	var took []time.Duration
	var sent sync.WaitGroup
	began := time.Now()
	warm := lasting / 4
	var before, after map[int]servertest.Batches
	for next := time.Duration(0); next < lasting; next += time.Duration(chance.ExpFloat64() / rate * float64(time.Second)) {
		time.Sleep(time.Until(began.Add(next)))
		if before == nil && next >= warm {
			before = batchesOf(nodes)
		}
		req, counts := servertest.SmallRequest(fmt.Sprint("m", chance.IntN(cellModels)), 1), next >= warm
		sent.Go(func() {
			began := time.Now()
			if _, err := c.Infer(t.Context(), req); err != nil {
				t.Error(err)
			} else if counts {
				mu.Lock()
				took = append(took, time.Since(began))
				mu.Unlock()
			}
		})
	}
	measured := time.Since(began) - warm
	after = batchesOf(nodes)
	sent.Wait()
	rows, batches, busy := 0, 0, time.Duration(0)
	for size, b := range after {
		n := b.Count - before[size].Count
		rows += size * n
		batches += n
		busy += b.Took - before[size].Took
	}
	slices.Sort(took)
	return realCell{float64(rows) / float64(batches), busy.Seconds() / measured.Seconds() / cellNodes, took[len(took)/2]}
}

// batchesOf adds up the batches of all models and nodes.
func batchesOf(nodes []*servertest.Server) map[int]servertest.Batches {
	all := map[int]servertest.Batches{}
	for _, n := range nodes {
		for i := range cellModels {
			for size, b := range n.Batches(fmt.Sprint("m", i)) {
				sum := all[size]
				sum.Count += b.Count
				sum.Took += b.Took
				all[size] = sum
			}
		}
	}
	return all
}
