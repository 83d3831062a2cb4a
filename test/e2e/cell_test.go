//go:build e2e && linux

package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/client"
	"github.com/shoal-serving/shoal/internal/cell"
	"github.com/shoal-serving/shoal/internal/identity/identitytest"
	"github.com/shoal-serving/shoal/internal/placement"
	"github.com/shoal-serving/shoal/test/servertest"
)

// A cellUnderTest has real nodes, a real Envoy, and the processes that decide.
type cellUnderTest struct {
	t     *testing.T
	nodes []*servertest.Server
	file  string // cell.yaml
	state string
	proxy string // host:port of Envoy
	admin string
	// adapt changes the template of Envoy's file; nil leaves it as it is.
	adapt func(template string) string

	mu  sync.Mutex // guards the following
	log []string   // of all cells
}

// simulatedModel computes for some milliseconds on the device that all models of a node share.
const simulatedModel = `backend: "simulated"
max_batch_size: 8
version_policy { all { } }
input [ { name: "INPUT" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "OUTPUT" data_type: TYPE_FP32 dims: [ 4 ] } ]
dynamic_batching { }
parameters { key: "device" value { string_value: "0" } }
parameters { key: "fixed_us" value { string_value: "3000" } }
parameters { key: "per_row_us" value { string_value: "300" } }`

// newCell starts nodes that hold nothing, and writes the cell's file: models m0 and so on with
// two copies, and cold with none.
func newCell(t *testing.T, nodes, models int, flags ...string) *cellUnderTest {
	t.Helper()
	configs, wanted := map[string]string{"cold": simulatedModel}, "models:\n  cold: {}\n"
	for i := range models {
		configs[fmt.Sprint("m", i)] = simulatedModel
		wanted += fmt.Sprintf("  m%d: {copies: 2, objective: 100ms}\n", i)
	}
	repository := servertest.Repository(t, configs)
	if err := os.Mkdir(filepath.Join(repository, "m0", "2"), 0o700); err != nil { // both versions are loaded
		t.Fatal(err)
	}
	return newCellOf(t, repository, wanted, nodes, flags...)
}

// newCellOf starts nodes with the given repository, and writes the cell's file.
func newCellOf(t *testing.T, repository, wanted string, nodes int, flags ...string) *cellUnderTest {
	t.Helper()
	servertest.EnvoyBinary(t)
	c := &cellUnderTest{t: t}
	text := wanted + "nodes:\n"
	for i := range nodes {
		s := servertest.Listening(t, repository, append(flags, "--model-control-mode=demand", fmt.Sprint("--zone=zone-", i))...)
		c.nodes = append(c.nodes, s)
		text += fmt.Sprintf("  - {name: node-%d, http: %q, grpc: %q}\n", i, strings.TrimPrefix(s.HTTP, "http://"), s.GRPC)
	}
	c.file = writeFile(t, "cell.yaml", text)
	c.state = filepath.Join(t.TempDir(), "state.json")
	return c
}

// edit changes the cell's file.
func (c *cellUnderTest) edit(change func(text string) string) {
	c.t.Helper()
	text, err := os.ReadFile(c.file)
	if err == nil {
		err = os.WriteFile(c.file, []byte(change(string(text))), 0o600)
	}
	if err != nil {
		c.t.Fatal(err)
	}
}

var cellListens = regexp.MustCompile(`protocol=(cell|grpc) address=(\S+)`)

