//go:build e2e

package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math"
	"net/http"
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

	"github.com/shoal-serving/shoal/test/servertest"
)

// dashboardPictures is set by `make measure WHAT=dashboard-pictures`.
var dashboardPictures = flag.String("dashboard-pictures", "", "write pictures of the dashboard to this directory")

// load keeps clients of a model busy until the test ends, or stop is called.
func load(t *testing.T, s *servertest.Server, model string, clients int) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	c := s.Client()
	for range clients {
		all.Go(func() {
			for ctx.Err() == nil {
				if _, err := c.Infer(ctx, servertest.SeedRequest(model, 1)); err != nil && ctx.Err() == nil {
					t.Error(err)
					return
				}
			}
		})
	}
	stop = sync.OnceFunc(func() {
		cancel()
		all.Wait()
	})
	t.Cleanup(stop)
	return stop
}

// awaitTrue waits until an expression is true in the page.
func (p *tab) awaitTrue(what, expression string) {
	p.t.Helper()
	servertest.Eventually(p.t, what, func() (yes bool) {
		p.evaluate("Boolean("+expression+")", &yes)
		return yes
	})
}

// quiet fails if the page logged a problem, or requested something of another server.
func (p *tab) quiet(origin string) {
	p.t.Helper()
	p.browser.mu.Lock()
	defer p.browser.mu.Unlock()
	for _, m := range p.browser.events {
		if m.Session != p.session {
			continue
		}
		switch m.Method {
		case "Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded":
			p.t.Errorf("the page reports %s: %s", m.Method, m.Params)
		case "Network.requestWillBeSent":
			var sent struct{ Request struct{ URL string } }
			if err := json.Unmarshal(m.Params, &sent); err != nil {
				p.t.Fatal(err)
			}
			if !strings.HasPrefix(sent.Request.URL, origin+"/") && !strings.HasPrefix(sent.Request.URL, "data:") {
				p.t.Errorf("the page requests %s", sent.Request.URL)
			}
		}
	}
}

// tile returns the expression of the value of a figure.
func tile(name string) string {
	return fmt.Sprintf(`[...document.querySelectorAll('.tiles div')].find(d => d.querySelector('dt').textContent === %q)?.querySelector('dd').textContent`, name)
}

// metric returns the value of a metric of a model.
func metric(t *testing.T, s *servertest.Server, name, model string) float64 {
	t.Helper()
	line := regexp.MustCompile(`(?m)^` + name + `\{[^}]*model="` + model + `"[^}]*\} (\S+)$`).FindStringSubmatch(s.MetricsPage())
	if line == nil {
		t.Fatalf("no %s of %s", name, model)
	}
	value, err := strconv.ParseFloat(line[1], 64)
	if err != nil {
		t.Fatal(err)
	}
	return value
}

