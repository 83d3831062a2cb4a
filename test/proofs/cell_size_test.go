//go:build e2e && proofs && linux

package proofs

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/shoal-serving/shoal/internal/discovery"
	"github.com/shoal-serving/shoal/internal/node"
	"github.com/shoal-serving/shoal/test/servertest"
)

// The size that a cell must bear.
const (
	manyNodes  = 1000
	manyModels = 10_000
	manyEnvoys = 50
)

// A pretendedNode is a page, carries out orders in 50 ms, and answers requests at once.
type pretendedNode struct {
	mu      sync.Mutex
	page    node.Page
	changes int
	changed chan struct{}
}

// change changes the page, and wakes its readers.
func (n *pretendedNode) change(do func(p *node.Page)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	do(&n.page)
	n.changes++
	close(n.changed)
	n.changed = make(chan struct{})
}

func drop(p *node.Page, model string) {
	p.Models = slices.DeleteFunc(slices.Clone(p.Models), func(m node.Model) bool { return m.Name == model })
}

func hold(p *node.Page, model string, rate float64) {
	drop(p, model)
	p.Models = append(p.Models, node.Model{Name: model, Version: "1", State: "READY", Bytes: 100 << 20, Rate: rate, Requests: 1})
	slices.SortFunc(p.Models, func(a, b node.Model) int { return strings.Compare(a.Name, b.Name) })
}

func (n *pretendedNode) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if parts := strings.Split(r.URL.Path, "/"); r.Method == http.MethodPost {
		if parts[len(parts)-1] == "infer" {
			_, _ = io.Copy(io.Discard, r.Body)
			_, _ = io.WriteString(w, "{}")
			return
		}
		time.Sleep(50 * time.Millisecond)
		n.change(func(p *node.Page) {
			if model := parts[len(parts)-2]; parts[len(parts)-1] == "load" {
				hold(p, model, 0)
			} else {
				drop(p, model)
			}
		})
		return
	}
	wait, _ := time.ParseDuration(r.URL.Query().Get("wait"))
	timeout := time.NewTimer(wait)
	defer timeout.Stop()
	for {
		n.mu.Lock()
		tag, changed := fmt.Sprintf(`"%d"`, n.changes), n.changed
		body, err := json.Marshal(&n.page)
		n.mu.Unlock()
		if err == nil && tag != r.Header.Get("If-None-Match") {
			w.Header().Set("ETag", tag)
			_, _ = w.Write(body)
			return
		}
		select {
		case <-changed:
		case <-timeout.C:
			w.WriteHeader(http.StatusNotModified)
			return
		case <-r.Context().Done():
			return
		}
	}
}

// nodeIP returns the address of a node: all of 127.0.0.0/8 is this machine.
func nodeIP(i int) string { return fmt.Sprintf("127.1.%d.%d", i/250, i%250+1) }

// A watchedChange is a copy that a node has lost.
type watchedChange struct {
	began time.Time
	ip    string
}

// A pretendedCell is a real cell of pretended nodes.
type pretendedCell struct {
	nodes    []*pretendedNode
	api, xds string // where the cell listens
	cmd      *exec.Cmd
}

// startPretendedCell starts a cell with this process as its nodes, and returns when all models have
// two active copies and a spare, each in another zone.
func startPretendedCell(t *testing.T) *pretendedCell {
	t.Helper()
	c := &pretendedCell{nodes: make([]*pretendedNode, manyNodes), api: servertest.FreeAddress(t), xds: servertest.FreeAddress(t)}
	listener, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	port := listener.Addr().(*net.TCPAddr).Port
	var file strings.Builder
	file.WriteString("nodes:\n")
	byIP := map[string]*pretendedNode{}
	for i := range c.nodes {
		c.nodes[i] = &pretendedNode{page: node.Page{ID: fmt.Sprint("n", i), Zone: fmt.Sprint("zone-", i%3), Memory: 64 << 30, Ready: true}, changed: make(chan struct{})}
		byIP[nodeIP(i)] = c.nodes[i]
		fmt.Fprintf(&file, "  - {name: n%04d, http: \"%s:%d\"}\n", i, nodeIP(i), port)
	}
	file.WriteString("models:\n")
	for m := range manyModels {
		for zone := range 3 {
			hold(&c.nodes[homeOf(m, zone)].page, fmt.Sprint("m", m), []float64{1, 1, 0}[zone])
		}
		fmt.Fprintf(&file, "  m%d: {}\n", m)
	}
	web := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, _ := net.SplitHostPort(r.Context().Value(http.LocalAddrContextKey).(net.Addr).String())
		ip := strings.TrimPrefix(host, "::ffff:")
		w.Header().Set("Node", ip)
		byIP[ip].ServeHTTP(w, r)
	})}
	go func() { _ = web.Serve(listener) }()
	t.Cleanup(func() { _ = web.Close() })

	path := filepath.Join(t.TempDir(), "cell.yaml")
	if err := os.WriteFile(path, []byte(file.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	c.cmd = exec.Command(filepath.Join(servertest.Root, "bin", "shoal"), "cell", path, "--address", c.api, "--xds-address", c.xds, "--state", filepath.Join(t.TempDir(), "state"))
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	c.cmd.Stderr = log
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { servertest.Kill(c.cmd); _ = log.Close() })
	servertest.Eventually(t, "the cell has the plan that the nodes follow", func() bool {
		text := cellMetrics(c.api)
		return strings.Contains(text, "shoal_cell_copies 30000\n") && strings.Contains(text, "shoal_cell_copies_missing 0\n")
	})
	return c
}