// start runs `shoal cell`, and returns it and where it listens.
func (c *cellUnderTest) start(flags ...string) (cmd *exec.Cmd, api, xds string) {
	c.t.Helper()
	cmd = exec.Command(filepath.Join(servertest.Root, "bin", "shoal"), append([]string{"cell", c.file}, flags...)...)
	out, err := cmd.StderrPipe()
	if err != nil {
		c.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { servertest.Kill(cmd) })
	lines := bufio.NewScanner(out)
	addresses := map[string]string{}
	for lines.Scan() {
		_, _ = fmt.Fprintln(c.t.Output(), "cell:", lines.Text())
		if m := cellListens.FindStringSubmatch(lines.Text()); m != nil {
			addresses[m[1]] = m[2]
		}
		if len(addresses) == 2 {
			go func() {
				for lines.Scan() {
					c.mu.Lock()
					c.log = append(c.log, lines.Text())
					c.mu.Unlock()
					_, _ = fmt.Fprintln(c.t.Output(), "cell:", lines.Text())
				}
			}()
			return cmd, addresses["cell"], addresses["grpc"]
		}
	}
	c.t.Fatal("shoal cell does not run")
	return nil, "", ""
}

// startEnvoy runs Envoy with the template that users start from.
func (c *cellUnderTest) startEnvoy(xds ...string) *exec.Cmd {
	c.t.Helper()
	if c.proxy == "" {
		c.proxy, c.admin = servertest.FreeAddress(c.t), servertest.FreeAddress(c.t)
	}
	return c.runEnvoy(c.proxy, c.admin, []string{"--use-dynamic-base-id"}, xds...)
}

// runEnvoy runs an Envoy that listens at the given addresses.
func (c *cellUnderTest) runEnvoy(proxy, admin string, flags []string, xds ...string) *exec.Cmd {
	c.t.Helper()
	return (&servertest.Envoy{Proxy: proxy, Admin: admin, XDS: xds, Adapt: c.adapt, Flags: flags}).Start(c.t)
}

// status returns the cell's description.
func (c *cellUnderTest) status(api string) (d cell.Description) {
	c.t.Helper()
	out, err := exec.Command(filepath.Join(servertest.Root, "bin", "shoal"), "cell", "status", "--json", "-u", api).Output()
	if err != nil {
		c.t.Fatal(err)
	}
	if err := json.Unmarshal(out, &d); err != nil {
		c.t.Fatal(err)
	}
	return d
}

// awaitPlaced waits until every model but cold has two active copies.
func (c *cellUnderTest) awaitPlaced(api string) {
	c.t.Helper()
	servertest.Eventually(c.t, "all models have their copies", func() bool {
		d := c.status(api)
		for _, m := range d.Models {
			if m.Name != "cold" && len(m.Active) < 2 {
				return false
			}
		}
		return len(d.Models) > 0
	})
}

// stat returns a counter of Envoy, all clusters together.
func (c *cellUnderTest) stat(name string) (sum int) {
	c.t.Helper()
	return envoyStat(c.t, c.admin, name)
}

func envoyStat(t *testing.T, admin, name string) (sum int) {
	t.Helper()
	resp, err := (&http.Client{Timeout: time.Minute}).Get("http://" + admin + "/stats?filter=" + name)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if at, value, found := strings.Cut(strings.TrimSpace(line), ": "); found && strings.HasSuffix(at, "."+name) {
			n, err := strconv.Atoi(value)
			if err != nil {
				t.Fatal(err)
			}
			sum += n
		}
	}
	return sum
}

// A cellLoad asks for models through Envoy until it is stopped.
type cellLoad struct {
	requests, failures atomic.Int64
	stop               func()
	first              atomic.Pointer[error] // failure
}

// load starts clients, half of them over gRPC, that ask for one model after the other.
func (c *cellUnderTest) load(clients, models int) *cellLoad {
	c.t.Helper()
	l := &cellLoad{}
	ctx, cancel := context.WithCancel(c.t.Context())
	var running sync.WaitGroup
	for i := range clients {
		connect := client.NewHTTP
		if i%2 == 1 {
			connect = client.NewGRPC
		}
		asker, err := connect(c.proxy, client.Options{})
		if err != nil {
			c.t.Fatal(err)
		}
		running.Go(func() {
			defer func() { _ = asker.Close() }()
			for n := i; ctx.Err() == nil; n++ {
				one, done := context.WithTimeout(context.Background(), 20*time.Second)
				err := servertest.Ask(one, asker, fmt.Sprint("m", n%models), 1)
				done()
				l.requests.Add(1)
				if err != nil {
					l.failures.Add(1)
					l.first.CompareAndSwap(nil, &err)
				}
			}
		})
	}
	l.stop = sync.OnceFunc(func() { cancel(); running.Wait() })
	c.t.Cleanup(l.stop)
	return l
}

