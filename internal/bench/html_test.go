package bench

import (
	"bytes"
	"io"
	"regexp"
	"strings"
	"testing"
	"time"
)

func page(t *testing.T, write func(io.Writer) error) string {
	t.Helper()
	var out bytes.Buffer
	if err := write(&out); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// has fails unless the texts are in a page.
func has(t *testing.T, page string, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if !strings.Contains(page, text) {
			t.Errorf("%q is not in the page", text)
		}
	}
}

// foreign is what a page that stands alone does not have.
var foreign = regexp.MustCompile(`(?i)<(script|link|img|iframe|object|embed|base|form)|\bsrc=|\bhref=|url\(|@import|https?:|\son[a-z]+="`)

func TestAPageStandsAlone(t *testing.T) {
	r := report(ms(10, 20)...)
	r.Model, r.Address = `<script src="http://x">`, `"><img src=x onerror="y">`
	r.Levels[0].Client.Failed, r.Levels[0].Client.Error = 1, `<iframe src="//z">`
	c, err := Compare([]Side{{`<link href="//w">`, []*Report{r}}, {`</title><img src=q>`, []*Report{r}}})
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"report": page(t, r.WriteHTML), "comparison": page(t, c.WriteHTML)} {
		// What is escaped is text. Its words are not looked at.
		text = regexp.MustCompile(`&lt;[^<]*|&#34;[^<]*`).ReplaceAllString(text, "")
		if found := foreign.FindAllString(text, -1); found != nil {
			t.Errorf("%s: the page has %q", name, found)
		}
	}
}

func TestAReportAsAPage(t *testing.T) {
	r := report(ms(10, 20)...)
	r.Levels[0].Repeat = 0
	l := &r.Levels[1]
	l.Stable, l.Concurrency = false, 8
	l.Client.Failed, l.Client.Error, l.Client.Late = 25, "no room", 50
	l.Server = &Statistics{Inferences: 300, Executions: 100, Requests: 100, Total: 1600 * time.Millisecond, Queue: 500 * time.Millisecond, Infer: time.Second, BatchSizes: map[int]int{2: 25, 4: 75}, Closed: map[string]int{"full": 75, "<idle>": 25}}
	l.ClosedLoop, l.ServerError = &ClosedLoop{Clients: 3, P99: 9 * time.Millisecond}, "gone"
	l.Timeline = []Second{{0, 40, 25, 5e6, 9e6, 1e7}, {1e9, 0, 0, 0, 0, 0}, {2e9, 60, 0, 5e6, 9e6, 1e7}, {3e9, 1, 0, 1, 1, 1}}
	text := page(t, r.WriteHTML)
	has(t, text,
		"<li>Concurrency: 8, repeat 2: not stable. ", "<li>Concurrency: 8, repeat 2: 25 of 125 requests failed, the first with: no room</li>",
		"<li>Concurrency: 8, repeat 2: 50 of 125 requests were sent late. ",
		"a closed loop would have missed what is seen here. Its p99 would have been 9.00 ms (3 clients that count from when they could send); here it is 20.0 ms.",
		"the server reports no statistics: gone", `<td class="left long">2: 25 %, 4: 75 %</td><td class="left long">&lt;idle&gt;: 25 %, full: 75 %</td>`,
		"<dd class=\"value\">400 infer/s</dd>", "at concurrency 4",
		`<th scope="row">Concurrency: 8, repeat 2</th><td>200.0</td><td>100</td><td class="bad">25</td>`,
		"<title>queue: 5.00 ms</title>", "<title>network and client: 4.00 ms</title>", "<td>100</td><td>3.50</td>",
		"<title>second 1: 40 requests, 25 failed, p50 5.00 ms, p99 9.00 ms, longest 10.0 ms</title>", "<title>second 2: 0 requests</title>",
	)
	var plain strings.Builder
	if err := l.WriteText(&plain); err != nil || !strings.Contains(plain.String(), "Batch sizes: 3.50 rows on average") {
		t.Errorf("the text differs from the page: %s", &plain)
	}
	l.Server.BatchSizes = nil
	has(t, page(t, r.WriteHTML), "<td>100</td><td>3.00</td>")
	if strings.Contains(text, "second 4") {
		t.Error("the second that the end cut off is shown")
	}
}