// homeOf returns the node that holds a model in a zone at first.
func homeOf(model, zone int) int { return 3*((model*5+zone*71)%333) + zone }

// loseCopies takes an active copy from a node, twenty times per second, until the time is over, and
// says before which and from where. The cell has the node load the model again.
func (c *pretendedCell) loseCopies(lasting time.Duration, about func(model, from string)) (losses int) {
	for began := time.Now(); time.Since(began) < lasting; losses++ {
		number := losses * 7 % manyModels
		model, i := fmt.Sprint("m", number), homeOf(number, 0)
		about(model, nodeIP(i))
		c.nodes[i].change(func(p *node.Page) { drop(p, model) })
		time.Sleep(time.Until(began.Add(time.Duration(losses+1) * 50 * time.Millisecond)))
	}
	return losses
}

// TestProofACellOfAThousandNodes runs a cell with this process as its nodes and its Envoys, each of
// which has asked for all models. Twenty times per second a node loses a copy; the test measures
// how long the change takes from the node's page to each Envoy.
func TestProofACellOfAThousandNodes(t *testing.T) {
	c := startPretendedCell(t)
	var watched sync.Map // of *watchedChange by model
	var mu sync.Mutex
	var took []time.Duration
	var asked sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	var envoys sync.WaitGroup
	for range manyEnvoys {
		asked.Add(1)
		envoys.Go(func() {
			watchEndpoints(ctx, t, c.xds, sync.OnceFunc(asked.Done), func(model string, a *endpointv3.ClusterLoadAssignment) {
				change, known := watched.Load(model)
				if !known || strings.Contains(a.String(), change.(*watchedChange).ip+`"`) {
					return
				}
				mu.Lock()
				defer mu.Unlock()
				took = append(took, time.Since(change.(*watchedChange).began))
			})
		})
	}
	asked.Wait()
	t.Logf("%d Envoys have asked for %d models", manyEnvoys, manyModels)
	envoys.Go(func() { changeRates(ctx, c.nodes) })
	time.Sleep(3 * time.Second) // what the Envoys asked for has been sent

	lasting := servertest.StrictOr(60*time.Second, 10*time.Second)
	process := &servertest.Server{T: t, Cmd: c.cmd}
	cpu, began := process.Usage().CPU, time.Now()
	changes := c.loseCopies(lasting, func(model, from string) { watched.Store(model, &watchedChange{time.Now(), from}) })
	elapsed := time.Since(began)
	usage := process.Usage()
	servertest.Eventually(t, "all changes have arrived", func() bool { mu.Lock(); defer mu.Unlock(); return len(took) >= changes*manyEnvoys })
	cancel()
	envoys.Wait()
	slices.Sort(took)
	p50, p99 := took[len(took)/2], took[len(took)*99/100]
	cores := (usage.CPU - cpu).Seconds() / elapsed.Seconds()
	t.Logf("figures: %d nodes, %d models, %d Envoys, %.1f changes/s: p50 %v, p99 %v, most %v; the cell used %.2f cores and %d MiB",
		manyNodes, manyModels, manyEnvoys, float64(changes)/elapsed.Seconds(), p50.Round(time.Millisecond), p99.Round(time.Millisecond), took[len(took)-1].Round(time.Millisecond), cores, usage.Memory>>20)
	if limit := servertest.StrictOr(500*time.Millisecond, 5*time.Second); p99 > limit {
		t.Errorf("p99 %v, want at most %v", p99, limit)
	}
	if limit := servertest.StrictOr(1.0, 2); cores > limit || usage.Memory > 1<<30 {
		t.Errorf("%.2f cores and %d MiB, want at most %.0f and 1024", cores, usage.Memory>>20, limit)
	}
}