// check stops the load, and checks that no client noticed anything.
func (l *cellLoad) check(t *testing.T, what string) {
	t.Helper()
	l.stop()
	if n := l.failures.Load(); n > 0 {
		t.Errorf("%s: %d of %d requests failed, the first with: %v", what, n, l.requests.Load(), *l.first.Load())
	}
}

// A cell of three nodes behind Envoy: models answer over HTTP and gRPC, one is loaded by its
// first request, and a misspelt one is refused at once. Clients do not notice that a node is
// killed, that the cell is killed, or that it comes back.
func TestACellOfRealNodes(t *testing.T) {
	const models = 6
	c := newCell(t, 3, models)
	api := servertest.FreeAddress(t)
	xds := servertest.FreeAddress(t)
	flags := []string{"--state", c.state, "--address", api, "--xds-address", xds}
	decider, _, _ := c.start(flags...)
	c.startEnvoy(xds)
	c.awaitPlaced(api)
	web := c.connect(client.NewHTTP)
	rpc := c.connect(client.NewGRPC)
	servertest.Eventually(t, "Envoy answers", func() bool { return servertest.Ask(t.Context(), web, "m0", 1) == nil })
	for name, asker := range map[string]*client.Client{"HTTP": web, "gRPC": rpc} {
		for _, model := range []string{"m0", "m5", "cold"} {
			if err := servertest.Ask(t.Context(), asker, model, 1); err != nil {
				t.Errorf("%s over %s: %v", model, name, err)
			}
		}
	}
	c.refuses(t, "/v2/models/mistyped/ready", http.MethodGet, http.StatusNotFound)
	c.refuses(t, "/v2/repository/models/m0/unload", http.MethodPost, http.StatusForbidden)
	c.refuses(t, "/v2/repositor%79/models/m0/unload", http.MethodPost, http.StatusForbidden)

	before := c.status(api)
	victim := 0
	for i, n := range before.Nodes {
		if n.Copies > before.Nodes[victim].Copies {
			victim = i
		}
	}
	load := c.load(12, models)
	time.Sleep(2 * time.Second) // requests are under way everywhere
	began := time.Now()
	c.nodes[victim].Kill()
	servertest.Eventually(t, "the cell has noticed", func() bool { return c.status(api).Nodes[victim].State == "gone" })
	t.Logf("killed %s: the cell noticed after %v", before.Nodes[victim].Name, time.Since(began).Round(time.Millisecond))
	c.awaitPlaced(api)
	time.Sleep(time.Second)
	load.check(t, "a node was killed")
	retried, attempts := c.stat("upstream_rq_retry"), c.stat("upstream_rq_total")
	t.Logf("figures: SIGKILL of a node: %d requests, %d failed; Envoy retried %d, attempts per request %.4f", load.requests.Load(), load.failures.Load(), retried, float64(attempts)/float64(attempts-retried))
	if retried == 0 {
		t.Error("Envoy retried nothing: the node was killed between requests")
	}

	servertest.Eventually(t, "the plan without the node is on disk", func() bool {
		at := func(x placement.Copy) bool { return x.Node == before.Nodes[victim].Name }
		return !slices.ContainsFunc(c.readState().Plan.Models, func(m placement.Placement) bool { return slices.ContainsFunc(m.Copies, at) })
	})
	load = c.load(4, models)
	servertest.Kill(decider)
	time.Sleep(2 * time.Second) // without a cell
	if load.requests.Load() == 0 {
		t.Error("no request was answered without the cell")
	}
	old := c.readState()
	c.start(flags...)
	c.awaitPlaced(api)
	load.check(t, "the cell was killed, and came back")
	if now := c.status(api); now.Epoch != old.Epoch+1 || now.Version != old.Version {
		t.Errorf("plan %d of epoch %d after plan %d of epoch %d", now.Version, now.Epoch, old.Version, old.Epoch)
	}
	out, err := exec.Command(filepath.Join(servertest.Root, "bin", "shoal"), "cell", "why", "m0", "-u", api).CombinedOutput()
	servertest.Contains(t, "why", string(out), "active on", "active copies")
	if err != nil {
		t.Error(err)
	}
}

