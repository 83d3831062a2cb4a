//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"

	"github.com/shoal-serving/shoal/internal/bench"
)

// pictureFile is where `make measure WHAT=picture` wants one of the report.
var pictureFile = flag.String("picture", "", "measure longer, and write a picture of the report to this file")

// TestReportsOpenInABrowser opens what `shoal bench --html` and `shoal bench compare
// --html` write as their readers do.
func TestReportsOpenInABrowser(t *testing.T) {
	browser := openBrowser(t)
	s := start(t, root+"/examples/seed-device")
	folder := t.TempDir()
	measured := measureForPage(t, s, folder)

	t.Run("report", func(t *testing.T) {
		light := inspect(browser, t, filepath.Join(folder, "base.html"), "seed_dynamic", "Throughput and latency", "Percentiles", "Where the time went", "compute infer", "Second by second")
		if *pictureFile != "" {
			if err := os.WriteFile(*pictureFile, light, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	})
	t.Run("troubled report", func(t *testing.T) {
		file := filepath.Join(folder, "troubled.html")
		writePage(t, file, troubled(measured).WriteHTML)
		inspect(browser, t, file, "<script>alert(1)</script>", "not stable", "40 of 1,040 requests failed", `"</title><img src=x onerror=alert(2)>"`, "interrupted")
	})
	t.Run("comparison", func(t *testing.T) {
		file := filepath.Join(folder, "compare.html")
		out, err := exec.CommandContext(t.Context(), filepath.Join(root, "bin", "shoal"), "bench", "compare",
			filepath.Join(folder, "base.json"), "<b>new="+filepath.Join(folder, "base.json"), "--html", file).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		inspect(browser, t, file, "base and <b>new", "not enough repeats to say", "Throughput and p99")
	})
}

// measureForPage measures for a short while, and leaves base.json and base.html.
func measureForPage(t *testing.T, s *server, folder string) *bench.Report {
	t.Helper()
	file := filepath.Join(folder, "base.json")
	// Other work on the machine is no reason to call it unstable, except in a picture.
	loads, window, differ := "2:6:2", "1000", "300"
	if *pictureFile != "" {
		loads, window, differ = "2:12:2", "3000", "10"
	}
	out, err := benchCommand(s, "grpc", "-m", "seed_dynamic", "-b", "2", "--concurrency-range", loads, "-p", window, "-s", differ,
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

// troubled returns a report of which everything is wrong that can be, and whose
// names try to be more than text.
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

// openBrowser starts the Chromium that the variable CHROMIUM names, and then there has
// to be one, or that of the PATH, without which the test is skipped. It is the
// context's, and ends with the test.
func openBrowser(t *testing.T) context.Context {
	t.Helper()
	path := os.Getenv("CHROMIUM")
	if path == "" {
		var err error
		if path, err = exec.LookPath("chromium"); errors.Is(err, exec.ErrNotFound) {
			t.Skip("there is no chromium in the PATH, and CHROMIUM does not name one; Debian: apt-get install chromium")
		} else if err != nil {
			t.Fatal(err)
		}
	}
	options := append([]chromedp.ExecAllocatorOption{}, chromedp.DefaultExecAllocatorOptions[:]...)
	options = append(options, chromedp.ExecPath(path), chromedp.WSURLReadTimeout(startPatience))
	if os.Geteuid() == 0 {
		options = append(options, chromedp.NoSandbox) // it would refuse to start
	}
	ctx, stop := chromedp.NewExecAllocator(t.Context(), options...)
	t.Cleanup(stop)
	ctx, end := chromedp.NewContext(ctx)
	t.Cleanup(end)
	if err := chromedp.Do(ctx); err != nil {
		t.Fatalf("%s does not start: %v", path, err)
	}
	return ctx
}

// inspect opens a page in the light and in the dark. It fails if the page asks for
// anything, has an error, or cannot be read, and returns a picture of its top.
func inspect(browser context.Context, t *testing.T, file string, texts ...string) []byte {
	t.Helper()
	file, err := filepath.Abs(file)
	if err != nil {
		t.Fatal(err)
	}
	address := (&url.URL{Scheme: "file", Path: file}).String()
	ctx, closeTab := chromedp.NewContext(browser)
	defer closeTab()
	act(ctx, t, command(network.Enable, network.EnableParams{})) // opens the tab, which a timeout would close
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	// Both keep what comes until it is read.
	messages, requests := chromedp.Console(ctx), chromedp.Events(ctx, network.RequestWillBeSent)
	act(ctx, t, chromedp.EmulateViewport(1280, 1000))
	act(ctx, t, scheme("light"))
	act(ctx, t, chromedp.Navigate(address))
	pictures := map[string][]byte{}
	for _, name := range []string{"light", "dark"} {
		act(ctx, t, scheme(name))
		for _, complaint := range act(ctx, t, chromedp.Evaluate[[]string](readable)) {
			t.Errorf("%s: %s", name, complaint)
		}
		pictures[name] = act(ctx, t, chromedp.CaptureScreenshot())
	}
	if bytes.Equal(pictures["light"], pictures["dark"]) {
		t.Error("light and dark look the same")
	}
	within(t, "page", act(ctx, t, chromedp.Evaluate[string]("document.body.innerText")), texts...)

	// What the page did not do is known once that has come which the test does last.
	const end = "data:,end"
	act(ctx, t, chromedp.Evaluate[string](`console.log("`+end+`"); fetch("`+end+`"); ""`))
	for m, err := range messages {
		if err != nil {
			t.Fatal(err)
		}
		if m.Text == end {
			break
		}
		t.Errorf("the console says %v", m)
	}
	for r, err := range requests {
		if err != nil {
			t.Fatal(err)
		}
		if r.Request.URL == end {
			break
		}
		if r.Request.URL != address {
			t.Errorf("the page asks for %s", r.Request.URL)
		}
	}
	return pictures["light"]
}

func act[T any](ctx context.Context, t *testing.T, action chromedp.Action[T]) T {
	t.Helper()
	value, err := chromedp.Run(ctx, action)
	if err != nil {
		t.Fatal(err)
	}
	return value
}

func command[P, R any](c cdp.Command[P, R], params P) chromedp.Action[R] {
	return func(ctx context.Context, tab *chromedp.Target) (R, error) { return cdp.Call(ctx, tab, c, params) }
}

// scheme says whether the reader's system is light or dark.
func scheme(name string) chromedp.Action[cdp.Empty] {
	return command(emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: name}},
	})
}

// readable returns what is hard to read in a page, in words.
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
