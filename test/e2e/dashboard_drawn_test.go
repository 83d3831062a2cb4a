//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/test/servertest"
)

// TestTheDashboardCountsAsTheMetricsDo compares the page with the metrics while requests arrive:
// what it shows after its next refresh is at least what the metrics had before, and at most what
// they have afterwards.
func TestTheDashboardCountsAsTheMetricsDo(t *testing.T) {
	b := openBrowser(t)
	s := servertest.Start(t, servertest.Root+"/examples/seed-device")
	load(t, s, "seed_dynamic", 6)
	page := b.openTab(t, 1280, 900)
	page.navigate(s.HTTP + "/#/seed_dynamic/1")
	page.awaitTrue("the model has answered", tile("Answered since loaded")+`?.length > 0`)
	for range 5 {
		before := metric(t, s, "nv_inference_request_success", "seed_dynamic")
		// The figures of the first refresh may have been on their way.
		var shown string
		page.do("Runtime.evaluate", map[string]any{"awaitPromise": true, "expression": `new Promise(done => {
			let left = 2
			new PerformanceObserver(list => { left -= list.getEntriesByName('refresh').length; if (left <= 0) done() }).observe({ type: 'measure' })
		})`}, nil)
		page.evaluate(tile("Answered since loaded"), &shown)
		after := metric(t, s, "nv_inference_request_success", "seed_dynamic")
		got, err := strconv.ParseFloat(strings.ReplaceAll(shown, ",", ""), 64)
		if err != nil || got < before || got > after || after == before {
			t.Errorf("the page shows %q requests; the metrics had %.0f before its refresh and %.0f after it", shown, before, after)
		}
	}
	page.quiet(s.HTTP)
}

// hideText keeps the timeline from writing, and records where it draws signs.
const hideText = `(() => {
	const c = CanvasRenderingContext2D.prototype
	c.fillText = () => {}
	const clear = c.clearRect
	c.clearRect = function (...a) { this.canvas.signs = []; clear.apply(this, a) }
	const translate = c.translate
	c.translate = function (x, y) { this.canvas.signs?.push([x, y]); translate.call(this, x, y) }
})()`

// readSigns compares the pixels of each sign on the timeline with each reason's sign, drawn alone,
// and returns the names of those that are most like it. Signs differ by their shape, not by their
// colour: all have one.
const readSigns = `(reasons => {
	const size = 12
	const canvas = document.querySelector('canvas.timeline')
	const shape = data => { // how much of each pixel is covered
		const all = []
		for (let i = 3; i < data.length; i += 4) all.push(data[i] / 255)
		return all
	}
	const alone = Object.entries(reasons).map(([name, r]) => {
		const c = new OffscreenCanvas(size, size).getContext('2d')
		return { name, draw(dx, dy) {
			c.setTransform(1, 0, 0, 1, 0, 0)
			c.clearRect(0, 0, size, size)
			c.setTransform(0.95, 0, 0, 0.95, dx, dy)
			c.lineWidth = 1.8
			const path = new Path2D(r.Path)
			if (r.Fill) c.fill(path)
			else c.stroke(path)
			return shape(c.getImageData(0, 0, size, size).data)
		} }
	})
	return canvas.signs.map(([x, y]) => {
		const left = Math.floor(x), top = Math.floor(y)
		const seen = shape(canvas.getContext('2d').getImageData(left, top, size, size).data)
		if (!seen.some(v => v > 0.5)) return ''
		const off = alone.map(({ name, draw }) => ({ name, off: draw(x - left, y - top).reduce((s, v, i) => s + Math.abs(v - seen[i]), 0) }))
		off.sort((a, b) => a.off - b.off)
		return off[0].name
	})
})`

// signs returns the reasons of the page's source, with the paths of their signs.
func signs(t *testing.T) string {
	t.Helper()
	source, err := os.ReadFile(servertest.Root + "/web/src/reasons.ts")
	if err != nil {
		t.Fatal(err)
	}
	type sign struct {
		Path string
		Fill bool
	}
	all := map[string]sign{}
	for _, m := range regexp.MustCompile(`(?m)^  (\w+): \{ means: .*, path: '([^']+)', fill: (true|false) \}`).FindAllStringSubmatch(string(source), -1) {
		all[m[1]] = sign{m[2], m[3] == "true"}
	}
	if len(all) < 10 {
		t.Fatalf("found %d reasons", len(all))
	}
	text, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestTheTimelineTellsReasonsWithoutText plays the five requests of the tutorials, and reads the
// reasons of their batches from the pixels of the timeline, which must not write.
func TestTheTimelineTellsReasonsWithoutText(t *testing.T) {
	const x = 300 * time.Millisecond
	b := openBrowser(t)
	s := serveAToE(t, x)
	for _, model := range []string{"dynamic", "delayed"} {
		page := b.openTab(t, 1280, 900)
		page.do("Page.addScriptToEvaluateOnNewDocument", map[string]any{"source": hideText}, nil)
		page.navigate(s.HTTP + "/#/" + model + "/1")
		playAToE(t, s, page, model, x)
		// Batches are drawn in the order in which their first requests arrived.
		var drawn, want []string
		page.evaluate(fmt.Sprintf("%s(%s)", readSigns, signs(t)), &drawn)
		page.evaluate(`[...document.querySelectorAll('#batches tbody tr')].map(r => r.dataset).sort((a, b) => {
			const arrived = d => Number(d.taken) - Math.max(...d.waits.split(' ').map(Number))
			return arrived(a) - arrived(b)
		}).map(d => d.why)`, &want)
		t.Logf("%s: the signs are read as %v", model, drawn)
		if len(want) < 2 || !slices.Equal(drawn, want) {
			t.Errorf("%s: the signs are read as %v, the batches were closed as %v", model, drawn, want)
		}
		page.close()
	}
}

// TestTheDashboardsMemoryIsFlat compares the memory of a page, without garbage, after it has
// filled its charts with that at the end.
func TestTheDashboardsMemoryIsFlat(t *testing.T) {
	b := openBrowser(t)
	s := servertest.Start(t, servertest.Root+"/examples/seed-device")
	load(t, s, "seed_dynamic", 6)
	page := b.openTab(t, 1280, 900)
	page.navigate(s.HTTP + "/#/seed_dynamic/1")
	page.awaitTrue("the stream is live", `document.getElementById('stream').textContent === 'live'`)
	used := func() float64 {
		page.do("HeapProfiler.collectGarbage", nil, nil)
		var heap struct{ UsedSize float64 }
		page.do("Runtime.getHeapUsage", nil, &heap)
		return heap.UsedSize / 1e6
	}
	// Charts show two minutes, and the timeline keeps 2,000 batches.
	filled, all := servertest.StrictOr(150*time.Second, 2*time.Second), servertest.StrictOr(10*time.Minute, 5*time.Second)
	time.Sleep(filled)
	first := used()
	time.Sleep(all - filled)
	last := used()
	t.Logf("the page uses %.2f MB after %v and %.2f MB after %v", first, filled, last, all)
	if most := servertest.StrictOr(1.05, 2.0) * first; last > most {
		t.Errorf("the page uses %.2f MB after %v, and %.2f MB after %v", first, filled, last, all)
	}
}