// A node that is stopped with SIGTERM finishes its requests, and gets no others.
func TestClientsOfACellDoNotNoticeSIGTERM(t *testing.T) {
	const models = 4
	c := newCell(t, 3, models)
	_, api, xds := c.start("--address", "127.0.0.1:0", "--xds-address", "127.0.0.1:0")
	c.startEnvoy(xds)
	c.awaitPlaced(api)
	web := c.connect(client.NewHTTP)
	servertest.Eventually(t, "Envoy answers", func() bool { return servertest.Ask(t.Context(), web, "m0", 1) == nil })
	load := c.load(12, models)
	time.Sleep(2 * time.Second) // requests are under way everywhere
	c.nodes[0].Terminate()
	if !c.nodes[0].EndsWithin(servertest.StartPatience) {
		t.Fatal("the node does not end")
	}
	servertest.Eventually(t, "the cell has noticed", func() bool { return c.status(api).Nodes[0].State == "gone" })
	c.awaitPlaced(api)
	time.Sleep(time.Second)
	load.check(t, "a node was stopped")
	t.Logf("figures: SIGTERM of a node: %d requests, %d failed; Envoy retried %d", load.requests.Load(), load.failures.Load(), c.stat("upstream_rq_retry"))
}

// The active copies of a model are full. What they refuse is answered by the spare copy, and
// only what is refused there too is refused to a client.
func TestRefusedRequestsOfACellAreAnsweredBySpareCopies(t *testing.T) {
	const clients = 12
	full := servertest.Config(300*time.Millisecond, "1", "dynamic_batching { default_queue_policy { max_queue_size: 1 } }")
	c := newCellOf(t, servertest.Repository(t, map[string]string{"m0": full}), "models:\n  m0: {copies: 2}\n", 3)
	_, api, xds := c.start("--address", "127.0.0.1:0", "--xds-address", "127.0.0.1:0")
	c.startEnvoy(xds)
	servertest.Eventually(t, "two copies are active, and one is spare", func() bool {
		d := c.status(api).Models
		return len(d) == 1 && len(d[0].Active) == 2 && len(d[0].Spare) == 1
	})
	spare := c.nodes[slices.IndexFunc(c.status(api).Nodes, func(n cell.NodeDescription) bool { return n.Name == c.status(api).Models[0].Spare[0] })]
	direct, err := client.NewHTTP(spare.HTTP, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = direct.Close() }()
	answered := func() uint64 {
		t.Helper()
		all, err := direct.Statistics(t.Context(), "m0", "")
		if err != nil {
			t.Fatal(err)
		}
		return all[0].Success.Count
	}
	for name, connect := range map[string]func(string, client.Options) (*client.Client, error){"HTTP": client.NewHTTP, "gRPC": client.NewGRPC} {
		asker := c.connect(connect)
		servertest.Eventually(t, "Envoy answers", func() bool { return servertest.Ask(t.Context(), asker, "m0", 1) == nil })
		before := answered()
		for range 3 {
			if err := servertest.Ask(t.Context(), asker, "m0", 1); err != nil {
				t.Fatal(err)
			}
		}
		if n := answered() - before; n != 0 {
			t.Errorf("%s: %d requests were answered by the spare copy while the active ones were idle", name, n)
		}
		before = answered()
		var succeeded atomic.Int64
		var running sync.WaitGroup
		for range clients {
			running.Go(func() {
				if err := servertest.Ask(t.Context(), asker, "m0", 1); err == nil {
					succeeded.Add(1)
				}
			})
		}
		running.Wait()
		bySpare := answered() - before
		t.Logf("figures: %d requests at once over %s: %d answered, %d of them by the spare copy", clients, name, succeeded.Load(), bySpare)
		if bySpare == 0 {
			t.Errorf("%s: %d requests were answered, none of them by the spare copy", name, succeeded.Load())
		}
	}
}