func TestTheDashboardShowsModelsAtWork(t *testing.T) {
	b := openBrowser(t)
	s := servertest.Start(t, servertest.Root+"/examples/seed-device")
	stop := load(t, s, "seed_dynamic", 6)
	page := b.openTab(t, 1280, 900)
	page.navigate(s.HTTP + "/")
	row := `document.querySelector('tr[data-model^="seed_dynamic/"]')`
	page.awaitTrue("the stream is live", `document.getElementById('stream').textContent === 'live'`)
	page.awaitTrue("the model that works has a rate", `parseFloat(`+row+`?.querySelector('[data-column="req/s"]')?.textContent.replaceAll(',', '')) > 1`)
	page.awaitTrue("all models are listed", `document.querySelectorAll('#models tbody tr').length === 5`)
	page.evaluate(row+`.querySelector('a').click(), true`, new(bool))
	page.awaitTrue("the model has its own view", `document.querySelector('h2')?.textContent === 'seed_dynamic'`)
	page.awaitTrue("close reasons are drawn", `document.querySelectorAll('.legend li').length > 0`)
	page.awaitTrue("the explanation is that of shoal explain", `document.querySelector('.why')?.textContent.includes('Batching')`)
	page.awaitTrue("the form has the inputs of the model", `document.querySelectorAll('fieldset').length > 0`)
	page.evaluate(`document.querySelector('form button').click(), true`, new(bool))
	page.awaitTrue("the form gets an answer", `document.querySelector('.answer').textContent.startsWith('200 ')`)

	// What is counted agrees with the metrics once nothing runs.
	stop()
	servertest.Eventually(t, "the same number of requests as in the metrics", func() (same bool) {
		want := metric(t, s, "nv_inference_request_success", "seed_dynamic") // requests whose clients left may still end
		page.evaluate(fmt.Sprintf(`%s?.replaceAll(',', '') === '%.0f'`, tile("Answered since loaded"), want), &same)
		return same
	})
	page.quiet(s.HTTP)

	// A server that does not answer any more is noticed.
	began := time.Now()
	if err := s.Cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	var text string
	page.do("Runtime.evaluate", map[string]any{"awaitPromise": true, "returnByValue": true, "expression": `new Promise(done => {
		const check = () => document.documentElement.classList.contains('stale') ? done(true) : setTimeout(check, 20)
		check()
	})`}, nil)
	took := time.Since(began)
	page.evaluate(`document.getElementById('stream').textContent`, &text)
	if !strings.Contains(text, "no data since") {
		t.Errorf("the page says %q", text)
	}
	if took > servertest.StrictOr(2*time.Second, 20*time.Second) {
		t.Errorf("the page noticed after %v", took)
	}
	t.Logf("the page says that the stream has stopped after %v", took.Round(10*time.Millisecond))
}

// A shownBatch is a batch in the table below the timeline. Times are in microseconds.
type shownBatch struct {
	Taken, Run, End int64
	Why             string
	Waits           []float64
}

// TestTheDashboardShowsBatchesAsTheyRan plays the five requests of the tutorials. With a delay of
// half of X, A and B are held for C, and D and E for nothing; the timeline has exactly the times
// that the responses of the server report.
func TestTheDashboardShowsBatchesAsTheyRan(t *testing.T) {
	const x = 300 * time.Millisecond
	b := openBrowser(t)
	s := serveAToE(t, x)
	for _, c := range []struct {
		model   string
		reasons []string // nil if they depend on which of A and B comes first
	}{{"dynamic", nil}, {"delayed", []string{"full", "full"}}} {
		t.Run(c.model, func(t *testing.T) {
			page := b.openTab(t, 1280, 900)
			defer page.close()
			page.navigate(s.HTTP + "/#/" + c.model + "/1")
			playAToE(t, s, page, c.model, x)
			var shown []shownBatch
			page.evaluate(`[...document.querySelectorAll('#batches tbody tr')].reverse().map(r => ({
				Taken: Number(r.dataset.taken), Run: Number(r.dataset.run), End: Number(r.dataset.end), Why: r.dataset.why, Waits: r.dataset.waits.split(' ').map(Number)}))`, &shown)
			total := 0.0
			for i, batch := range shown {
				t.Logf("batch %d: %+v", i, batch)
				if ran := time.Duration(batch.End-batch.Run) * time.Microsecond; ran < x || ran > x+servertest.StrictOr(5*time.Millisecond, time.Second) {
					t.Errorf("batch %d ran for %v, want %v", i, ran, x)
				}
				for _, wait := range batch.Waits {
					total += wait
				}
			}
			// Within a millisecond of what the server's own statistics have.
			want := metric(t, s, "nv_inference_queue_duration_us", c.model)
			if math.Abs(total-want) > 1000 {
				t.Errorf("the requests waited for %.0f µs in the timeline, and %.0f in the metrics", total, want)
			}
			if got := reasonsOf(shown); *servertest.Strict && c.reasons != nil && !slices.Equal(got, c.reasons) {
				t.Errorf("closed by %v, want %v", got, c.reasons)
			}
			// Each reason has a sign that no other has.
			var signs []string
			page.evaluate(`[...document.querySelectorAll('.legend .sign path')].map(p => p.getAttribute('d') + p.parentElement.getAttribute('class'))`, &signs)
			distinct := slices.Compact(slices.Sorted(slices.Values(reasonsOf(shown))))
			if n := len(slices.Compact(slices.Sorted(slices.Values(signs)))); n != len(distinct) {
				t.Errorf("%d signs for the reasons %v", n, distinct)
			}
			page.quiet(s.HTTP)
		})
	}
}