func TestEachModelHasItsCharts(t *testing.T) {
	r := report(ms(10, 20, 30)...)
	r.Levels[0].Model, r.Levels[1].Model, r.Levels[2].Model = "a", "b", "a"
	text := page(t, r.WriteHTML)
	has(t, text, "<h2>Percentiles: a</h2>", "<h2>Throughput and latency: b</h2>", `id="curve-1-title"`, `<th scope="row">b, Concurrency: 4, repeat 2</th>`)
	if strings.Contains(text, "Most throughput") {
		t.Error("the most of several models together says nothing")
	}
	sides := []Side{{"x", []*Report{r}}, {"y", []*Report{r}}}
	c, err := Compare(sides)
	if err != nil || len(c.Loads) != 2 || c.Loads[0].Load != "a, Concurrency: 4" || c.Loads[0].Measures[0].Of[0].Repeats != 2 {
		t.Errorf("got %+v, %v", c, err)
	}
}

func TestAReportOfNothingIsAPage(t *testing.T) {
	has(t, page(t, (&Report{Model: "m"}).WriteHTML), "<h1>m</h1>")
	r := &Report{Model: "m", Levels: []Level{{Concurrency: 1, Interrupted: true}}}
	has(t, page(t, r.WriteHTML), "interrupted. These figures are of 0 ns.")
}

func TestAComparisonAsAPage(t *testing.T) {
	same, longer := ms(10, 10, 10, 10, 10, 10, 10), ms(20, 20, 20, 20, 20, 20, 20)
	c, err := Compare([]Side{{"base", []*Report{report(same...)}}, {"new", []*Report{report(longer...)}}})
	if err != nil {
		t.Fatal(err)
	}
	has(t, page(t, c.WriteHTML),
		"<h1>base and new</h1>", "<p>new, compared with base: worse in 5 of 5 figures.</p>",
		"from 0.50 to 2.00, with 1 in the middle",
		`<th scope="row">Concurrency: 4</th><td class="left">throughput</td><td class="left long">base</td><td>7</td><td>400.0 infer/s</td><td></td>`,
		`<line class="span" x1="155" y1="8" x2="155" y2="8"/>`, `<td>2.000 to 2.000</td><td class="left bad">worse</td>`,
		"<title>new, concurrency 4: 200 infer/s, p99 20.0 ms</title>",
	)
}

func TestFiguresHaveThreeDigits(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0 ns", 999: "999 ns", 1500: "1.50 µs", 999_600: "1.00 ms", 12_340_000: "12.3 ms", 456_700_000: "457 ms", 90 * time.Second: "90.0 s",
	} {
		if got := brief(d); got != want {
			t.Errorf("%d: got %s, want %s", d, got, want)
		}
	}
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", -1234567: "-1,234,567"} {
		if got := grouped(n); got != want {
			t.Errorf("%d: got %s, want %s", n, got, want)
		}
	}
}

func TestAReportSaysWhatItsRequestsAndWindowsWere(t *testing.T) {
	for name, c := range map[string]struct {
		change                func(*Report)
		rows, window, onAPage string
	}{
		"time":     {func(*Report) {}, "1", "1000 msec", "requests of 1 row · windows of 1s"},
		"requests": {func(r *Report) { r.Rows, r.WindowRequests = 2, 50 }, "2", "50 requests", "requests of 2 rows · windows of 50 requests"},
		"a trace":  {func(r *Report) { r.Rows = 0 }, "as recorded", "the whole trace", "requests as recorded · one window, the whole trace"},
	} {
		r := report(ms(10)...)
		c.change(r)
		has(t, page(t, r.WriteHTML), c.onAPage+", compared by average latency and throughput")
		if head, want := page(t, r.WriteHead), "Batch size: "+c.rows+"\n  Measurement window: "+c.window+"\n"; !strings.Contains(head, want) {
			t.Errorf("%s: got %s, want %s", name, head, want)
		}
	}
}