// Requests of a model are split between its versions, and a change of the file is a rollback.
func TestACellSplitsTrafficBetweenVersions(t *testing.T) {
	c := newCell(t, 2, 1)
	text, err := os.ReadFile(c.file)
	if err != nil {
		t.Fatal(err)
	}
	write := func(split string) {
		changed := strings.Replace(string(text), "m0: {copies: 2,", "m0: {copies: 2, split: {"+split+"},", 1)
		if err := os.WriteFile(c.file, []byte(changed), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("1: 50, 2: 50")
	_, api, xds := c.start("--address", "127.0.0.1:0", "--xds-address", "127.0.0.1:0")
	c.startEnvoy(xds)
	c.awaitPlaced(api)
	askers := []*client.Client{c.connect(client.NewHTTP), c.connect(client.NewGRPC)}
	servertest.Eventually(t, "Envoy answers", func() bool { return servertest.Ask(t.Context(), askers[0], "m0", 1) == nil })
	count := func(asker *client.Client, n int) map[string]int {
		t.Helper()
		seen := map[string]int{}
		for range n {
			resp, err := asker.Infer(t.Context(), servertest.SmallRequest("m0", 1))
			if err != nil {
				t.Fatal(err)
			}
			seen[resp.Version]++
		}
		return seen
	}
	for _, asker := range askers {
		if seen := count(asker, 100); seen["1"] < 20 || seen["2"] < 20 || seen["1"]+seen["2"] != 100 {
			t.Errorf("100 requests by version: %v, want about half each", seen)
		}
	}
	write("1: 100, 2: 0")
	began := time.Now()
	servertest.Eventually(t, "version 2 gets no requests", func() bool { return count(askers[0], 20)["2"] == 0 })
	t.Logf("figures: a split was changed within %v", time.Since(began).Round(time.Millisecond))
	for _, asker := range askers {
		if seen := count(asker, 100); seen["1"] != 100 {
			t.Errorf("100 requests by version after the rollback: %v", seen)
		}
	}
}

// A node that stands still takes no hedged model with it: requests go to the other one, too.
func TestACellWithANodeThatStandsStill(t *testing.T) {
	c := newCell(t, 2, 1)
	c.edit(func(text string) string {
		return strings.Replace(text, "m0: {copies: 2,", "m0: {copies: 2, hedge: 300ms,", 1)
	})
	_, api, xds := c.start("--address", "127.0.0.1:0", "--xds-address", "127.0.0.1:0")
	c.startEnvoy(xds)
	c.awaitPlaced(api)
	web := c.connect(client.NewHTTP)
	servertest.Eventually(t, "Envoy answers", func() bool { return servertest.Ask(t.Context(), web, "m0", 1) == nil })
	load := c.load(8, 1)
	time.Sleep(time.Second) // requests are under way everywhere
	still := c.nodes[0].Cmd.Process
	if err := still.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	before := load.requests.Load()
	time.Sleep(5 * time.Second) // the node stands still
	answered := load.requests.Load() - before
	if err := still.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	load.check(t, "a node stood still")
	t.Logf("figures: SIGSTOP of one of two nodes for 5 s: %d requests meanwhile, %d failed; Envoy ejected it %d times, and retried %d", answered, load.failures.Load(),
		c.stat("ejections_enforced_total"), c.stat("upstream_rq_retry"))
	if answered < 50 { // without a hedge, all eight clients would wait for the node
		t.Errorf("%d requests were answered while the node stood still", answered)
	}
}

// Nodes that encrypt connections and ask for certificates: the cell has one that may load
// models, and Envoy one that may run them.
func TestACellWithMutualTLS(t *testing.T) {
	ca := identitytest.NewCA(t)
	cert, key := ca.Issue(t, "node")
	cellCert, cellKey := ca.Issue(t, "cell")
	envoyCert, envoyKey := ca.Issue(t, "envoy")
	access := writeFile(t, "access.yaml", "version: 1\ngrants: [{to: [\"certificate:cell\"], role: admin}, {to: [\"certificate:envoy\"], role: infer}]\n")
	c := newCell(t, 2, 1, "--tls-cert="+cert, "--tls-key="+key, "--tls-client-ca="+ca.Path, "--access="+access)
	_, api, xds := c.start("--address", "127.0.0.1:0", "--xds-address", "127.0.0.1:0", "--ca", ca.Path, "--cert", cellCert, "--cert-key", cellKey,
		"--envoy-ca", ca.Path, "--envoy-cert", envoyCert, "--envoy-cert-key", envoyKey)
	c.startEnvoy(xds)
	c.awaitPlaced(api)
	for name, asker := range map[string]*client.Client{"HTTP": c.connect(client.NewHTTP), "gRPC": c.connect(client.NewGRPC)} {
		servertest.Eventually(t, "m0 answers over "+name, func() bool { return servertest.Ask(t.Context(), asker, "m0", 1) == nil })
	}
}

// The demo is what it says: a node is killed, and its clients do not notice.
func TestTheDemoOfACell(t *testing.T) {
	if _, err := os.Stat(filepath.Join(servertest.Root, "bin", "envoy")); err != nil {
		t.Skip("there is no bin/envoy: run tools/get-envoy")
	}
	tool := filepath.Join(servertest.Root, "tools", "cell-demo")
	demo := exec.Command(tool)
	out, err := demo.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	demo.Stderr = t.Output()
	if err := demo.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for asked := false; lines.Scan(); {
		if !asked && strings.Contains(lines.Text(), " requests, ") {
			asked = true
			text, err := exec.Command(tool, "kill").CombinedOutput()
			t.Logf("figures: the demo: %s", strings.ReplaceAll(strings.TrimSpace(string(text)), "\n", "; "))
			if err != nil {
				t.Errorf("%v: %s", err, text)
			}
			if err := demo.Process.Signal(syscall.SIGTERM); err != nil {
				t.Error(err)
			}
		}
	}
	if err := demo.Wait(); err != nil {
		t.Errorf("the demo ended with %v", err)
	}
}

// A follower serves Envoys while the cell is down, and an old cell that wakes up is refused: it
// has not read any page since, so that it orders what the new one did long ago.
func TestAFollowerAndAnOldCell(t *testing.T) {
	c := newCell(t, 2, 2)
	direct, way := c.file, &heldPages{}
	proxied, err := os.ReadFile(direct)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range c.nodes {
		address := strings.TrimPrefix(n.HTTP, "http://")
		proxied = bytes.Replace(proxied, []byte(strconv.Quote(address)), []byte(strconv.Quote(way.listen(t, address))), 1)
	}
	c.file = writeFile(t, "old.yaml", string(proxied))
	decider, api, _ := c.start("--state", c.state, "--address", "127.0.0.1:0", "--xds-address", "127.0.0.1:0")
	c.awaitPlaced(api)
	_, followed, followerXDS := c.start("--follow", "http://"+api, "--address", "127.0.0.1:0", "--xds-address", "127.0.0.1:0")
	c.awaitPlaced(followed)
	if err := decider.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	c.startEnvoy(followerXDS)
	web := c.connect(client.NewHTTP)
	servertest.Eventually(t, "an Envoy that has only the follower answers", func() bool { return servertest.Ask(t.Context(), web, "m0", 1) == nil })
	took := time.Since(began)
	t.Logf("figures: an Envoy that had only the follower served %v after its start", took.Round(time.Millisecond))
	if limit := servertest.StrictOr(2*time.Second, 20*time.Second); took > limit {
		t.Errorf("Envoy took %v, want at most %v", took, limit)
	}

	// Another cell takes over without the disk of the first one, and orders something.
	way.hold()
	more := func(text string) string { return strings.Replace(text, "cold: {}", "cold: {copies: 2}", 1) }
	c.edit(more)
	c.file = direct
	_, second, _ := c.start("--address", "127.0.0.1:0", "--xds-address", "127.0.0.1:0")
	c.awaitPlaced(second)
	c.edit(more)
	servertest.Eventually(t, "the second cell has loaded cold", func() bool {
		d := c.status(second)
		return len(d.Models) > 0 && len(d.Models[0].Active) == 2
	})
	if err := decider.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	servertest.Eventually(t, "the first cell knows that it was replaced", func() bool { return c.status(api).Superseded != "" })
	first, now := c.status(api), c.status(second)
	if first.Epoch >= now.Epoch || !strings.Contains(first.Superseded, "refused an order") {
		t.Errorf("the first cell has epoch %d, and the second %d: %s", first.Epoch, now.Epoch, first.Superseded)
	}
	time.Sleep(time.Second) // what it has sent is answered
	orders, conflicts := way.orders.Load(), way.conflicts.Load()
	t.Logf("figures: an old cell was resumed: it sent %d orders, of which nodes answered %d with 409", orders, conflicts)
	if orders == 0 || orders != conflicts {
		t.Error("want orders, and nothing but 409")
	}
}

// heldPages stands between a cell and its nodes. Once it holds, no page arrives any more, and
// orders are counted.
type heldPages struct {
	holding           atomic.Bool
	orders, conflicts atomic.Int64
}

// listen returns the address that leads to a node.
func (h *heldPages) listen(t *testing.T, node string) string {
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: node})
	proxy.ModifyResponse = func(r *http.Response) error {
		switch {
		case !h.holding.Load():
		case r.Request.Method == http.MethodGet:
			<-r.Request.Context().Done() // until the cell asks no longer
		default:
			h.orders.Add(1)
			if r.StatusCode == http.StatusConflict {
				h.conflicts.Add(1)
			}
		}
		return nil
	}
	proxy.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError) // held requests end with errors
	s := httptest.NewServer(proxy)
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