// drainNodes drains one node after the other until the time is over, so that the cell moves twenty
// copies per second to others. It says before which node, and which models are on it.
func (c *pretendedCell) drainNodes(lasting time.Duration, about func(ip string, models []string)) {
	const copies = 3 * manyModels / manyNodes // of each node
	for n, began := 0, time.Now(); time.Since(began) < lasting; n++ {
		i := n * 37 % manyNodes
		c.nodes[i].change(func(p *node.Page) {
			var models []string
			for _, m := range p.Models {
				models = append(models, m.Name)
			}
			about(nodeIP(i), models)
			p.Draining = true
		})
		time.Sleep(time.Until(began.Add(time.Duration(n+1) * copies * 50 * time.Millisecond)))
	}
}

var loadsOrdered = regexp.MustCompile(`(?m)^shoal_cell_orders_total\{order="load"\} (\d+)$`)

// loads returns how many loads the cell has ordered.
func (c *pretendedCell) loads(t *testing.T) float64 {
	t.Helper()
	m := loadsOrdered.FindStringSubmatch(cellMetrics(c.api))
	if m == nil {
		t.Fatal("the cell has no metric for orders")
	}
	n, err := strconv.ParseFloat(m[1], 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestProofEnvoyWhileModelsMove sends requests through a real Envoy, which has asked for every model
// of the cell, while nodes are drained. Half of the requests are for models that move.
func TestProofEnvoyWhileModelsMove(t *testing.T) {
	servertest.EnvoyBinary(t)
	c := startPretendedCell(t)
	envoy := &servertest.Envoy{Proxy: servertest.FreeAddress(t), Admin: servertest.FreeAddress(t), XDS: []string{c.xds}, Flags: []string{"--use-dynamic-base-id"}}
	process := &servertest.Server{T: t, Cmd: envoy.Start(t)}
	web := &http.Client{Timeout: time.Minute, Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	ask := func(model string) (node string, took time.Duration, err error) {
		began := time.Now()
		resp, err := web.Post("http://"+envoy.Proxy+"/v2/models/"+model+"/infer", "application/json", strings.NewReader(`{"inputs":[]}`))
		if err != nil {
			return "", 0, err
		}
		defer func() { _ = resp.Body.Close() }()
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			return "", 0, err
		}
		if resp.StatusCode != http.StatusOK {
			return "", 0, fmt.Errorf("status %d", resp.StatusCode)
		}
		return resp.Header.Get("Node"), time.Since(began), nil
	}
	servertest.Eventually(t, "Envoy answers", func() bool { _, _, err := ask("m0"); return err == nil })
	began := time.Now()
	models := make(chan int)
	var askers sync.WaitGroup
	for range 16 {
		askers.Go(func() {
			for m := range models {
				if _, _, err := ask(fmt.Sprint("m", m)); err != nil {
					t.Errorf("model %d: %v", m, err)
				}
			}
		})
	}
	for m := range manyModels {
		models <- m
	}
	close(models)
	askers.Wait()
	t.Logf("figures: Envoy found %d models in %v, and has %d MiB", manyModels, time.Since(began).Round(time.Millisecond), process.Usage().Memory>>20)

	var mu sync.Mutex
	var moving []string               // models of the nodes that were drained last
	drained := map[string]time.Time{} // by address of the node
	lasting := servertest.StrictOr(60*time.Second, 10*time.Second)
	// run sends 400 requests per second and counts what took longer than 100 ms, and what a node
	// answered that had been drained for five seconds.
	run := func() (all []time.Duration, late, stale int) {
		var running sync.WaitGroup
		random := rand.New(rand.NewPCG(1, 2))
		began := time.Now()
		for n := 0; time.Since(began) < lasting; n++ {
			mu.Lock()
			model := fmt.Sprint("m", random.IntN(manyModels/5)) // Envoy keeps a connection for each model and node: not all may fit
			if n%2 == 0 && len(moving) > 0 {
				model = moving[len(moving)-1-random.IntN(min(60, len(moving)))]
			}
			mu.Unlock()
			running.Go(func() {
				sent := time.Now()
				node, took, err := ask(model)
				if err != nil {
					t.Errorf("%s: %v", model, err)
					return
				}
				mu.Lock()
				defer mu.Unlock()
				all = append(all, took)
				if took > 100*time.Millisecond {
					late++
				}
				if at, found := drained[node]; found && sent.Sub(at) > 5*time.Second {
					stale++
				}
			})
			time.Sleep(time.Until(began.Add(time.Duration(n+1) * 2500 * time.Microsecond)))
		}
		running.Wait()
		slices.Sort(all)
		return all, late, stale
	}
	quiet, before, _ := run()
	loads, began := c.loads(t), time.Now()
	var draining sync.WaitGroup
	draining.Go(func() {
		c.drainNodes(lasting, func(ip string, models []string) {
			mu.Lock()
			defer mu.Unlock()
			moving = append(moving, models...)
			drained[ip] = time.Now()
		})
	})
	all, late, stale := run()
	draining.Wait()
	moves := (c.loads(t) - loads) / time.Since(began).Seconds()
	t.Logf("figures: %d requests without moves: p50 %v, p99 %v, most %v, %d over 100 ms; %d with %.1f moves/s: p50 %v, p99 %v, most %v, %d over 100 ms; a node that had been drained for 5 s answered %d; Envoy has %d MiB",
		len(quiet), quiet[len(quiet)/2], quiet[len(quiet)*99/100], quiet[len(quiet)-1], before,
		len(all), moves, all[len(all)/2], all[len(all)*99/100], all[len(all)-1], late, stale, process.Usage().Memory>>20)
	if late > before { // what is late without a move is not late because of one
		t.Errorf("%d requests took over 100 ms, and %d did without moves", late, before)
	}
	if stale > 0 || moves < 15 {
		t.Errorf("%d requests went to nodes that had been drained for 5 s; %.1f moves/s, want 20", stale, moves)
	}
}

// changeRates lets each node report other rates every ten seconds, as real ones do.
func changeRates(ctx context.Context, nodes []*pretendedNode) {
	tick := time.NewTicker(10 * time.Second / manyNodes)
	defer tick.Stop()
	for i := 0; ; i++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		nodes[i%len(nodes)].change(func(p *node.Page) {
			p.Models = slices.Clone(p.Models)
			for j := range p.Models {
				p.Models[j].Rate *= 0.9 + 0.2*float64(i%2)
			}
		})
	}
}

// watchEndpoints asks for the endpoints of all models, as an Envoy that has served all of them, and
// reports those that change.
func watchEndpoints(ctx context.Context, t *testing.T, address string, first func(), changed func(model string, a *endpointv3.ClusterLoadAssignment)) {
	defer first()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)))
	if err != nil {
		t.Error(err)
		return
	}
	defer func() { _ = conn.Close() }()
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx)
	if err != nil {
		t.Error(err)
		return
	}
	request := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: discovery.Endpoints}
	for m := range manyModels {
		request.ResourceNamesSubscribe = append(request.ResourceNamesSubscribe, "http/m"+strconv.Itoa(m))
	}
	for {
		if err := stream.Send(request); err != nil {
			return
		}
		response, err := stream.Recv()
		if err != nil {
			return
		}
		first()
		for _, r := range response.GetResources() {
			a := &endpointv3.ClusterLoadAssignment{}
			if len(response.GetResources()) == manyModels {
				break // the first ones
			}
			if err := r.GetResource().UnmarshalTo(a); err != nil {
				t.Error(err)
				return
			}
			changed(strings.TrimPrefix(r.GetName(), "http/"), a)
		}
		request = &discoveryv3.DeltaDiscoveryRequest{TypeUrl: discovery.Endpoints, ResponseNonce: response.GetNonce()}
	}
}

func cellMetrics(address string) string {
	resp, err := (&http.Client{Timeout: time.Minute}).Get("http://" + address + "/metrics")
	if err != nil {
		return ""
	}
	defer func() { _ = resp.Body.Close() }()
	text, _ := io.ReadAll(resp.Body) // what is missing is asked for again
	return string(text)
}
