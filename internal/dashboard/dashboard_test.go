package dashboard

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shoal-serving/shoal/internal/access"
	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/catalog"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/leak"
	"github.com/shoal-serving/shoal/internal/server"
	"github.com/shoal-serving/shoal/internal/stats"
)

func TestMain(m *testing.M) { leak.Main(m) }

// A fake is a server with the given versions. It counts how often they are read.
type fake struct {
	stopping chan struct{}

	mu       sync.Mutex // guards the following
	live     []server.Live
	counters map[string]*stats.Counters
	memory   int64 // of each version
	reads    int
}

func newFake(names ...string) *fake {
	f := &fake{stopping: make(chan struct{}), counters: map[string]*stats.Counters{}}
	for _, name := range names {
		f.add(name)
	}
	return f
}

func (f *fake) add(name string) {
	f.live = append(f.live, server.Live{IndexEntry: catalog.IndexEntry{Name: name, Version: "1", State: "READY"}, Instances: 2})
	f.counters[name] = stats.New(8)
}

func (f *fake) Live() []server.Live {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reads++
	all := slices.Clone(f.live)
	for i := range all {
		all[i].Figures = &server.Figures{Model: all[i].Name, Version: 1, AliveInstances: 1, Stats: f.counters[all[i].Name].Snapshot(), Waiting: 3, Memory: f.memory}
	}
	return all
}

func (f *fake) Counters(model, _ string) (*stats.Counters, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c := f.counters[model]; c != nil {
		return c, nil
	}
	return nil, infer.Errorf(infer.NotFound, "no model %s", model)
}

func (f *fake) UnknownModel() (n [infer.NumCodes]uint64) {
	n[infer.NotFound] = 7
	return n
}
func (f *fake) Accepting() bool           { return true }
func (f *fake) Unready() bool             { return false }
func (f *fake) InFlight() int             { return 4 }
func (f *fake) Stopping() <-chan struct{} { return f.stopping }

// An event is a received one.
type event struct{ name, data, retry string }

// events parses a stream.
func events(t *testing.T, text string) (all []event) {
	t.Helper()
	var e event
	for lines := bufio.NewScanner(strings.NewReader(text)); lines.Scan(); {
		switch line := lines.Text(); {
		case strings.HasPrefix(line, "event: "):
			e.name = line[7:]
		case strings.HasPrefix(line, "data: "):
			e.data = line[6:]
		case strings.HasPrefix(line, "retry: "):
			e.retry = line[7:]
		case line == "":
			all = append(all, e)
			e = event{}
		default:
			t.Errorf("line %q", line)
		}
	}
	return all
}