func (h *heldPages) hold() { h.holding.Store(true) }

// Without a cell and its follower nothing changes for clients. A cell that starts without its disk
// has the same plan again, and unloads nothing.
func TestACellThatLostItsDisk(t *testing.T) {
	const models = 4
	c := newCell(t, 3, models)
	decider, api, xds := c.start("--state", c.state, "--address", "127.0.0.1:0", "--xds-address", "127.0.0.1:0")
	c.awaitPlaced(api)
	follower, followed, followerXDS := c.start("--follow", "http://"+api, "--address", "127.0.0.1:0", "--xds-address", "127.0.0.1:0")
	c.startEnvoy(xds, followerXDS)
	web := c.connect(client.NewHTTP)
	servertest.Eventually(t, "Envoy answers", func() bool { return servertest.Ask(t.Context(), web, "m0", 1) == nil })
	places := func(api string) (text string) {
		for _, m := range c.status(api).Models {
			text += fmt.Sprintln(m.Name, m.Active, m.Spare, m.Home)
		}
		return text
	}
	before := places(api)
	servertest.Eventually(t, "the follower has the same plan", func() bool { return places(followed) == before })
	load := c.load(4, models)
	// Envoy knows the models that a request has needed: all of them, over both protocols.
	servertest.Eventually(t, "all clients have asked for all models", func() bool { return load.requests.Load() > 100 })
	servertest.Kill(decider)
	servertest.Kill(follower)
	answered := load.requests.Load()
	down := servertest.StrictOr(10*time.Minute, 3*time.Second)
	time.Sleep(down) // without a cell
	if load.requests.Load() == answered {
		t.Error("no request was answered without a cell")
	}
	began := time.Now()
	_, second, _ := c.start("--address", "127.0.0.1:0", "--xds-address", "127.0.0.1:0") // without --state
	servertest.Eventually(t, "the plan is the same", func() bool { return places(second) == before })
	took := time.Since(began)
	time.Sleep(2 * time.Second) // it would have ordered something
	if now := places(second); now != before {
		t.Errorf("the plan did not stay:\n%sand before:\n%s", now, before)
	}
	load.check(t, "the cell and its follower were down, and a cell came back without its disk")
	t.Logf("figures: cell and follower down for %v, and back without a disk: %d requests, %d failed; Envoy retried %d; the same plan after %v",
		down, load.requests.Load(), load.failures.Load(), c.stat("upstream_rq_retry"), took.Round(time.Millisecond))
	if took > 30*time.Second {
		t.Errorf("the plan took %v", took)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	loads := 0
	for _, line := range c.log {
		if strings.Contains(line, "unload ") {
			t.Errorf("the cell ordered: %s", line)
		}
		loads += strings.Count(line, "\"load ")
	}
	if loads == 0 {
		t.Error("the log has no orders at all")
	}
}

func (c *cellUnderTest) connect(connect func(string, client.Options) (*client.Client, error)) *client.Client {
	c.t.Helper()
	return c.connectTo(connect, c.proxy)
}

func (c *cellUnderTest) connectTo(connect func(string, client.Options) (*client.Client, error), address string) *client.Client {
	c.t.Helper()
	asker, err := connect(address, client.Options{})
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = asker.Close() })
	return asker
}