// serveAToE serves two models for the five requests of the tutorials, which take x: one batches
// without a delay, and the other one waits for half of x.
func serveAToE(t *testing.T, x time.Duration) *servertest.Server {
	t.Helper()
	return servertest.Start(t, servertest.Repository(t, map[string]string{
		"dynamic": servertest.Config(x, "1", "dynamic_batching { }"),
		"delayed": servertest.Config(x, "1", fmt.Sprintf("dynamic_batching { max_queue_delay_microseconds: %d }", (x/2).Microseconds())),
	}), "--batching=triton")
}

// playAToE sends the five requests of the tutorials to a model that takes x, whose page is open, and
// waits until the table below the timeline has them.
func playAToE(t *testing.T, s *servertest.Server, page *tab, model string, x time.Duration) {
	t.Helper()
	page.awaitTrue("the stream is live", `document.getElementById('stream').textContent === 'live'`)
	page.evaluate(`document.querySelector('details').open = true`, new(bool))
	time.Sleep(time.Second) // the stream watches the model from its first event on
	var all sync.WaitGroup
	client := s.Client()
	for _, r := range []struct {
		at   time.Duration
		rows int
	}{{0, 4}, {0, 2}, {x / 3, 2}, {2 * x / 3, 6}, {2 * x / 3, 2}} {
		all.Go(func() {
			time.Sleep(r.at)
			if err := servertest.Ask(context.Background(), client, model, r.rows); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	page.awaitTrue("all requests are shown", `[...document.querySelectorAll('#batches tbody tr')].reduce((n, r) => n + Number(r.cells[2].textContent), 0) === 5`)
}

func reasonsOf(all []shownBatch) (reasons []string) {
	for _, b := range all {
		reasons = append(reasons, b.Why)
	}
	return reasons
}

func TestTheDashboardShowsAKilledWorker(t *testing.T) {
	b := openBrowser(t)
	s := servertest.Start(t, servertest.PythonRepository(t, "", pythonIdentity+"\n"))
	page := b.openTab(t, 1280, 900)
	page.navigate(s.HTTP + "/#/m/1")
	page.awaitTrue("the model has its worker", tile("Instances")+` === '1'`)
	if err := syscall.Kill(servertest.Children(s.Cmd.Process.Pid)[0], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	killed := time.Now()
	page.awaitTrue("the model has no worker, or had to start another", tile("Instances")+` === '0 of 1' || parseInt(`+tile("Restarts")+`) > 0`)
	took := time.Since(killed)
	if took > servertest.StrictOr(2*time.Second, 30*time.Second) {
		t.Errorf("it is shown after %v", took)
	}
	t.Logf("a killed worker is shown after %v", took.Round(10*time.Millisecond))
}

// watchTasks records long tasks, and how long the page works for a refresh.
const watchTasks = `(() => {
	window.long = []
	new PerformanceObserver(list => { for (const e of list.getEntries()) window.long.push(e.duration) }).observe({ type: 'longtask' })
	window.refreshes = []
	new PerformanceObserver(list => { for (const e of list.getEntriesByName('refresh')) window.refreshes.push(e.duration) }).observe({ type: 'measure' })
	return true
})()`

// TestTheDashboardIsLightWithManyModels has 1,000 models, some of which run up to 2,000 requests
// per second, and measures what the page does with its main thread.
func TestTheDashboardIsLightWithManyModels(t *testing.T) {
	models := servertest.StrictOr(1000, 100)
	configs := map[string]string{}
	for n := range models {
		configs[fmt.Sprintf("model_%04d", n)] = servertest.Config(4*time.Millisecond, "1", "dynamic_batching { }")
	}
	b := openBrowser(t)
	s := servertest.Start(t, servertest.Repository(t, configs))
	var sent atomic.Int64
	for n := range 8 {
		c := s.Client()
		var clients sync.WaitGroup
		for range servertest.StrictOr(2, 1) {
			clients.Go(func() {
				for t.Context().Err() == nil && servertest.Ask(t.Context(), c, fmt.Sprintf("model_%04d", n*7), 1) == nil {
					sent.Add(1)
				}
			})
		}
		t.Cleanup(clients.Wait)
	}
	for _, view := range []string{"#/", "#/model_0007/1"} {
		page := b.openTab(t, 1280, 900)
		page.navigate(s.HTTP + "/" + view)
		page.awaitTrue("the stream is live", `document.getElementById('stream').textContent === 'live'`)
		time.Sleep(2 * time.Second) // the page is built once
		page.evaluate(watchTasks, new(bool))
		before, began := sent.Load(), time.Now()
		time.Sleep(servertest.StrictOr(20*time.Second, 2*time.Second))
		rate := float64(sent.Load()-before) / time.Since(began).Seconds()
		var got struct {
			Long  []float64
			Times []float64
		}
		page.evaluate(`({ Long: window.long, Times: window.refreshes })`, &got)
		if len(got.Times) == 0 {
			t.Fatal("the page was not refreshed")
		}
		slices.Sort(got.Times)
		median := got.Times[len(got.Times)/2]
		t.Logf("%s: %d models, %.0f requests per second: a refresh takes %.1f ms at the median and %.1f at most, %d tasks are over 50 ms", view, models, rate, median, got.Times[len(got.Times)-1], len(got.Long))
		if *servertest.Strict && (median > 8 || len(got.Long) > 0) {
			t.Errorf("%s: %.1f ms at the median, tasks of %v ms", view, median, got.Long)
		}
		page.quiet(s.HTTP)
		page.close()
	}
}

// TestTheDashboardIsAccessible runs axe-core, which make web installs, in all views.
func TestTheDashboardIsAccessible(t *testing.T) {
	axe, err := os.ReadFile(servertest.Root + "/web/node_modules/axe-core/axe.min.js")
	if err != nil {
		t.Skip("axe-core is not installed: run make web")
	}
	b := openBrowser(t)
	s := servertest.Start(t, servertest.Root+"/examples/seed-device")
	load(t, s, "seed_dynamic", 4)
	for _, view := range []string{"#/", "#/seed_dynamic/1"} {
		for _, scheme := range []string{"light", "dark"} {
			for _, width := range []int{1280, 390} {
				page := b.openTab(t, width, 900)
				page.colourScheme(scheme)
				page.navigate(s.HTTP + "/" + view)
				page.awaitTrue("the stream is live", `document.getElementById('stream').textContent === 'live'`)
				time.Sleep(2 * time.Second)
				page.do("Runtime.evaluate", map[string]any{"expression": string(axe)}, nil)
				page.do("Runtime.evaluate", map[string]any{"expression": `axe.run().then(r => { window.found = r })`, "awaitPromise": true}, nil)
				var found []string
				page.evaluate(`window.found.violations.filter(v => v.impact === 'serious' || v.impact === 'critical').map(v => v.id + ': ' + v.help + ' ' + v.nodes.slice(0, 3).map(n => n.html).join(' '))`, &found)
				var passed int
				page.evaluate(`window.found.passes.length`, &passed)
				if passed < 10 {
					t.Errorf("axe-core checked only %d rules", passed)
				}
				for _, f := range found {
					t.Errorf("%s, %s, %d columns: %s", view, scheme, width, f)
				}
				var overflow float64
				page.evaluate(`document.documentElement.scrollWidth - innerWidth`, &overflow)
				if overflow > 0 {
					t.Errorf("%s is %.0f columns wider than a screen of %d", view, overflow, width)
				}
				page.close()
			}
		}
	}
}

// TestADemoOpensQuickly runs shoal demo as a package has it, with a simulated model.
func TestADemoOpensQuickly(t *testing.T) {
	dir := t.TempDir()
	program, err := os.ReadFile(servertest.Root + "/bin/shoal")
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"bin/shoal":                  string(program),
		"models/magika/config.pbtxt": servertest.Config(2*time.Millisecond, "1", ""),
		"models/magika/request.json": `{"INPUT": [[1, 2, 3, 4]]}`,
		"models/magika/1/model":      "",
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(filepath.Join(dir, "bin", "shoal"), "demo", "--no-browser", "--http-port=0", "--clients=4")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill() }() // it may have ended
	line, err := bufio.NewReader(out).ReadString('\n')
	address := regexp.MustCompile(`http://[^/]+`).FindString(line)
	if err != nil || address == "" {
		t.Fatalf("demo prints %q, %v", line, err)
	}
	took := time.Since(began)
	t.Logf("the page is up after %v", took.Round(time.Millisecond))
	if took > servertest.StrictOr(5*time.Second, time.Minute) {
		t.Errorf("the page is up after %v", took)
	}
	get := func(path string) string {
		resp, err := (&http.Client{Timeout: 20 * time.Second}).Get(address + path)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	servertest.Eventually(t, "its clients are answered", func() bool {
		found := regexp.MustCompile(`"success":(\d+)`).FindStringSubmatch(get("/dashboard/events?count=1"))
		return found != nil && len(found[1]) > 1
	})
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("demo ends with %v", err)
	}
}

// TestPicturesOfTheDashboard takes the pictures of the documentation.
func TestPicturesOfTheDashboard(t *testing.T) {
	if *dashboardPictures == "" {
		t.Skip("-dashboard-pictures is not set")
	}
	b := openBrowser(t)
	s := servertest.Start(t, servertest.Root+"/examples/seed-device")
	load(t, s, "seed_dynamic", 6)
	load(t, s, "seed_auto_two", 9)
	load(t, s, "seed_none", 2)
	for _, c := range []struct {
		name, view, at, scheme string
		width, height          int
	}{
		{"models-light", "#/", "", "light", 1280, 620},
		{"models-dark", "#/", "", "dark", 1280, 620},
		{"models-phone", "#/", "", "light", 390, 780},
		{"timeline-light", "#/seed_auto_two/1", "", "light", 1280, 860},
		{"timeline-dark", "#/seed_auto_two/1", "", "dark", 1280, 860},
		{"timeline-phone", "#/seed_auto_two/1", "#timeline-title", "dark", 390, 780},
		{"figures-light", "#/seed_auto_two/1", ".grid", "light", 1280, 620},
		{"figures-dark", "#/seed_auto_two/1", ".grid", "dark", 1280, 620},
		{"figures-phone", "#/seed_auto_two/1", ".grid", "light", 390, 780},
		{"why-light", "#/seed_auto_two/1", "#why-title", "light", 1280, 860},
		{"why-dark", "#/seed_auto_two/1", "#why-title", "dark", 1280, 860},
		{"why-phone", "#/seed_auto_two/1", "#why-title", "light", 390, 780},
		{"try-light", "#/seed_auto_two/1", "#try-title", "light", 1280, 620},
		{"try-dark", "#/seed_auto_two/1", "#try-title", "dark", 1280, 620},
		{"try-phone", "#/seed_auto_two/1", "#try-title", "dark", 390, 780},
	} {
		t.Run(c.name, func(t *testing.T) {
			page := b.openTab(t, c.width, c.height)
			page.colourScheme(c.scheme)
			page.navigate(s.HTTP + "/" + c.view)
			time.Sleep(15 * time.Second) // so that the charts have lines
			if c.at != "" {
				page.evaluate(fmt.Sprintf(`(document.querySelector(%q).scrollIntoView(), true)`, c.at), new(bool))
				time.Sleep(time.Second)
			}
			if err := os.WriteFile(filepath.Join(*dashboardPictures, "dashboard-"+c.name+".png"), page.screenshot(), 0o644); err != nil {
				t.Fatal(err)
			}
			page.quiet(s.HTTP)
			page.close()
		})
	}
}
