//go:build e2e && proofs && linux

package proofs

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
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

// A pretendedNode is a page, and carries out orders in 50 ms.
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

// TestProofACellOfAThousandNodes runs a cell with this process as its nodes and its Envoys, each of
// which has asked for all models. Twenty times per second a node loses a copy; the test measures
// how long the change takes from the node's page to each Envoy.
func TestProofACellOfAThousandNodes(t *testing.T) {
	nodes := make([]*pretendedNode, manyNodes)
	listener, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	port := listener.Addr().(*net.TCPAddr).Port
	var file strings.Builder
	file.WriteString("nodes:\n")
	byIP := map[string]*pretendedNode{}
	for i := range nodes {
		nodes[i] = &pretendedNode{page: node.Page{ID: fmt.Sprint("n", i), Zone: fmt.Sprint("zone-", i%3), Memory: 64 << 30, Ready: true}, changed: make(chan struct{})}
		byIP[nodeIP(i)] = nodes[i]
		fmt.Fprintf(&file, "  - {name: n%04d, http: \"%s:%d\"}\n", i, nodeIP(i), port)
	}
	file.WriteString("models:\n")
	for m := range manyModels { // two active copies and a spare, each in another zone
		for zone := range 3 {
			hold(&nodes[3*((m*5+zone*71)%333)+zone].page, fmt.Sprint("m", m), []float64{1, 1, 0}[zone])
		}
		fmt.Fprintf(&file, "  m%d: {}\n", m)
	}
	web := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, _ := net.SplitHostPort(r.Context().Value(http.LocalAddrContextKey).(net.Addr).String())
		byIP[strings.TrimPrefix(host, "::ffff:")].ServeHTTP(w, r)
	})}
	go func() { _ = web.Serve(listener) }()
	t.Cleanup(func() { _ = web.Close() })

	path := filepath.Join(t.TempDir(), "cell.yaml")
	if err := os.WriteFile(path, []byte(file.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	api, xds := servertest.FreeAddress(t), servertest.FreeAddress(t)
	cmd := exec.Command(filepath.Join(servertest.Root, "bin", "shoal"), "cell", path, "--address", api, "--xds-address", xds, "--state", filepath.Join(t.TempDir(), "state"))
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait(); _ = log.Close() })
	servertest.Eventually(t, "the cell has the plan that the nodes follow", func() bool {
		text := cellMetrics(api)
		return strings.Contains(text, "shoal_cell_copies 30000\n") && strings.Contains(text, "shoal_cell_copies_missing 0\n")
	})

	var watched sync.Map // of *watchedChange by model
	var mu sync.Mutex
	var took []time.Duration
	var asked sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	var envoys sync.WaitGroup
	for range manyEnvoys {
		asked.Add(1)
		envoys.Go(func() {
			watchEndpoints(ctx, t, xds, sync.OnceFunc(asked.Done), func(model string, a *endpointv3.ClusterLoadAssignment) {
				c, known := watched.Load(model)
				if !known || strings.Contains(a.String(), c.(*watchedChange).ip+`"`) {
					return
				}
				mu.Lock()
				defer mu.Unlock()
				took = append(took, time.Since(c.(*watchedChange).began))
			})
		})
	}
	asked.Wait()
	t.Logf("%d Envoys have asked for %d models", manyEnvoys, manyModels)
	envoys.Go(func() { changeRates(ctx, nodes) })
	time.Sleep(3 * time.Second) // what the Envoys asked for has been sent

	lasting := servertest.StrictOr(60*time.Second, 10*time.Second)
	process := &servertest.Server{T: t, Cmd: cmd}
	cpu, began, changes := process.Usage().CPU, time.Now(), 0
	for ; time.Since(began) < lasting; changes++ {
		model := fmt.Sprint("m", changes*7%manyModels)
		i := 3 * ((changes * 7 * 5) % 333) // its copy in zone 0, which is active
		watched.Store(model, &watchedChange{time.Now(), nodeIP(i)})
		nodes[i].change(func(p *node.Page) { drop(p, model) })
		time.Sleep(time.Until(began.Add(time.Duration(changes+1) * 50 * time.Millisecond)))
	}
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
