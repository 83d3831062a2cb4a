package main

import (
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"unicode/utf8"

	tea "charm.land/bubbletea/v2"
)

// feed gives a view the events of a model that answers 100 requests per second in 6 ms, and of
// one that could not be loaded.
func feed(t *testing.T, v *topView) {
	t.Helper()
	events := []string{`hello {"version":"1.2","bounds_ms":[4,8,16]}`}
	for i := range 41 {
		names := ""
		if i == 0 {
			names = `"names":["bad/1","busy/1"],`
		}
		events = append(events, fmt.Sprintf(`figures {"at":%d,"in_flight":3,%s"models":[{"name":"bad","version":"1","state":"UNAVAILABLE","reason":"no\u001b file"},
			{"name":"busy","version":"1","state":"READY","serving":true,"instances":2,"alive":1,"queue":5,"success":%d,"batches":%d,"batch_rows":%d,"failed":{"overloaded":%d},"latency":[0,%d,0]}]}`,
			1000+500*i, names, 50*i, 10*i, 50*i, 5*i, 50*i))
	}
	for _, e := range events {
		name, data, _ := strings.Cut(e, " ")
		if err := v.event(name, []byte(data)); err != nil {
			t.Fatal(err)
		}
	}
}

func TestTopKeepsItsSizeOnATerminalThatDoesNotKnowIt(t *testing.T) {
	p := topProgram{view: &topView{address: "here:8000", width: 80, sort: 'r'}}
	p.Update(tea.WindowSizeMsg{})
	feed(t, p.view)
	if p.view.width != 80 || len(p.view.lines()) == 0 {
		t.Errorf("a width of %d", p.view.width)
	}
}

func TestTopShowsRatesOfTheLastSeconds(t *testing.T) {
	v := topView{address: "here:8000", width: 80, sort: 'r'}
	feed(t, &v)
	lines := v.lines()
	const want = `Shoal 1.2 at here:8000 · 2 models · 100 req/s · 3 in flight

MODEL            STATE          REQ/S       P50       P99  QUEUE  BATCH  FAIL/S
busy             1 of 2           100    6.0 ms    8.0 ms      5    5.0      10
bad              unavailable  no� file

r l u n: sort by rate, latency, queue, name · q: end`
	if got := strings.Join(lines, "\n"); got != want {
		t.Errorf("the table is\n%s\nwant\n%s", got, want)
	}
	for _, line := range lines {
		if n := utf8.RuneCountInString(line); n > 80 {
			t.Errorf("%d columns: %s", n, line)
		}
	}
	if n := len(v.history["busy/1"]); n > 21 {
		t.Errorf("%d samples are kept, want those of ten seconds", n)
	}
	v.sort = 'n'
	if line := v.lines()[3]; !strings.HasPrefix(line, "bad ") {
		t.Errorf("by name, the first is %s", line)
	}
}

func TestTopBeginsAgainWithAModelThatWasReloaded(t *testing.T) {
	v := topView{address: "here:8000", width: 80, sort: 'r'}
	const ready = `figures {"at":%d,"names":["m/1"],"models":[{"name":"m","version":"1","state":"READY","serving":true,"instances":1,"alive":1,"failed":{"overloaded":%d},"latency":[0,0,0]}]}`
	for _, e := range []string{
		`hello {"bounds_ms":[4,8,16]}`,
		fmt.Sprintf(ready, 1000, 100),
		`figures {"at":1500,"models":[{"name":"m","version":"1","state":"LOADING","latency":null}]}`,
		fmt.Sprintf(ready, 2000, 0),
		fmt.Sprintf(ready, 3000, 2),
	} {
		name, data, _ := strings.Cut(e, " ")
		if err := v.event(name, []byte(data)); err != nil {
			t.Fatal(err)
		}
		v.lines() // must not panic
	}
	if row := v.lines()[3]; !strings.HasSuffix(row, " 2.0") {
		t.Errorf("the row is %q, want 2 failures per second", row)
	}
	if err := v.event("figures", []byte(`{"at":3500,"names":["other/1"]}`)); err != nil || len(v.history) != 0 {
		t.Errorf("%v: %d models that are gone are kept", err, len(v.history))
	}
}

