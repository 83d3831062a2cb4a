package metrics

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/access"
	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/batching/automatic"
	"github.com/shoal-serving/shoal/internal/budget"
	"github.com/shoal-serving/shoal/internal/cache"
	"github.com/shoal-serving/shoal/internal/engine/enginetest"
	"github.com/shoal-serving/shoal/internal/explain"
	"github.com/shoal-serving/shoal/internal/http2meter"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/leak"
	"github.com/shoal-serving/shoal/internal/modelconfig"
	"github.com/shoal-serving/shoal/internal/pacer"
	"github.com/shoal-serving/shoal/internal/reference"
	"github.com/shoal-serving/shoal/internal/repository"
	"github.com/shoal-serving/shoal/internal/servable"
	"github.com/shoal-serving/shoal/internal/server"
	"github.com/shoal-serving/shoal/internal/stats"
)

func TestMain(m *testing.M) { leak.Main(m) }

const ms = time.Millisecond

// fake is a source with fixed figures.
type fake struct {
	figures []server.Figures
	strays  [infer.NumCodes]uint64
}

func (f *fake) Figures() []server.Figures            { return f.figures }
func (f *fake) UnknownModel() [infer.NumCodes]uint64 { return f.strays }

// Authorize refuses callers without a right, if the context has a caller.
func (f *fake) Authorize(ctx context.Context, action access.Action, model string) error {
	if c := access.CallerOf(ctx); c != nil && !c.May(action, model) {
		return infer.Errorf(infer.Forbidden, "no")
	}
	return nil
}

// busy returns a source with one model that has a value for every metric.
func busy() *fake {
	c := stats.New(8)
	c.Objective = 15 * ms
	c.Ran(&stats.Run{Rows: 3, Infer: 2 * ms, CloseReason: batching.Waited, QueueTimes: []time.Duration{ms, 0}})
	c.Ran(&stats.Run{Rows: 1, Infer: 3 * ms, Retry: true})
	c.CalibrationStep()
	c.CalibrationStep()
	c.Restarted()
	queued := time.Now()
	c.Succeeded(2, 20*ms, &infer.Timeline{
		Queued: queued, Taken: queued.Add(1234567), RunStarted: queued.Add(2 * ms), RunEnded: queued.Add(7 * ms), Split: queued.Add(10 * ms),
	})
	for code := range infer.Code(infer.NumCodes) {
		for range code + 1 {
			c.Failed(code, ms)
		}
	}
	f := &fake{figures: []server.Figures{{Model: "m", Version: 2, Stats: c.Snapshot(), Cached: true, Instances: 4, AliveInstances: 3, Waiting: 5, Slots: &explain.Slots{All: 64, Used: 40, Waiting: 2}, LoadTime: 1500 * ms, Memory: 4096, CombineUnsafe: true, Policy: &explain.Policy{
		TargetRows: 6, UsefulInstances: 2,
		Rules: []explain.Rule{{Name: "gather", Enabled: true, TotalCost: ms, TotalGain: 3 * ms}, {Name: "burst", OffBatches: 17}},
	}}}}
	f.strays[infer.NotFound] = 7
	return f
}

func scrape(t *testing.T, src Source) string {
	t.Helper()
	rec := httptest.NewRecorder()
	New(src, Options{
		Version: "1.2.3", HostFiles: linux(0, 0), Log: slog.New(slog.DiscardHandler),
		Budget: budget.New(1000), Cache: cache.New(1000), GRPC: &http2meter.Meter{}, Connections: func() (int64, uint64) { return 0, 0 }, Access: &access.Gate{Tenants: access.NewTenants()},
		Demand: func() (repository.DemandCounts, bool) {
			return repository.DemandCounts{Loads: 3, FailedLoads: 1, Evictions: 2, Waited: 4, Refused: 5, Models: 9, Loaded: 2, Memory: 64, Held: 32}, true
		},
	}).ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if rec.Code != http.StatusOK {
		t.Fatalf("status %d: %s", rec.Code, rec.Body)
	}
	return rec.Body.String()
}

