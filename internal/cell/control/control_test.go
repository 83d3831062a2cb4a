package control

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/shoal-serving/shoal/internal/cell"
	"github.com/shoal-serving/shoal/internal/leak"
	"github.com/shoal-serving/shoal/internal/node"
	"github.com/shoal-serving/shoal/internal/placement"
)

func TestMain(m *testing.M) { leak.Main(m) }

// changing is a source of nodes and models that another read finds changed.
type changing struct {
	reads []int // how many models each read finds; the last one stays
}

func (c *changing) Nodes(context.Context) ([]cell.Node, error) {
	return []cell.Node{{Name: "a", HTTP: "127.0.0.1:1"}}, nil
}

func (c *changing) Models(context.Context) (all []cell.Model, _ map[string]placement.Quota, _ error) {
	for i := range c.reads[0] {
		all = append(all, cell.Model{Name: fmt.Sprint("m", i)})
	}
	if len(c.reads) > 1 {
		c.reads = c.reads[1:]
	}
	return all, nil, nil
}

func TestAFileThatIsBeingWrittenChangesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := &changing{reads: []int{2, 1, 3, 3, 1, 3, 4, 4, 4}}
		var log strings.Builder
		c, err := New(Options{Nodes: source, Models: source, Log: slog.New(slog.NewTextHandler(&log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		first, err := c.read(ctx)
		if err != nil {
			t.Fatal(err)
		}
		var changes []int
		var watching sync.WaitGroup
		watching.Go(func() { c.watch(ctx, first) })
		watching.Go(func() {
			for {
				select {
				case e := <-c.events:
					changes = append(changes, len(e.(cell.Configured).Wanted.Models))
				case <-ctx.Done():
					return
				}
			}
		})
		time.Sleep(20 * readEvery)
		cancel()
		watching.Wait()
		if want := []int{3, 4}; !slices.Equal(changes, want) {
			t.Errorf("configured with %v models, want %v", changes, want)
		}
	})
}

func TestAnAddressIsOneNodeInWhateverOrderTheyCome(t *testing.T) {
	for _, c := range []struct{ hosts, want []string }{
		{[]string{"10.0.0.2", "fd00::1", "10.0.0.1", "fd00::2"}, []string{"10.0.0.1", "10.0.0.2"}},
		{[]string{"fd00::2", "fd00::1"}, []string{"fd00::1", "fd00::2"}},
		{[]string{"10.0.0.1", "10.0.0.1"}, []string{"10.0.0.1"}},
	} {
		if got := oneFamily(c.hosts); !slices.Equal(got, c.want) {
			t.Errorf("%v: nodes %v, want %v", c.hosts, got, c.want)
		}
	}
}

func TestMistakesInTheFileAreNamed(t *testing.T) {
	for text, want := range map[string]string{
		"models: {m: {}}":                                              "nodes: found none",
		"nodes: [{http: nowhere}]":                                     `nodes[0]: http: found "nowhere", expected an IP address and a port`,
		"nodes: [{http: 'node-1:8000'}]":                               "expected an IP address and a port",
		"nodes: [{http: '10.0.0.1:http'}]":                             "expected an IP address and a port",
		"nodes: [{dns: x, http: y}]":                                   "expected a port",
		"nodes: [{http: '10.0.0.1:1', speed: 3}]":                      "field speed not found",
		"nodes: [{http: '10.0.0.1:1'}]\nmodels: {m/n: {}}":             `"m/n" is not a name`,
		"nodes: [{http: '10.0.0.1:1'}]\nmodels: {m: {copies: -1}}":     "must not be negative",
		"nodes: [{http: '10.0.0.1:1'}]\nmodels: {m: {split: {1: 90}}}": "models.m.split: the percentages add up to 90",
		"nodes: [{http: '10.0.0.1:1'}, {http: '10.0.0.1:1'}]":          `two are called "10.0.0.1:1"`,
	} {
		if _, err := wanted(t.Context(), strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want one with %q", text, err, want)
		}
	}
}

func TestTheFileSaysWhatIsWanted(t *testing.T) {
	w, err := wanted(t.Context(), strings.NewReader(`
nodes:
  - {name: a, http: "10.0.0.1:8000", grpc: "10.0.0.1:8001"}
  - {dns: localhost, http: "9000"}
models:
  b: {copies: 2, objective: 50ms, tenant: vision, split: {2: 1, 1: 99}}
  a: {}
tenants:
  vision: {copies: 4, memory_mib: 1024, device_time: 1.5}
`))
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(w.Models, []cell.Model{{Name: "a"}, {Name: "b", Tenant: "vision", Objective: 50 * time.Millisecond, Copies: 2, Split: []cell.Share{{Version: "1", Percent: 99}, {Version: "2", Percent: 1}}}}) {
		t.Errorf("models %+v", w.Models)
	}
	if w.Nodes[0] != (cell.Node{Name: "a", HTTP: "10.0.0.1:8000", GRPC: "10.0.0.1:8001"}) || !strings.HasSuffix(w.Nodes[1].HTTP, ":9000") || w.Nodes[1].DNS != "localhost" {
		t.Errorf("nodes %+v", w.Nodes)
	}
	if q := w.Quotas["vision"]; q.Copies != 4 || q.Bytes != 1<<30 || q.Device != 1.5 {
		t.Errorf("quota %+v", q)
	}
}

// A fakeNode is a node that holds what it was ordered to.
type fakeNode struct {
	*httptest.Server
	mu      sync.Mutex
	page    node.Page
	orders  []string
	changed chan struct{}
}

func newFakeNode(t *testing.T) *fakeNode {
	n := &fakeNode{page: node.Page{Memory: 1 << 30, Ready: true}, changed: make(chan struct{})}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v2/node", func(w http.ResponseWriter, r *http.Request) {
		n.mu.Lock()
		body, err := json.Marshal(n.page)
		changed, tag := n.changed, `"`+string(rune('a'+len(n.page.Models)))+`"`
		n.mu.Unlock()
		if err != nil {
			t.Error(err)
		}
		if r.Header.Get("If-None-Match") == tag {
			timeout, cancel := context.WithTimeout(r.Context(), 100*time.Millisecond)
			defer cancel()
			select {
			case <-changed:
			case <-timeout.Done():
			}
			w.WriteHeader(http.StatusNotModified)
			return
		}
		w.Header().Set("ETag", tag)
		_, _ = w.Write(body)
	})
	mux.HandleFunc("POST /v2/repository/models/{model}/{what}", func(_ http.ResponseWriter, r *http.Request) {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.orders = append(n.orders, r.PathValue("what")+" "+r.PathValue("model")+" "+r.Header.Get(epochHeader))
		n.page.Models = append(n.page.Models, node.Model{Name: r.PathValue("model"), State: "READY", Bytes: 1})
		close(n.changed)
		n.changed = make(chan struct{})
	})
	n.Server = httptest.NewServer(mux)
	t.Cleanup(n.Close)
	return n
}

