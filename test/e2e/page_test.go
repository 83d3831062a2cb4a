//go:build e2e

package e2e

import (
	"bytes"
	"encoding/json"
	"flag"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoal-serving/shoal/internal/bench"
	"github.com/shoal-serving/shoal/test/servertest"
)

// pictureFile is set by `make measure WHAT=picture`.
var pictureFile = flag.String("picture", "", "measure longer, and write a picture of the report to this file")

// TestReportsOpenInABrowser opens the pages that `shoal bench --html` and `shoal bench
// compare --html` write.
func TestReportsOpenInABrowser(t *testing.T) {
	b := openBrowser(t)
	s := servertest.Start(t, servertest.Root+"/examples/seed-device")
	folder := t.TempDir()
	measured := measureForPage(t, s, folder)

	t.Run("report", func(t *testing.T) {
		light := inspect(b, t, filepath.Join(folder, "base.html"), "seed_dynamic", "Throughput and latency", "Percentiles", "Where the time went", "compute infer", "Second by second")
		if *pictureFile != "" {
			if err := os.WriteFile(*pictureFile, light, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	})
	t.Run("troubled report", func(t *testing.T) {
		file := filepath.Join(folder, "troubled.html")
		writePage(t, file, troubled(measured).WriteHTML)
		inspect(b, t, file, "<script>alert(1)</script>", "not stable", "40 of 1,040 requests failed", `"</title><img src=x onerror=alert(2)>"`, "interrupted")
	})
	t.Run("comparison", func(t *testing.T) {
		file := filepath.Join(folder, "compare.html")
		out, err := exec.CommandContext(t.Context(), filepath.Join(servertest.Root, "bin", "shoal"), "bench", "compare",
			filepath.Join(folder, "base.json"), "<b>new="+filepath.Join(folder, "base.json"), "--html", file).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		inspect(b, t, file, "base and <b>new", "not enough repeats to say", "Throughput and p99")
	})
}

// measureForPage measures for a few seconds, and writes base.json and base.html.
func measureForPage(t *testing.T, s *servertest.Server, folder string) *bench.Report {
	t.Helper()
	file := filepath.Join(folder, "base.json")
	// Other work on the machine must not make the figures unstable, except in a picture.
	loads, window, differ := "2:6:2", "1000", "300"
	if *pictureFile != "" {
		loads, window, differ = "2:12:2", "3000", "10"
	}
	out, err := servertest.BenchCommand(s, "grpc", "-m", "seed_dynamic", "-b", "2", "--concurrency-range", loads, "-p", window, "-s", differ,
		"--json", file, "--html", filepath.Join(folder, "base.html")).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var r bench.Report
	if err := json.Unmarshal(text, &r); err != nil {
		t.Fatal(err)
	}
	return &r
}

// troubled returns a report in which everything has gone wrong, with names that contain
// HTML.
func troubled(r *bench.Report) *bench.Report {
	bad := *r
	bad.Model = "<script>alert(1)</script>" + strings.Repeat("long", 60)
	bad.Levels = append([]bench.Level{}, r.Levels...)
	for i := range bad.Levels {
		l := &bad.Levels[i]
		l.Client.Requests, l.Client.Failed, l.Client.Late = 1000, 40, 500
		l.Client.Error = `model "</title><img src=x onerror=alert(2)>" is not there, and ` + strings.Repeat("x", 300)
		l.Timeline = append([]bench.Second{}, l.Timeline...)
		l.Timeline[0].Failed = 40
		l.Stable = false
	}
	bad.Levels[1].Interrupted, bad.Levels[1].Server = true, nil
	return &bad
}

func writePage(t *testing.T, file string, write func(io.Writer) error) {
	t.Helper()
	var out bytes.Buffer
	if err := write(&out); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, out.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}

// inspect opens a page in light and dark mode, and returns a screenshot of its top in
// light mode. It fails if the page requests or logs anything, lacks one of the texts, or
// is hard to read.
func inspect(b *browser, t *testing.T, file string, texts ...string) []byte {
	t.Helper()
	file, err := filepath.Abs(file)
	if err != nil {
		t.Fatal(err)
	}
	address := (&url.URL{Scheme: "file", Path: file}).String()
	page := b.openTab(t, 1280, 1000)
	defer page.close()
	page.colourScheme("light")
	page.navigate(address)
	pictures := map[string][]byte{}
	for _, name := range []string{"light", "dark"} {
		page.colourScheme(name)
		var complaints []string
		page.evaluate(readable, &complaints)
		for _, complaint := range complaints {
			t.Errorf("%s: %s", name, complaint)
		}
		pictures[name] = page.screenshot()
	}
	if bytes.Equal(pictures["light"], pictures["dark"]) {
		t.Error("light and dark look the same")
	}
	var text string
	page.evaluate("document.body.innerText", &text)
	servertest.Contains(t, "page", text, texts...)
	for _, m := range page.activity(address) {
		t.Errorf("the page has caused %s", m)
	}
	return pictures["light"]
}

// activity returns what the page at the address has logged, thrown and requested so far,
// other than itself. It makes a request and logs a line of its own to see the end of what
// came before.
func (p *tab) activity(address string) (all []string) {
	p.t.Helper()
	const end = "data:,end"
	p.evaluate(`console.log("`+end+`"); fetch("`+end+`"); ""`, new(string))
	logged, requested := false, false
	for _, m := range p.browser.await(p.t, p.session, "the last log line and request", func(m message) bool {
		logged = logged || m.Method == "Runtime.consoleAPICalled" && strings.Contains(string(m.Params), end)
		requested = requested || m.Method == "Network.requestWillBeSent" && strings.Contains(string(m.Params), end)
		return logged && requested
	}) {
		text := m.Method + " " + string(m.Params)
		switch m.Method {
		case "Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded":
		case "Network.requestWillBeSent":
			var sent struct{ Request struct{ URL string } }
			if err := json.Unmarshal(m.Params, &sent); err != nil {
				p.t.Fatal(err)
			}
			if sent.Request.URL == address {
				continue
			}
		default:
			continue
		}
		if !strings.Contains(text, end) {
			all = append(all, text)
		}
	}
	return all
}

// readable is a script that returns descriptions of what is hard to read in a page.
const readable = `(() => {
	const found = [];
	const rgb = text => { const n = text.match(/[\d.]+/g).map(Number); return n.length < 4 ? [...n, 1] : n; };
	const luminance = c => {
		const [r, g, b] = c.slice(0, 3).map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
		return 0.2126 * r + 0.7152 * g + 0.0722 * b;
	};
	const behind = e => {
		for (; e; e = e.parentElement) {
			const c = rgb(getComputedStyle(e).backgroundColor);
			if (c[3] === 1) return c;
			if (c[3] > 0) found.push('a background can be seen through: ' + e.outerHTML.slice(0, 80));
		}
		return [255, 255, 255, 1];
	};
	const page = document.documentElement;
	if (page.scrollWidth > page.clientWidth) found.push('the page is ' + page.scrollWidth + ' pixels wide');
	let texts = 0;
	for (const e of document.body.querySelectorAll('*')) {
		const style = getComputedStyle(e), box = e.getBoundingClientRect();
		const say = what => found.push(what + ': ' + e.outerHTML.slice(0, 120));
		if (!(e instanceof SVGElement) && style.overflowX !== 'visible' && e.scrollWidth > e.clientWidth) say('clipped by ' + (e.scrollWidth - e.clientWidth) + ' pixels');
		const svg = e.ownerSVGElement;
		if (svg && box.width + box.height > 0) {
			const of = svg.getBoundingClientRect();
			if (box.left < of.left - 1 || box.right > of.right + 1 || box.top < of.top - 1 || box.bottom > of.bottom + 1) say('reaches out of its picture');
		}
		if (box.width === 0 || ![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim())) continue;
		texts++;
		if (box.left < 0 || box.right > page.clientWidth + 1) say('beyond the edge');
		const scale = svg ? e.getScreenCTM().a : 1;
		if (parseFloat(style.fontSize) * scale < 11.99) say('text of ' + parseFloat(style.fontSize) * scale + ' pixels');
		const a = luminance(rgb(svg ? style.fill : style.color)), b = luminance(behind(svg || e));
		const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
		if (contrast < 4.5) say('contrast of ' + contrast.toFixed(2));
	}
	if (texts < 20) found.push('there are only ' + texts + ' texts');
	return found;
})()`