func TestTheFiguresAreToldUnderTritonsNamesAndOurs(t *testing.T) {
	got := strings.Split(scrape(t, busy()), "\n")
	for want := range strings.SplitSeq(strings.TrimSpace(`
nv_inference_request_success{model="m",version="2"} 1
nv_inference_request_failure{model="m",reason="BACKEND",version="2"} 1
nv_inference_request_failure{model="m",reason="CANCELED",version="2"} 19
nv_inference_request_failure{model="m",reason="OTHER",version="2"} 45
nv_inference_request_failure{model="m",reason="REJECTED",version="2"} 26
nv_inference_count{model="m",version="2"} 2
nv_inference_exec_count{model="m",version="2"} 2
nv_inference_request_duration_us{model="m",version="2"} 20000
nv_inference_queue_duration_us{model="m",version="2"} 1234
nv_inference_compute_input_duration_us{model="m",version="2"} 765
nv_inference_compute_infer_duration_us{model="m",version="2"} 5000
nv_inference_compute_output_duration_us{model="m",version="2"} 3000
nv_inference_pending_request_count{model="m",version="2"} 5
shoal_sequence_slots{model="m",version="2"} 64
shoal_sequence_slots_used{model="m",version="2"} 40
shoal_sequences_waiting{model="m",version="2"} 2
nv_model_load_duration_secs{model="m",version="2"} 1.5
shoal_model_memory_bytes{model="m",version="2"} 4096
shoal_demand_loads_total{outcome="success"} 3
shoal_demand_loads_total{outcome="failure"} 1
shoal_demand_evictions_total 2
shoal_demand_waited_total 4
shoal_demand_refused_total 5
shoal_demand_models{state="known"} 9
shoal_demand_models{state="loaded"} 2
shoal_demand_memory_bytes{kind="limit"} 64
shoal_demand_memory_bytes{kind="held"} 32
shoal_calibration_steps_total{model="m",version="2"} 2
shoal_instances{model="m",version="2"} 4
shoal_instances_alive{model="m",version="2"} 3
shoal_worker_restarts_total{model="m",version="2"} 1
shoal_batch_unsafe{model="m",version="2"} 1
shoal_batch_efficient_rows{model="m",version="2"} 6
shoal_instances_useful{model="m",version="2"} 2
shoal_batching_rule_on{model="m",rule="gather",version="2"} 1
shoal_batching_rule_on{model="m",rule="burst",version="2"} 0
shoal_batching_rule_cost_seconds_total{model="m",rule="gather",version="2"} 0.001
shoal_batching_rule_gain_seconds_total{model="m",rule="gather",version="2"} 0.003
shoal_batch_close_total{model="m",reason="waited",version="2"} 1
shoal_batch_close_total{model="m",reason="full",version="2"} 0
shoal_batch_size_bucket{model="m",version="2",le="2"} 0
shoal_batch_size_bucket{model="m",version="2",le="4"} 1
shoal_batch_size_bucket{model="m",version="2",le="8"} 1
shoal_batch_size_bucket{model="m",version="2",le="+Inf"} 1
shoal_batch_size_sum{model="m",version="2"} 3
shoal_batch_size_count{model="m",version="2"} 1
shoal_queue_seconds_bucket{model="m",version="2",le="5e-05"} 1
shoal_queue_seconds_bucket{model="m",version="2",le="0.0008"} 1
shoal_queue_seconds_bucket{model="m",version="2",le="0.0016"} 2
shoal_queue_seconds_sum{model="m",version="2"} 0.001
shoal_compute_seconds_bucket{model="m",version="2",le="52.4288"} 2
shoal_compute_seconds_sum{model="m",version="2"} 0.005
shoal_compute_seconds_count{model="m",version="2"} 2
shoal_requests_refused_total{model="m",reason="invalid",version="2"} 2
shoal_requests_refused_total{model="m",reason="overloaded",version="2"} 6
shoal_requests_refused_total{model="m",reason="would_be_late",version="2"} 7
shoal_requests_refused_total{model="m",reason="queue_timeout",version="2"} 8
shoal_requests_late_total{model="m",version="2"} 1
shoal_objective_seconds{model="m",version="2"} 0.015
shoal_requests_refused_total{model="",reason="not_found",version=""} 7
shoal_panics_total 0
nv_cpu_utilization 0
nv_cpu_memory_total_bytes 8.388608e+06
nv_cpu_memory_used_bytes 2.097152e+06
`), "\n") {
		if !slices.Contains(got, want) {
			t.Errorf("missing: %s", want)
		}
	}
	if t.Failed() {
		t.Log(strings.Join(got, "\n"))
	}
}

func TestMetricTagsAreLabels(t *testing.T) {
	src := busy()
	src.figures[0].Tags = map[string]string{"team": "search", "tier": `a"b`}
	plain := src.figures[0]
	plain.Model, plain.Tags = "plain", nil
	src.figures = append(src.figures, plain)
	text := scrape(t, src)
	for _, want := range []string{
		`nv_inference_request_success{_team="search",_tier="a\"b",model="m",version="2"} 1`,
		`nv_inference_request_failure{_team="search",_tier="a\"b",model="m",reason="BACKEND",version="2"} 1`,
		`shoal_queue_seconds_count{_team="search",_tier="a\"b",model="m",version="2"} 2`,
		`nv_inference_request_success{model="plain",version="2"} 1`,
		`shoal_requests_refused_total{model="",reason="not_found",version=""} 7`,
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("missing: %s", want)
		}
	}
	if t.Failed() {
		t.Log(text)
	}
}