func TestAQuantileIsInsideItsBucket(t *testing.T) {
	bounds := []float64{1, 2, 4}
	for _, c := range []struct {
		counts []uint64
		q      float64
		want   float64
	}{
		{[]uint64{0, 0, 0}, 0.5, math.NaN()},
		{[]uint64{10, 0, 0}, 0.5, 0.5},
		{[]uint64{0, 10, 0}, 0.99, 1.99},
		{[]uint64{5, 0, 5}, 0.5, 1},
		{[]uint64{5, 0, 5}, 1, 4},
	} {
		if got := quantile(c.counts, bounds, c.q); math.Abs(got-c.want) > 1e-9 || math.IsNaN(got) != math.IsNaN(c.want) {
			t.Errorf("%v of %v is %v, want %v", c.q, c.counts, got, c.want)
		}
	}
}

func TestTopSaysWhyAServerShowsItNothing(t *testing.T) {
	for _, c := range []struct {
		answer http.HandlerFunc
		want   string
	}{
		{func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "who is it?", http.StatusUnauthorized) }, "answers 401 Unauthorized: who is it?; set --token or SHOAL_TOKEN to an API key or a token that may do this"},
		{func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "not you", http.StatusForbidden) }, "answers 403 Forbidden: not you; set --token or SHOAL_TOKEN to an API key or a token that may do this"},
		{http.NotFound, "top needs a Shoal server with --allow-dashboard"},
		{func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<!doctype html>") }, "answers 200 OK: <!doctype html>; top needs a Shoal server with --allow-dashboard"},
		{func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "event: hello\n")
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}, "stopped in the middle of its answer: unexpected EOF"},
	} {
		s := httptest.NewServer(c.answer)
		at := strings.TrimPrefix(s.URL, "http://")
		if text, status := shoal(t, "top", "--once", "-u", at); status != exitFailed || !strings.Contains(text, "the server at "+at+" ") || !strings.Contains(text, c.want) {
			t.Errorf("status %d: %swant %s", status, text, c.want)
		}
		s.Close()
	}
}

func TestTopEndsWithAnErrorAtEventsThatItCannotRead(t *testing.T) {
	const want = "the server at here:8000 sent something that this version of shoal cannot read: "
	p := topProgram{view: &topView{address: "here:8000"}}
	if _, quit := p.Update(topEvent{"figures", []byte(`{"models":[{"queue":"long"}]}`)}); quit == nil || p.view.failed == nil || !strings.HasPrefix(p.view.failed.Error(), want) {
		t.Errorf("on a terminal: %v, want %s", p.view.failed, want)
	}
	if err := (&topView{address: "here:8000"}).event("hello", []byte("{")); err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("once: %v, want %s", err, want)
	}
}

func TestTopPrintsOnceWithoutATerminal(t *testing.T) {
	at := running(t, 3, slog.DiscardHandler)
	awaitReady(t, at)
	text, status := shoal(t, "top", "-u", at["http"])
	if status != exitOK || !strings.Contains(text, "seed_none") || !strings.Contains(text, "MODEL") {
		t.Errorf("status %d:\n%s", status, text)
	}
	if text, status := shoal(t, "top", "-u", at["metrics"]); status != exitFailed || !strings.Contains(text, "--allow-dashboard") {
		t.Errorf("on another port: status %d: %s", status, text)
	}
	if text, status := shoal(t, "top", "-u", "127.0.0.1:1"); status != exitFailed || !strings.Contains(text, "no server answers") {
		t.Errorf("without a server: status %d: %s", status, text)
	}
}