// receive reads the events that a viewer gets in the given time, during which do is called.
func receive(t *testing.T, d *Dashboard, query string, long time.Duration, do func()) []event {
	t.Helper()
	ctx, leave := context.WithTimeout(t.Context(), long)
	defer leave()
	w := httptest.NewRecorder()
	done := make(chan error, 1)
	go func() {
		done <- d.ServeEvents(w, httptest.NewRequest(http.MethodGet, "/dashboard/events"+query, nil).WithContext(ctx))
	}()
	if do != nil {
		do()
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	return events(t, w.Body.String())
}

// figures decodes the events of that name.
func figures(t *testing.T, all []event) (list []summary, models [][]model) {
	t.Helper()
	for _, e := range all {
		if e.name != "figures" {
			continue
		}
		var s summary
		if err := json.Unmarshal([]byte(e.data), &s); err != nil {
			t.Fatal(err)
		}
		var of []model
		for _, text := range s.Models {
			var m model
			if err := json.Unmarshal(text, &m); err != nil {
				t.Fatal(err)
			}
			of = append(of, m)
		}
		list, models = append(list, s), append(models, of)
	}
	return list, models
}

func TestAnEventHasOnlyWhatChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake("a", "b")
		d := New(f, Options{Interval: time.Second})
		all := receive(t, d, "", 3500*time.Millisecond, func() {
			time.Sleep(500 * time.Millisecond)
			f.counters["b"].Succeeded(2, 3*time.Millisecond, &infer.Timeline{})
			f.counters["b"].Failed(infer.Overloaded, 0)
			f.counters["b"].Ran(&stats.Run{Rows: 2, CloseReason: batching.Waited, QueueTimes: []time.Duration{0}})
			time.Sleep(time.Second)
			f.mu.Lock()
			f.add("c")
			f.mu.Unlock()
		})
		if all[0].name != "hello" {
			t.Errorf("the first event is %s", all[0].name)
		}
		list, models := figures(t, all)
		if len(list) != 4 {
			t.Fatalf("%d events in 3.5 s, want one at once and one per second", len(list))
		}
		if s := list[0]; !slices.Equal(s.Names, []string{"a/1", "b/1"}) || len(models[0]) != 2 || s.InFlight != 4 || s.Unknown["not_found"] != 7 || !s.Accepting {
			t.Errorf("the first has %+v", s)
		}
		if len(models[1]) != 1 || list[1].Names != nil {
			t.Fatalf("the second has %d models and names %v, want b alone", len(models[1]), list[1].Names)
		}
		if m := models[1][0]; m.Name != "b" || m.Success != 1 || m.Rows != 2 || m.Failed["overloaded"] != 1 || m.Closed["waited"] != 1 || m.Batches != 1 || m.Alive != 1 || m.Instances != 2 || m.Queue != 3 || m.Latency[6] != 1 {
			t.Errorf("b has %+v", m)
		}
		if !slices.Equal(list[2].Names, []string{"a/1", "b/1", "c/1"}) || len(models[2]) != 1 || models[2][0].Name != "c" {
			t.Errorf("a new model: %v %+v", list[2].Names, models[2])
		}
		if len(models[3]) != 0 {
			t.Errorf("nothing changed, and there are %+v", models[3])
		}
	})
}

func TestAVersionThatIsReplacedWithItsCountsShowsItsOwnMemoryAndObjective(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake("a")
		d := New(f, Options{Interval: time.Second})
		_, models := figures(t, receive(t, d, "", 2500*time.Millisecond, func() {
			time.Sleep(500 * time.Millisecond)
			f.mu.Lock()
			f.memory = 7
			f.mu.Unlock()
			time.Sleep(time.Second)
			f.mu.Lock()
			f.counters["a"] = stats.New(8)
			f.counters["a"].Objective = time.Minute
			f.mu.Unlock()
		}))
		if len(models) != 3 || len(models[1]) != 1 || models[1][0].Memory != 7 || len(models[2]) != 1 || models[2][0].Objective != time.Minute {
			t.Errorf("got %+v, want an event with the memory of 7, and then one with the objective of a minute", models)
		}
	})
}

func TestAViewerIsToldThatTheLastModelIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake("a")
		d := New(f, Options{Interval: time.Second})
		const gone = `"names":[],"models":[]`
		all := receive(t, d, "", 2500*time.Millisecond, func() {
			time.Sleep(500 * time.Millisecond)
			f.mu.Lock()
			f.live = nil
			f.mu.Unlock()
		})
		for i, want := range []bool{false, true, false} { // after hello
			if got := strings.Contains(all[i+1].data, gone); got != want {
				t.Errorf("event %d says that there are no models: %t, want %t: %s", i, got, want, all[i+1].data)
			}
		}
		// The page of a browser that opens another stream may still show a model.
		if again := receive(t, d, "", time.Millisecond, nil); !strings.Contains(again[1].data, gone) {
			t.Errorf("the first event of another stream is %s", again[1].data)
		}
	})
}

func TestBatchesOfTheWatchedModelAreSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake("a", "b")
		d := New(f, Options{Interval: time.Second})
		taken := time.UnixMicro(5_000_000)
		run := stats.Batch{
			Instance: 2, CloseReason: batching.Gathered, Rows: 3, Taken: taken, RunStarted: taken.Add(10 * time.Microsecond), RunEnded: taken.Add(3 * time.Millisecond), Split: taken.Add(4 * time.Millisecond),
			Requests: []stats.BatchRequest{{Queued: taken.Add(-time.Millisecond), Rows: 2}, {Queued: taken, Rows: 1}},
		}
		all := receive(t, d, "?model=a", 3500*time.Millisecond, func() {
			time.Sleep(500 * time.Millisecond)
			f.counters["a"].Observe(&run)
			f.counters["b"].Observe(&run)
			time.Sleep(time.Second)
			f.mu.Lock()
			f.counters["a"] = stats.New(8) // another version takes its place
			f.mu.Unlock()
			time.Sleep(time.Second)
			f.counters["a"].Observe(&run)
		})
		var got []string
		for _, e := range all {
			if e.name == "batches" {
				got = append(got, e.data)
			}
		}
		const want = `{"model":"a","version":"","missed":0,"batches":[{"n":1,"i":2,"why":"gathered","rows":3,"taken":5000000,"run":10,"end":3000,"split":4000,"requests":[[1000,2],[0,1]]}]}`
		if !slices.Equal(got, []string{want, want}) {
			t.Errorf("batches:\n%s", strings.Join(got, "\n"))
		}
	})
}

// TestEachViewerSeesEachBatchOnce has viewers that come at different times, and more batches than
// an event may have.
func TestEachViewerSeesEachBatchOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake("a")
		d := New(f, Options{Interval: time.Second})
		// seen returns the number of batches that were sent to a viewer, and of those that it missed.
		seen := func(all []event) (sent, missed int) {
			last := uint64(0)
			for _, e := range all {
				var got struct {
					Missed  int
					Batches []batch
				}
				if e.name != "batches" {
					continue
				}
				if err := json.Unmarshal([]byte(e.data), &got); err != nil {
					t.Fatal(err)
				}
				for _, b := range got.Batches {
					if b.Number <= last {
						t.Errorf("batch %d after batch %d", b.Number, last)
					}
					last = b.Number
				}
				sent, missed = sent+len(got.Batches), missed+got.Missed
			}
			return sent, missed
		}
		var all sync.WaitGroup
		view := func(wantSent, wantMissed int) {
			all.Go(func() {
				if sent, missed := seen(receive(t, d, "?model=a", 4300*time.Millisecond, nil)); sent != wantSent || missed != wantMissed {
					t.Errorf("a viewer gets %d batches and misses %d, want %d and %d", sent, missed, wantSent, wantMissed)
				}
			})
		}
		run := func(n int) {
			for range n {
				f.counters["a"].Observe(&stats.Batch{Instance: 1})
			}
		}
		view(10+maxBatches, 50)
		time.Sleep(100 * time.Millisecond)
		run(10)
		time.Sleep(1300 * time.Millisecond) // all ten were read at 1 s
		view(maxBatches, 50)
		time.Sleep(200 * time.Millisecond)
		run(maxBatches + 50)
		all.Wait()
	})
}

func TestViewersShareWhatIsRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake("a")
		d := New(f, Options{Interval: time.Second})
		var all sync.WaitGroup
		for range 3 {
			all.Go(func() { receive(t, d, "", 9500*time.Millisecond, nil) })
		}
		all.Wait()
		if f.reads != 10 {
			t.Errorf("the figures were read %d times for three viewers, want 10 as for one", f.reads)
		}
	})
}

func TestWithoutViewersNothingIsHeldAndNothingRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake("a")
		d := New(f, Options{Interval: time.Second})
		before := runtime.NumGoroutine()
		if n := len(receive(t, d, "?model=a", 2500*time.Millisecond, func() {
			time.Sleep(time.Second)
			if !f.counters["a"].Observes(time.Now()) {
				t.Error("the batches of a viewed model are not watched")
			}
		})); n == 0 {
			t.Error("the viewer got nothing")
		}
		reads := f.reads
		time.Sleep(time.Hour)
		synctest.Wait()
		if f.reads != reads {
			t.Errorf("figures were read %d times after the viewer had left", f.reads-reads)
		}
		if n := runtime.NumGoroutine(); n > before {
			t.Errorf("%d goroutines, %d before", n, before)
		}
		if b := &d.board; b.viewers != 0 || b.entries != nil || b.names != nil {
			t.Errorf("the board holds %d entries", len(b.entries))
		}
		if f.counters["a"].Observes(time.Now()) || len(d.reels.all) != 0 {
			t.Error("batches are watched")
		}
	})
}

func TestAStreamEndsWithTheServerAndAfterAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := New(newFake("a"), Options{})
		began := time.Now()
		receive(t, d, "", time.Hour, nil)
		if took := time.Since(began); took != maxStream {
			t.Errorf("the stream ended after %v, want %v", took, maxStream)
		}
		if list, _ := figures(t, receive(t, d, "?count=3", time.Hour, nil)); len(list) != 3 {
			t.Errorf("%d figures, want 3", len(list))
		}
		f := newFake("a")
		began = time.Now()
		receive(t, New(f, Options{}), "", time.Hour, func() {
			time.Sleep(10 * time.Second)
			close(f.stopping)
		})
		if took := time.Since(began); took != 10*time.Second {
			t.Errorf("the stream of a server that stopped after 10 s ended after %v", took)
		}
	})
}

// TestBrowsersOpenAnotherStreamAtOnce has a stream that ends: browsers wait for seconds unless the
// server says how long.
func TestBrowsersOpenAnotherStreamAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := receive(t, New(newFake("a"), Options{}), "?count=2", time.Hour, nil)
		if all[0].name != "hello" || all[0].retry != "200" {
			t.Errorf("the first event is %+v, want a hello that says when to open another stream", all[0])
		}
		for _, e := range all[1:] {
			if e.retry != "" {
				t.Errorf("event %s says it again", e.name)
			}
		}
	})
}

// connect serves a dashboard on a connection without buffers, and returns the client's end.
func connect(t *testing.T, d *Dashboard) net.Conn {
	t.Helper()
	client, conn := net.Pipe()
	l := &oneConn{conn: make(chan net.Conn, 1), closed: make(chan struct{})}
	l.conn <- conn
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/" {
			d.ServePage(w, r)
		} else if err := d.ServeEvents(w, r); err != nil {
			t.Error(err)
		}
	})}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(l) // until it is closed
	}()
	t.Cleanup(func() {
		_, _ = client.Close(), s.Close() // the server may have closed both
		<-done
	})
	return client
}

// A oneConn is a listener that accepts one connection.
type oneConn struct {
	conn   chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (l *oneConn) Accept() (net.Conn, error) {
	select {
	case c := <-l.conn:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *oneConn) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *oneConn) Addr() net.Addr { return &net.UnixAddr{} }

func TestAViewerThatDoesNotReadLosesItsPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := New(newFake("a"), Options{})
		client := connect(t, d)
		viewers := func() int {
			synctest.Wait()
			d.board.mu.Lock()
			defer d.board.mu.Unlock()
			return d.board.viewers
		}
		if _, err := io.WriteString(client, "GET /dashboard/events?model=a HTTP/1.1\r\nHost: a\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(stall - time.Second)
		if n := viewers(); n != 1 {
			t.Errorf("%d viewers before the deadline, want 1", n)
		}
		time.Sleep(2 * time.Second)
		if n := viewers(); n != 0 {
			t.Errorf("%d viewers after the deadline, want none", n)
		}
	})
}

func TestAViewerThatReadsKeepsItsPlaceAndItsConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := connect(t, New(newFake("a"), Options{Interval: time.Second}))
		from := bufio.NewReader(client)
		get := func(path string) string {
			if _, err := io.WriteString(client, "GET "+path+" HTTP/1.1\r\nHost: a\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
			resp, err := http.ReadResponse(from, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = resp.Body.Close() }() // it was read
			text, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Fatal(err)
			}
			return string(text)
		}
		if list, _ := figures(t, events(t, get("/dashboard/events?count=90"))); len(list) != 90 {
			t.Errorf("%d figures in a stream of 90 s, want 90", len(list))
		}
		time.Sleep(2 * stall)
		if page := get("/"); len(page) < 50 {
			t.Errorf("the next request on the connection gets %q", page)
		}
	})
}