func TestMemoryThatIsUnknownIsNotTold(t *testing.T) {
	src := busy()
	src.figures[0].Memory = 0
	if got := scrape(t, src); strings.Contains(got, "shoal_model_memory_bytes") {
		t.Error("the memory of a model is told although its engine does not tell")
	}
}

func TestNamesThatNobodyHasAddNoSeries(t *testing.T) {
	p := pacer.New()
	defer p.Close()
	log := slog.New(slog.DiscardHandler)
	s := server.New(servable.NewEnv(servable.Options{
		Runners: map[string]servable.Runner{"echo": {Engine: &enginetest.Echo{}}}, Pacer: p, Log: log,
	}), server.Options{Log: log})
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	err := s.Load("m", "the test", func(context.Context, []*servable.Version) ([]servable.Source, error) {
		return []servable.Source{{Model: "m", Number: 1, Config: func() (*modelconfig.Config, error) {
			cfg, err := modelconfig.Parse("", []byte(`backend: "echo" max_batch_size: 4 input [ { name: "x" data_type: TYPE_FP32 dims: [ 1 ] } ] output [ { name: "x" data_type: TYPE_FP32 dims: [ 1 ] } ]`))
			if err == nil {
				cfg.Name = "m"
			}
			return cfg, err
		}}}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	s.MarkStarted()
	before := len(series(scrape(t, s)))
	const n = 100_000
	for i := range n {
		model, version := "bogus"+strconv.Itoa(i), ""
		if i%2 == 0 {
			model, version = "m", strconv.Itoa(i+2)
		}
		if err := s.Infer(t.Context(), &infer.Request{Model: model, Version: version}, &infer.Response{}); infer.CodeOf(err) != infer.NotFound {
			t.Fatal(err)
		}
	}
	text := scrape(t, s)
	if after := len(series(text)); after != before {
		t.Errorf("%d series, want %d as before", after, before)
	}
	if want := `shoal_requests_refused_total{model="",reason="not_found",version=""} 100000`; !strings.Contains(text, want) {
		t.Errorf("missing: %s", want)
	}
}

func TestOnlyGetMetricsIsAnswered(t *testing.T) {
	h := New(busy(), Options{Log: slog.New(slog.DiscardHandler)})
	for target, want := range map[string]int{"GET /metrics": 200, "POST /metrics": 405, "GET /v2": 404} {
		method, path, _ := strings.Cut(target, " ")
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, httptest.NewRequest(method, path, nil))
		if rec.Code != want {
			t.Errorf("%s answers %d, want %d", target, rec.Code, want)
		}
	}
}

func TestAScrapeMayNameItsMetrics(t *testing.T) {
	rec := httptest.NewRecorder()
	New(busy(), Options{Log: slog.New(slog.DiscardHandler)}).ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/metrics?name[]=nv_inference_count&name[]=nv_inference_exec_count", nil))
	all := series(rec.Body.String())
	if len(all) != 2 || !strings.HasPrefix(all[0], "nv_inference_count{") || !strings.HasPrefix(all[1], "nv_inference_exec_count{") {
		t.Errorf("found %q", all)
	}
}

// series returns the lines of our metrics that are not comments.
func series(text string) (all []string) {
	for line := range strings.SplitSeq(text, "\n") {
		if strings.HasPrefix(line, "nv_") || strings.HasPrefix(line, "shoal_") {
			all = append(all, line)
		}
	}
	return all
}

var (
	describedMetric = regexp.MustCompile(`[dD]esc\("(\w+)"`) // in the source of this package

	typeLine   = regexp.MustCompile(`(?m)^# TYPE ((?:nv|shoal)_\w+) (\w+)$`)
	fixedValue = regexp.MustCompile(`(?m)^(\w+)\{.*?\b(reason|rule|outcome|state|kind|limit)="(\w+)"`)
	label      = regexp.MustCompile(`(\w+)="`)
)

// TestTheReferenceOfMetricsIsCurrent compares docs/reference/metrics.md with the metrics of a
// model that has a value for every metric.
func TestTheReferenceOfMetricsIsCurrent(t *testing.T) {
	document, err := os.ReadFile(filepath.Join("..", "..", "docs", "reference", "metrics.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range automatic.New(automatic.Options{}).Explain().Rules {
		if !strings.Contains(string(document), "| `"+r.Name+"` |") {
			t.Errorf("docs/reference/metrics.md does not say what the rule %s does", r.Name)
		}
	}
	for _, value := range slices.Concat(values(batching.NumReasons, func(i int) string { return batching.Reason(i).String() }),
		values(infer.NumCodes, func(i int) string { return codeLabel(infer.Code(i)) })) {
		if !strings.Contains(string(document), "`"+value+"`") && value != codeLabel(infer.Internal) {
			t.Errorf("docs/reference/metrics.md does not say what the reason %s means", value)
		}
	}
	sources, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range sources {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range describedMetric.FindAllStringSubmatch(string(source), -1) {
			if !strings.Contains(string(document), "`"+m[1]+"`") {
				t.Errorf("docs/reference/metrics.md does not have %s of %s", m[1], file)
			}
		}
	}
	text := scrape(t, busy())
	for _, m := range fixedValue.FindAllStringSubmatch(text, -1) {
		_, help, _ := strings.Cut(text, "# HELP "+m[1]+" ")
		help, _, _ = strings.Cut(help, "\n")
		if !strings.Contains(help, m[3]) && !strings.Contains(string(document), "`"+m[3]+"`") {
			t.Errorf("neither the help of %s nor docs/reference/metrics.md says what %s=%q means", m[1], m[2], m[3])
		}
	}
	sections := describe(text)
	reference.Section(t, "metrics.md", "triton", sections["nv"])
	reference.Section(t, "metrics.md", "shoal", sections["shoal"])
}

// describe returns the metrics of a page for the reference, by the prefix of their names.
func describe(text string) map[string]string {
	sections := map[string]string{}
	for _, m := range typeLine.FindAllStringSubmatch(text, -1) {
		name, kind, prefix := m[1], m[2], strings.SplitN(m[1], "_", 2)[0]
		_, help, _ := strings.Cut(text, "# HELP "+name+" ")
		help, _, _ = strings.Cut(help, "\n")
		for _, l := range labels(text, name) {
			kind += ", `" + l + "`"
		}
		sections[prefix] += reference.Item("`"+name+"` ("+kind+")", help)
	}
	return sections
}

func values(n int, name func(int) string) (all []string) {
	for i := range n {
		all = append(all, name(i))
	}
	return all
}

// labels returns the names of a metric's labels, but for the buckets' own.
func labels(text, name string) (names []string) {
	for _, line := range series(text) {
		if !strings.HasPrefix(strings.TrimPrefix(line, name), "{") && !strings.HasPrefix(line, name+"_count{") {
			continue
		}
		for _, m := range label.FindAllStringSubmatch(line, -1) {
			names = append(names, m[1])
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func TestRowsAreThoseThatTheModelRan(t *testing.T) {
	c := stats.New(8)
	c.CacheHit(ms, 0)
	got := scrape(t, &fake{figures: []server.Figures{{Model: "m", Version: 1, Stats: c.Snapshot(), Cached: true}}})
	for _, want := range []string{
		`nv_inference_request_success{model="m",version="1"} 1`, `nv_inference_count{model="m",version="1"} 0`,
		"# HELP nv_inference_count Rows of the successful requests that the model ran, which those of the response cache are not\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing", want)
		}
	}
}

func TestVersionsWithWorkersAreToldAsInTorchServe(t *testing.T) {
	src := busy()
	if got := scrape(t, src); strings.Contains(got, "ts_inference") || strings.Contains(got, "shoal_workers") {
		t.Error("a version without workers has metrics of one")
	}
	src.figures[0].Scaled, src.figures[0].Label, src.figures[0].AliveInstances = true, "1.0", 2
	got := scrape(t, src)
	for _, want := range []string{
		"# TYPE ts_inference_requests_total counter\n", "ts_queue_latency_microseconds{", `shoal_workers{model_name="m",model_version="1.0"} 2`,
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing", want)
		}
	}
}

// A stalledClient reads nothing until it leaves.
type stalledClient struct {
	*httptest.ResponseRecorder

	reached chan<- time.Time // receives the deadline of the first write
	leave   <-chan struct{}
	until   time.Time
}

func (c *stalledClient) SetWriteDeadline(t time.Time) error {
	c.until = t
	return nil
}

func (c *stalledClient) Write(p []byte) (int, error) {
	select {
	case c.reached <- c.until:
	case <-c.leave:
	}
	<-c.leave
	return len(p), nil
}

func TestPagesThatAreNotReadAreTimedAndBounded(t *testing.T) {
	h := New(busy(), Options{HostFiles: linux(0, 0), Log: slog.New(slog.DiscardHandler)})
	reached, leave := make(chan time.Time), make(chan struct{})
	var all sync.WaitGroup
	for range maxScrapes {
		c := &stalledClient{ResponseRecorder: httptest.NewRecorder(), reached: reached, leave: leave}
		all.Go(func() {
			h.ServeHTTP(c, httptest.NewRequest(http.MethodGet, "/metrics", nil))
			if !c.until.IsZero() {
				t.Error("the next answer of the connection has a deadline")
			}
		})
		if until := <-reached; until.IsZero() {
			t.Error("a page has no deadline")
		}
	}
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if rec.Code != http.StatusServiceUnavailable {
		t.Errorf("status %d beside %d pages that are not read", rec.Code, maxScrapes)
	}
	close(leave)
	all.Wait()
}