// refuses checks the status of a request, and that it came at once.
func (c *cellUnderTest) refuses(t *testing.T, path, method string, want int) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://"+c.proxy+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	status, _, body, err := servertest.Fetch(req)
	if err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); status != want || took > 4*time.Second { // Envoy would wait 5 s for a silent cell
		t.Errorf("%s: %d %s after %v, want %d at once", path, status, body, took, want)
	}
}

func (c *cellUnderTest) readState() *cell.State {
	c.t.Helper()
	text, err := os.ReadFile(c.state)
	if err != nil {
		c.t.Fatal(err)
	}
	s, err := cell.DecodeState(text)
	if err != nil {
		c.t.Fatal(err)
	}
	return s
}

// The commands of the guide that ask a running cell do what it says.
func TestTheCommandsOfTheGuideToCells(t *testing.T) {
	repository := servertest.Repository(t, map[string]string{"resnet50": simulatedModel})
	if err := os.Mkdir(filepath.Join(repository, "resnet50", "2"), 0o700); err != nil {
		t.Fatal(err)
	}
	c := newCellOf(t, repository, "models:\n  resnet50: {copies: 2, split: {1: 100}}\n", 2)
	_, api, _ := c.start("--address", "127.0.0.1:0", "--xds-address", "127.0.0.1:0")
	c.awaitPlaced(api)
	page, err := os.ReadFile(filepath.Join(servertest.Root, "docs", "how-to", "run-a-cell.md"))
	if err != nil {
		t.Fatal(err)
	}
	commands := regexp.MustCompile(`(?m)^shoal ((?:cell (?:status|why|plan)|rollout) ?.*)$`).FindAllStringSubmatch(string(page), -1)
	if len(commands) < 8 {
		t.Fatalf("the guide has the commands %q", commands)
	}
	for _, found := range commands {
		args := append(strings.Fields(strings.Replace(found[1], "new.yaml", c.file, 1)), "-u", api)
		if strings.Contains(found[1], "rollout start resnet50 2 --mirror") { // the one before is under way
			c.rollout(api, "stop", "resnet50")
		}
		if out, err := exec.Command(filepath.Join(servertest.Root, "bin", "shoal"), args...).CombinedOutput(); err != nil || len(out) == 0 && !strings.Contains(found[1], "stop") {
			t.Errorf("shoal %s: %v: %s", found[1], err, out)
		}
	}
}