// TestACallerGetsAShareOfTheViewers has callers that each open as many streams as they can: four of
// addresses, one of a network of IPv6 that changes its address, and two principals of one address.
// After that, callers without a stream get one each.
func TestACallerGetsAShareOfTheViewers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := New(newFake(), Options{})
		ctx, leave := context.WithCancel(t.Context())
		var all sync.WaitGroup
		var refused atomic.Int64
		open := func(address, principal string) {
			r := httptest.NewRequest(http.MethodGet, "/dashboard/events", nil).WithContext(ctx)
			r.RemoteAddr = address
			if principal != "" {
				r = r.WithContext(access.WithCaller(ctx, &access.Caller{Principals: []*access.Principal{{Name: principal}}}))
			}
			all.Go(func() {
				if err := d.ServeEvents(httptest.NewRecorder(), r); err != nil {
					refused.Add(1)
					if infer.CodeOf(err) != infer.Overloaded {
						t.Errorf("%s %s: %v, want an error of a full server", address, principal, err)
					}
				}
			})
			synctest.Wait()
		}
		want := func(viewers int, refusals int64) {
			t.Helper()
			if refused.Swap(0) != refusals || d.board.viewers != viewers {
				t.Errorf("%d viewers, want %d and %d refusals", d.board.viewers, viewers, refusals)
			}
		}
		for i := range 10 {
			for _, address := range []string{"192.0.2.1", "192.0.2.2", "[::ffff:192.0.2.3]"} {
				open(fmt.Sprintf("%s:%d", address, 1000+i), "")
			}
			open(fmt.Sprintf("[2001:db8::%d]:1000", i), "")
			open("192.0.2.5:1000", "blue")
			open("192.0.2.5:1000", "green")
		}
		want(6*maxOfCaller, 6*2)
		for i := range keptFree {
			for range 2 {
				open(fmt.Sprintf("198.51.100.%d:1000", i), "")
			}
		}
		want(maxViewers, keptFree)
		open("198.51.100.200:1000", "")
		want(maxViewers, 1)
		leave()
		all.Wait()
		if len(d.board.callers) != 0 {
			t.Errorf("%v is held without viewers", d.board.callers)
		}
	})
}

func TestTenantsAreShown(t *testing.T) {
	tenants := access.NewTenants()
	blue := tenants.Of(&access.Caller{Principals: []*access.Principal{{Name: "x", Tenant: "blue"}}})
	if err := blue.Begin(time.Now(), 1); err != nil {
		t.Fatal(err)
	}
	d := New(newFake(), Options{Tenants: tenants})
	all := d.summary(time.Now()).Tenants
	if i := slices.IndexFunc(all, func(t tenant) bool { return t.Name == "blue" }); i < 0 || all[i].Admitted != 1 || all[i].InFlight != 1 {
		t.Errorf("tenants: %+v", all)
	}
}

func TestTheFilesOfThePageHaveTagsAndAllowNothingElse(t *testing.T) {
	d := New(newFake(), Options{})
	get := func(name, tag string) (*httptest.ResponseRecorder, bool) {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set("If-None-Match", tag)
		w := httptest.NewRecorder()
		if name == "" {
			d.ServePage(w, r)
			return w, true
		}
		ok := d.ServeFile(w, r, name)
		return w, ok
	}
	for name, kind := range map[string]string{"": "text/html; charset=utf-8", "app.js": "text/javascript; charset=utf-8", "app.css": "text/css; charset=utf-8", "icon.svg": "image/svg+xml"} {
		w, ok := get(name, "")
		if !ok || w.Code != http.StatusOK || w.Header().Get("Content-Type") != kind || w.Body.Len() < 50 || !strings.Contains(w.Header().Get("Content-Security-Policy"), "default-src 'none'") {
			t.Errorf("%q: %d %v", name, w.Code, w.Header())
		}
		if w, _ := get(name, w.Header().Get("ETag")); w.Code != http.StatusNotModified || w.Body.Len() > 0 {
			t.Errorf("%q with its tag: %d", name, w.Code)
		}
	}
	for _, name := range []string{"index.html", "../dashboard.go", "nothing"} {
		if _, ok := get(name, ""); ok {
			t.Errorf("%s is served", name)
		}
	}
}