func (n *fakeNode) ordered() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.orders)
}

// A running cell, and the routes that it has given.
type running struct {
	*Controller
	routes chan []cell.Route
	stop   func()
}

func run(t *testing.T, opts Options) *running {
	t.Helper()
	r := &running{routes: make(chan []cell.Route, 100)}
	opts.Client, opts.Scheme, opts.Log = &http.Client{Transport: &http.Transport{}}, "http", slog.New(slog.NewTextHandler(t.Output(), nil))
	opts.Update = func(changed []cell.Route, _ []string) error {
		r.routes <- changed
		return nil
	}
	c, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	r.Controller = c
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- c.Run(ctx) }()
	r.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		opts.Client.CloseIdleConnections()
	})
	t.Cleanup(r.stop)
	return r
}

// await waits until a model has a ready copy.
func (r *running) await(t *testing.T, model string) {
	t.Helper()
	timeout, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		select {
		case routes := <-r.routes:
			if slices.ContainsFunc(routes, func(x cell.Route) bool { return x.Model == model && len(x.Active) > 0 && !x.Home }) {
				return
			}
		case <-timeout.Done():
			t.Fatalf("%s has no copy", model)
		}
	}
}

func TestACellOrdersKeepsAndRestarts(t *testing.T) {
	n := newFakeNode(t)
	dir := t.TempDir()
	file := &File{Path: filepath.Join(dir, "cell.yaml")}
	write := func(models string) {
		if err := os.WriteFile(file.Path, []byte("nodes: [{name: a, http: '"+strings.TrimPrefix(n.URL, "http://")+"'}]\nmodels: {"+models+"}\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("m: {copies: 1}")
	opts := Options{Nodes: file, Models: file, StateFile: filepath.Join(dir, "state.json")}
	r := run(t, opts)
	r.await(t, "m")
	write("m: {copies: 1}, more: {copies: 1}")
	r.await(t, "more")
	if got := n.ordered(); !slices.Equal(got, []string{"load m 1", "load more 1"}) {
		t.Errorf("ordered %q", got)
	}
	// A follower has the same routes, and a cell that starts again has a higher epoch.
	api := httptest.NewServer(r.Handler())
	same := &File{Path: file.Path}
	follower := run(t, Options{Nodes: same, Models: same, Follow: api.URL})
	follower.await(t, "more")
	follower.stop()
	api.Close()
	r.stop()
	again := run(t, opts)
	again.await(t, "m")
	if f, err := again.Figures(t.Context()); err != nil || f.Epoch != 2 {
		t.Errorf("epoch %d, error %v", f.Epoch, err)
	}
	if got := n.ordered(); len(got) != 2 {
		t.Errorf("ordered %q after a restart", got)
	}
}

func TestAStateThatWaitedNeverReplacesANewerOne(t *testing.T) {
	c, err := New(Options{StateFile: filepath.Join(t.TempDir(), "state.json"), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	c.newest.Store(&cell.State{Epoch: 1, Version: 1})
	c.newest.Store(&cell.State{Epoch: 2, Version: 1}) // which must be on disk before orders are sent
	for range 2 {                                     // once more when the first one is due
		if err := c.save(); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(c.opts.StateFile)
	if err != nil {
		t.Fatal(err)
	}
	if kept, err := cell.DecodeState(text); err != nil || kept.Epoch != 2 || !bytes.Equal(c.saved.Load().body, text) {
		t.Errorf("epoch %d is kept, error %v", kept.Epoch, err)
	}
}

// A directory may be full, or away, for a while.
func TestAStateThatCouldNotBeWrittenIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "away")
		c, err := New(Options{StateFile: filepath.Join(dir, "state.json"), Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var keeping sync.WaitGroup
		keeping.Go(func() { c.keep(ctx) })
		c.newest.Store(&cell.State{Epoch: 3, Version: 7})
		c.saves <- struct{}{}
		time.Sleep(10*saveAgain - 1)
		if n := c.failed.Load(); n != 10 {
			t.Errorf("%d failures in ten seconds, want 10", n)
		}
		order := cell.Order{Node: cell.Node{Name: "a", HTTP: "127.0.0.1:1"}, Model: "m", Epoch: 3}
		if got := c.carryOut(ctx, order); !got.Untried || got.Failed == "" {
			t.Errorf("%+v: an order was sent before its epoch was on disk", got)
		}
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		time.Sleep(saveAgain)
		text, err := os.ReadFile(c.opts.StateFile)
		if err != nil {
			t.Fatal(err)
		}
		if kept, err := cell.DecodeState(text); err != nil || kept.Version != 7 || c.fenced.Load() != 3 {
			t.Errorf("%+v is kept, with epoch %d, error %v", kept, c.fenced.Load(), err)
		}
		cancel()
		keeping.Wait()
	})
}

func TestNoOrderIsSentBeforeItsEpochIsOnDisk(t *testing.T) {
	n := newFakeNode(t)
	dir := t.TempDir()
	file := &File{Path: filepath.Join(dir, "cell.yaml")}
	if err := os.WriteFile(file.Path, []byte("nodes: [{name: a, http: '"+strings.TrimPrefix(n.URL, "http://")+"'}]\nmodels: {m: {copies: 1}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := run(t, Options{Nodes: file, Models: file, StateFile: filepath.Join(dir, "away", "state.json")})
	for {
		f, err := r.Figures(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if f.Failures > 0 && f.StateFailures > 0 || len(n.ordered()) > 0 {
			break
		}
		runtime.Gosched()
	}
	if got := n.ordered(); len(got) != 0 {
		t.Errorf("ordered %q", got)
	}
}

func TestOnlyANodeThatTriedALoadSaysThatItFailed(t *testing.T) {
	status := func(code int, header ...string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			for _, name := range header {
				w.Header().Set(name, "true")
			}
			w.WriteHeader(code)
		}
	}
	for what, c := range map[string]struct {
		answer http.HandlerFunc
		want   cell.Carried // without the reason
	}{
		"the files are invalid":      {status(http.StatusBadRequest, failedHeader), cell.Carried{}},
		"the disk is full":           {status(http.StatusServiceUnavailable, failedHeader), cell.Carried{}},
		"the node stops":             {status(http.StatusServiceUnavailable), cell.Carried{Untried: true}},
		"the node is busy":           {status(http.StatusTooManyRequests), cell.Carried{Untried: true}},
		"the token has expired":      {status(http.StatusUnauthorized), cell.Carried{Untried: true}},
		"the cell may not":           {status(http.StatusForbidden), cell.Carried{Untried: true}},
		"it has seen a higher epoch": {status(http.StatusConflict), cell.Carried{Outdated: true, Untried: true}},
		"the connection breaks":      {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, cell.Carried{Untried: true}},
	} {
		n := httptest.NewServer(c.answer)
		ctl, err := New(Options{Client: n.Client(), Scheme: "http"})
		if err != nil {
			t.Fatal(err)
		}
		got := ctl.carryOut(t.Context(), cell.Order{Node: cell.Node{HTTP: strings.TrimPrefix(n.URL, "http://")}, Model: "m", Epoch: 1})
		n.Close()
		if got.Failed == "" || got.Outdated != c.want.Outdated || got.Untried != c.want.Untried {
			t.Errorf("%s: %+v", what, got)
		}
	}
}

func TestADamagedStateIsPutAside(t *testing.T) {
	file := filepath.Join(t.TempDir(), "state.json")
	if err := os.WriteFile(file, []byte(`{"format":1,"sha256":"00","state":{}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	state, err := readState(file, slog.New(slog.NewTextHandler(io.Discard, nil)))
	if state != nil || err != nil {
		t.Errorf("state %v, error %v", state, err)
	}
	if _, err := os.Stat(file + ".damaged"); err != nil {
		t.Error(err)
	}
}

func TestTheAPIAnswersCommands(t *testing.T) {
	n := newFakeNode(t)
	address := strings.TrimPrefix(n.URL, "http://")
	file := &File{Path: filepath.Join(t.TempDir(), "cell.yaml")}
	if err := os.WriteFile(file.Path, []byte("nodes: [{name: a, http: '"+address+"'}]\nmodels: {m: {copies: 1}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := run(t, Options{Nodes: file, Models: file})
	r.await(t, "m")
	ask := func(method, path, body string) (int, string) {
		w := httptest.NewRecorder()
		r.Handler().ServeHTTP(w, httptest.NewRequest(method, path, strings.NewReader(body)))
		return w.Code, w.Body.String()
	}
	if code, body := ask("GET", "/v1/status", ""); code != http.StatusOK || !strings.Contains(body, `"active":["a"]`) {
		t.Errorf("%d %s", code, body)
	}
	if code, body := ask("POST", "/v1/plan", "nodes: [{name: a, http: '"+address+"'}]\nmodels: {other: {copies: 1}}"); code != http.StatusOK || !strings.Contains(body, `{"node":"a","model":"other","change":"load"}`) {
		t.Errorf("%d %s", code, body)
	}
	for _, path := range []string{"/v2/health/live", "/v2/health/ready"} {
		if code, body := ask("GET", path, ""); code != http.StatusOK {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
	if f, err := r.Figures(t.Context()); err != nil || f.Nodes["ready"] != 1 || f.Models != 1 || f.Copies != 1 || f.Missing != 0 || f.Orders["load"] != 1 || f.PlanAge <= 0 {
		t.Errorf("figures %+v, error %v", f, err)
	}
	for _, path := range []string{"/v1/plan", "/v1/rollouts"} {
		late := httptest.NewRecorder()
		r.Handler().ServeHTTP(late, httptest.NewRequest(http.MethodPost, path, iotest.ErrReader(os.ErrDeadlineExceeded)))
		if late.Code != http.StatusRequestTimeout {
			t.Errorf("%s: %d for a body that has not arrived, want %d", path, late.Code, http.StatusRequestTimeout)
		}
	}
	if code, body := ask("POST", "/v1/plan", "nodes: []"); code != http.StatusBadRequest || !strings.Contains(body, "found none") {
		t.Errorf("%d %s", code, body)
	}
}

// Events wait in the queue of the cell: a rollout that is only on its way to it must refuse another one.
func TestOfTwoRolloutsThatStartTogetherOneIsRefused(t *testing.T) {
	n := newFakeNode(t)
	file := &File{Path: filepath.Join(t.TempDir(), "cell.yaml")}
	if err := os.WriteFile(file.Path, []byte("nodes: [{name: a, http: '"+strings.TrimPrefix(n.URL, "http://")+"'}]\nmodels: {m: {copies: 1, split: {1: 100}}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := run(t, Options{Nodes: file, Models: file})
	r.await(t, "m")
	for range 20 {
		var commands sync.WaitGroup
		var answers [2]*httptest.ResponseRecorder
		for i := range answers {
			answers[i] = httptest.NewRecorder()
			commands.Go(func() {
				r.Handler().ServeHTTP(answers[i], httptest.NewRequest(http.MethodPost, "/v1/rollouts", strings.NewReader(fmt.Sprintf(`{"model":"m","to":"%d"}`, i+2))))
			})
		}
		commands.Wait()
		one, other := answers[0], answers[1]
		if one.Code != http.StatusOK {
			one, other = other, one
		}
		if one.Code != http.StatusOK || other.Code != http.StatusBadRequest || !strings.Contains(other.Body.String(), "is under way; stop it first") {
			t.Fatalf("%d %s and %d %s", one.Code, one.Body, other.Code, other.Body)
		}
		stopped := httptest.NewRecorder()
		r.Handler().ServeHTTP(stopped, httptest.NewRequest(http.MethodDelete, "/v1/rollouts/m", nil))
		if stopped.Code != http.StatusOK {
			t.Fatalf("stop: %d %s", stopped.Code, stopped.Body)
		}
	}
}

func TestACellWithoutAPlanIsLiveAndNotReady(t *testing.T) {
	file := &File{Path: filepath.Join(t.TempDir(), "cell.yaml")}
	if err := os.WriteFile(file.Path, []byte("nodes: [{http: '127.0.0.1:1'}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := run(t, Options{Nodes: file, Models: file, Follow: "http://127.0.0.1:1"}) // no server listens there
	for path, want := range map[string]int{"/v2/health/live": http.StatusOK, "/v2/health/ready": http.StatusServiceUnavailable} {
		w := httptest.NewRecorder()
		r.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		if w.Code != want {
			t.Errorf("%s: %d %s, want %d", path, w.Code, w.Body, want)
		}
	}
}
