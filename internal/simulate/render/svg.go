package render

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/shoal-serving/shoal/internal/plot"
	"github.com/shoal-serving/shoal/internal/simulate"
)

// SVGOptions are what a picture can be apart from a drawing.
type SVGOptions struct {
	// Play uncovers the timelines from left to right, over and over. Readers that ask for less
	// motion see all of them at once.
	Play bool
}

// SVG writes the report as a self-contained SVG: no scripts, external fonts or styles. It
// suits light and dark pages.
func SVG(w io.Writer, r *simulate.Report, opts SVGOptions) error {
	p := newPicture(r)
	p.play = opts.Play
	p.header()
	if r.Varied != "" {
		p.charts()
	}
	p.timelines()
	p.legend()
	_, err := w.Write(p.finish())
	return err
}

// Dimensions in pixels at the natural size.
const (
	pictureWidth = 1200.0
	edge         = 40.0
	nameWidth    = 190.0 // column that describes each setting
	leastGutter  = 26.0  // between that column and the timelines, for names of requests and lanes
	mostGutter   = 110.0
	flagWidth    = 96.0 // to the right of the timelines, for the last answer
	laneHeight   = 64.0
	whyHeight    = 19.0  // below a lane, for the reasons for closing
	waitHeight   = 13.0  // one waiting request
	tightHeight  = 5.0   // one waiting request, if there are many
	tightStrip   = 120.0 // all waiting requests, if there are very many
)

// The palette of requests and settings, used in turn. White text is readable on all
// colours, and they stand out from white and black.
var palette = []string{"#3b72b8", "#d2691e", "#3c9159", "#c2475d", "#7d5bb5", "#21899a", "#9c7a15", "#b8568f"}

const style = `
text { font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; fill: #1c2733; }
.page { fill: #ffffff; }
.title { font-size: 26px; font-weight: 700; }
.name { font-size: 15px; font-weight: 600; }
.sum { font-weight: 600; }
.big { font-size: 21px; font-weight: 700; }
.soft { fill: #5d6b78; }
.in { fill: #ffffff; font-weight: 700; }
.grid { stroke: #e2e7ec; stroke-width: 1; }
.rule { stroke: #c9d1d9; stroke-width: 1; }
.flag { stroke: #1c2733; stroke-width: 1.5; }
.room { fill: #f3f5f8; stroke: #b9c3cd; stroke-width: 1; stroke-dasharray: 3 3; }
.frame { fill: none; stroke: #1c2733; stroke-opacity: 0.55; stroke-width: 1; }
.no { stroke: #cc3344; stroke-width: 2.2; stroke-linecap: round; }
.notext { fill: #cc3344; }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3; }
.page { fill: #10161d; }
.soft { fill: #98a5b1; }
.grid { stroke: #232d37; }
.rule { stroke: #3a4652; }
.flag { stroke: #e6edf3; }
.room { fill: #18212a; stroke: #465461; }
.frame { stroke: #e6edf3; }
.no { stroke: #ff6b7a; }
.notext { fill: #ff6b7a; }
}
`

// playing uncovers what .future covers, behind .now. It ends with a pause.
const playing = `
.future { transform: scaleX(0); transform-box: fill-box; transform-origin: right; }
.now { stroke: #d2691e; stroke-width: 2; opacity: 0; }
@media (prefers-reduced-motion: no-preference) {
.future { animation: uncover 10s linear infinite; }
.now { animation: advance 10s linear infinite; }
}
@keyframes uncover { from { transform: scaleX(1); } 70%%, to { transform: scaleX(0); } }
@keyframes advance { from { opacity: 1; } 70%% { opacity: 1; transform: translateX(%spx); } 71%%, to { opacity: 0; transform: translateX(%spx); } }
`

type picture struct {
	view
	play   bool
	body   bytes.Buffer
	y      float64 // top of the next element
	left   float64 // left edge of the timelines
	right  float64
	end    time.Duration
	cut    bool
	colour map[string]string // colours of requests, by name
}

func newPicture(r *simulate.Report) *picture {
	p := &picture{view: viewOf(r), y: edge, left: edge + nameWidth, right: pictureWidth - edge}
	p.end, p.cut = p.horizon(60, 14)
	if !p.cut {
		p.right -= flagWidth
	}
	p.left += p.gutter()
	p.colour = colours(p.drawn())
	return p
}

// gutter returns the width of the names to the left of the timelines.
func (p *picture) gutter() float64 {
	width := leastGutter
	for _, run := range p.drawn() {
		if len(run.Lanes) > 1 {
			for lane := range run.Lanes {
				width = max(width, plot.TextWidth(label(run, lane), 12)+24)
			}
		}
		for _, q := range run.Requests {
			if !p.cut {
				width = max(width, plot.TextWidth(q.ID, 11)+20-(p.x(q.Arrived)-p.left))
			}
		}
	}
	return min(width, mostGutter)
}

// colours assigns a colour to each request. A few requests get colours of the palette;
// many get shades between them, so that neighbours look alike and a batch shows the
// origin of its requests.
func colours(runs []*simulate.Run) map[string]string {
	var names []string
	seen := map[string]bool{}
	for _, run := range runs {
		for _, q := range run.Requests {
			if !seen[q.ID] {
				seen[q.ID] = true
				names = append(names, q.ID)
			}
		}
	}
	colour := map[string]string{}
	for i, name := range names {
		if len(names) <= len(palette) {
			colour[name] = palette[i]
		} else {
			colour[name] = shade(float64(i) / float64(len(names)-1))
		}
	}
	return colour
}

// spectrum is the palette in an order in which neighbours can be mixed.
var spectrum = [][3]float64{{0x3b, 0x72, 0xb8}, {0x21, 0x89, 0x9a}, {0x3c, 0x91, 0x59}, {0x9c, 0x7a, 0x15}, {0xd2, 0x69, 0x1e}, {0xc2, 0x47, 0x5d}, {0x7d, 0x5b, 0xb5}}

// shade returns the colour at a position on the spectrum, from 0 to 1.
func shade(at float64) string {
	at *= float64(len(spectrum) - 1)
	i := min(int(at), len(spectrum)-2)
	var mixed [3]int
	for part := range mixed {
		a, b := spectrum[i][part], spectrum[i+1][part]
		mixed[part] = int(a + (b-a)*(at-float64(i)))
	}
	return fmt.Sprintf("#%02x%02x%02x", mixed[0], mixed[1], mixed[2])
}

// finish adds the frame around the drawing, whose height is known only now.
func (p *picture) finish() []byte {
	var out bytes.Buffer
	height := p.y + edge - 12
	fmt.Fprintf(&out, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %s %s" width="%s" height="%s" role="img">`+"\n",
		plot.Px(pictureWidth), plot.Px(height), plot.Px(pictureWidth), plot.Px(height))
	styles := style
	if p.play {
		styles += fmt.Sprintf(playing, plot.Px(p.timeWidth()), plot.Px(p.timeWidth()))
	}
	fmt.Fprintf(&out, "<title>%s</title>\n<style>%s</style>\n", plot.Escape(p.Title), styles)
	fmt.Fprintf(&out, `<rect class="page" width="%s" height="%s" rx="10"/>`+"\n", plot.Px(pictureWidth), plot.Px(height))
	out.Write(p.body.Bytes())
	out.WriteString("</svg>\n")
	return out.Bytes()
}

func (p *picture) header() {
	if p.Title != "" {
		p.y -= 12
		for _, line := range wrapBy(p.Title, pictureWidth-2*edge, func(s string) float64 { return plot.TextWidth(s, 28) }) {
			p.y += 32
			p.text(edge, p.y, `class="title"`, line)
		}
		p.y += 12
	}
	if p.Text != "" {
		for _, line := range wrapBy(p.Text, 960, func(s string) float64 { return plot.TextWidth(s, 14) }) {
			p.y += 20
			p.text(edge, p.y, `class="soft" font-size="14"`, line)
		}
		p.y += 12
	}
}

func (p *picture) timelines() {
	runs := p.drawn()
	if p.cut {
		p.y += 30
		p.text(edge, p.y, `class="name"`, "The first "+p.unit.rough(p.end)+p.shared())
		p.y += 4
	}
	p.y += 26
	p.axis(p.y)
	p.y += 8
	top := p.y
	for i, run := range runs {
		if i > 0 {
			p.line(edge, p.y, pictureWidth-edge, p.y, `class="rule"`)
		}
		p.setting(run)
	}
	if p.play {
		p.cover(top)
	}
	if len(runs) > 2 {
		p.axis(p.y + 16)
		p.y += 26
	}
}

// cover hides the timelines from top to here, until playing uncovers them.
func (p *picture) cover(top float64) {
	fmt.Fprintf(&p.body, `<rect class="page future" x="%s" y="%s" width="%s" height="%s"/>`+"\n", plot.Px(p.left), plot.Px(top), plot.Px(p.timeWidth()), plot.Px(p.y-top))
	p.line(p.left, top, p.left, p.y, `class="now"`)
}

// timeWidth returns the width of the timelines, with what is written to the right of them.
func (p *picture) timeWidth() float64 { return pictureWidth - edge - p.left }

// shared describes the point that all timelines show, if it is the same.
func (p *picture) shared() string {
	points := map[float64]bool{}
	for _, run := range p.drawn() {
		points[run.Point] = true
	}
	if p.Varied == "" || len(points) > 1 {
		return ""
	}
	return " with " + p.pointOf(p.drawn()[0])
}

func (p *picture) axis(y float64) {
	for _, t := range p.ticks() {
		p.text(p.x(t), y, `class="soft" font-size="12" text-anchor="middle"`, p.unit.exact(t))
	}
}

func (p *picture) ticks() []time.Duration { return p.unit.ticks(p.end, int((p.right-p.left)/90)) }

// x returns the horizontal position of a time.
func (p *picture) x(t time.Duration) float64 {
	return p.left + (p.right-p.left)*float64(t)/float64(p.end)
}

// setting draws one run, starting at p.y.
func (p *picture) setting(run *simulate.Run) {
	top := p.y
	said := p.describe(run, top+28)
	waits := p.pack(run)
	strip := waits.height()
	bottom := max(said, top+16+strip+8+float64(len(run.Lanes))*(laneHeight+whyHeight)) + 8
	for _, t := range p.ticks() {
		p.line(p.x(t), top+6, p.x(t), bottom-6, `class="grid"`)
	}
	p.waits(waits, top+16)
	y := top + 16 + strip + 8
	for lane := range run.Lanes {
		p.lane(run, lane, y)
		y += laneHeight + whyHeight
	}
	if !p.cut {
		p.flag(run, top+16+strip, y-whyHeight)
	}
	p.y = bottom
}

// describe writes the name and the main figures of a setting, and returns the position
// below them.
func (p *picture) describe(run *simulate.Run, y float64) float64 {
	name := run.Setting
	if p.shared() == "" {
		name = p.nameOf(run)
	}
	lines := wrapBy(name, nameWidth, func(s string) float64 { return plot.TextWidth(s, 16.5) }) // bold is wider
	if len(lines) > 4 {
		lines = append(lines[:3], "…")
	}
	for _, line := range lines {
		p.text(edge, y, `class="name"`, line)
		y += 19
	}
	y += 4
	for i, line := range p.sums(run) {
		class := "soft"
		if i == 0 {
			class = "sum"
		}
		for _, part := range wrapBy(line, nameWidth, func(s string) float64 { return plot.TextWidth(s, 13) }) {
			p.text(edge, y, `class="`+class+`" font-size="13"`, part)
			y += 18
		}
	}
	return y
}

// sums returns the main figures of a run in a few lines.
func (p *picture) sums(run *simulate.Run) []string {
	t := run.Total
	lines := []string{"busy " + p.unit.rough(t.Busy)}
	if p.cut {
		lines = []string{perSecond(t.RowsPerSecond) + " rows per second", "batches of " + trimZeros(strconv.FormatFloat(t.MeanBatch, 'f', 1, 64)) + " rows"}
	}
	lines = append(lines, "mean latency "+p.unit.rough(t.Latency.Mean))
	if p.cut {
		lines = append(lines, "p95 latency "+p.unit.rough(t.Latency.P95))
	}
	if len(t.Refused) > 0 {
		lines = append(lines, "refused: "+counts(t.Refused))
	}
	return lines
}

// Waiting requests.

// A wait is the time of a request in the queue.
type wait struct {
	request  simulate.Request
	from, to float64
	row      int
}

// waits are packed into rows: each is in the first row with room for it.
type waits struct {
	list  []wait
	rows  int
	tight bool // too many to label each
}

const (
	mostNamed = 10 // maximum number of rows with labels
	mostTight = 40 // maximum number of rows
)

func (w waits) rowHeight() float64 {
	if w.tight {
		return min(tightHeight, tightStrip/float64(w.rows))
	}
	return waitHeight
}

func (w waits) height() float64 { return float64(w.rows) * w.rowHeight() }

func (p *picture) pack(run *simulate.Run) waits {
	named := p.packed(run, false)
	if !p.cut && named.rows <= mostNamed {
		return named
	}
	return p.packed(run, true)
}

func (p *picture) packed(run *simulate.Run, tight bool) waits {
	w := waits{tight: tight}
	var ends []float64 // ends of the rows
	for _, q := range run.Requests {
		if q.Arrived > p.end {
			break // requests are in order of arrival
		}
		one := wait{request: q, from: p.x(q.Arrived), to: p.x(q.Arrived)}
		switch {
		case q.Batch >= 0:
			one.to = p.x(min(q.Began, p.end))
		default:
			one.to = p.x(min(max(q.Answered, q.Arrived), p.end))
		}
		begin, end := one.from-4, one.to+8
		if !tight {
			begin -= plot.TextWidth(q.ID, 11) + 6
			if q.Refusal != "" && q.Batch < 0 {
				end += plot.TextWidth(q.Refusal, 11) + 10
			}
		}
		one.row = slices.IndexFunc(ends, func(e float64) bool { return e <= begin })
		if one.row < 0 {
			if len(ends) == mostTight {
				continue
			}
			one.row = len(ends)
			ends = append(ends, 0)
		}
		ends[one.row] = end
		w.list = append(w.list, one)
	}
	w.rows = len(ends)
	return w
}

func (p *picture) waits(w waits, top float64) {
	size, thick := 3.6, 2.4
	if w.tight {
		size, thick = 1.8, 1.4
	}
	for _, one := range w.list {
		q := one.request
		y := top + (float64(one.row)+0.5)*w.rowHeight()
		colour := p.colour[q.ID]
		fmt.Fprintf(&p.body, `<g><title>%s</title>`, plot.Escape(p.story(q)))
		if one.to > one.from {
			p.line(one.from, y, one.to, y, fmt.Sprintf(`stroke="%s" stroke-width="%s" stroke-opacity="0.6"`, colour, plot.Px(thick)))
		}
		fmt.Fprintf(&p.body, `<circle cx="%s" cy="%s" r="%s" fill="%s"/>`, plot.Px(one.from), plot.Px(y), plot.Px(size), colour)
		if !w.tight {
			name := clipBy(q.ID, one.from-p.left+mostGutter-14, func(s string) float64 { return plot.TextWidth(s, 11) })
			p.text(one.from-7, y+4, `font-size="11" font-weight="600" text-anchor="end"`, name)
		}
		if q.Refusal != "" && q.Batch < 0 && q.Answered <= p.end {
			p.cross(one.to, y, size)
			if !w.tight {
				p.text(one.to+9, y+4, `class="notext" font-size="11"`, q.Refusal)
			}
		}
		p.body.WriteString("</g>\n")
	}
}

func (p *picture) cross(x, y, size float64) {
	p.line(x-size, y-size, x+size, y+size, `class="no"`)
	p.line(x-size, y+size, x+size, y-size, `class="no"`)
}

// story describes the course of a request in a sentence.
func (p *picture) story(q simulate.Request) string {
	u := p.unit
	s := fmt.Sprintf("%s: %s, arrived at %s", q.ID, plural(q.Rows, "row"), u.exact(q.Arrived))
	if q.Batch >= 0 {
		s += fmt.Sprintf(", waited %s, ran from %s to %s", u.exact(q.Began-q.Arrived), u.exact(q.Began), u.exact(q.Ended))
	}
	if q.Refusal != "" {
		s += fmt.Sprintf(", refused at %s: %s", u.exact(q.Answered), q.Refusal)
	}
	return s
}

// Batches.

func (p *picture) lane(run *simulate.Run, lane int, y float64) {
	if len(run.Lanes) > 1 {
		p.text(p.left-12, y+laneHeight/2+4, `class="soft" font-size="12" text-anchor="end"`, label(run, lane))
	}
	p.line(p.left, y+laneHeight, p.right, y+laneHeight, `class="rule"`)
	for i, b := range run.Batches {
		if b.Lane == lane && b.Began < p.end {
			p.batch(run, i, y)
		}
	}
}

// batch draws a box with the height of a full batch, and in it the requests, each as high
// as its rows.
func (p *picture) batch(run *simulate.Run, i int, top float64) {
	b := run.Batches[i]
	x1, x2 := p.x(b.Began), p.x(min(b.Ended, p.end))
	width := max(1, x2-x1)
	fmt.Fprintf(&p.body, `<g class="batch"><rect class="room" x="%s" y="%s" width="%s" height="%s"/>`+"\n", plot.Px(x1), plot.Px(top), plot.Px(width), plot.Px(laneHeight))
	perRow := laneHeight / float64(capacity(run, b.Lane))
	y := top + laneHeight
	for _, index := range b.Requests {
		q := run.Requests[index]
		height := perRow * float64(q.Rows)
		y -= height
		p.segment(q, x1, y, width, height)
	}
	if rest := float64(b.Rows)*perRow - (top + laneHeight - y); rest > 0.01 { // requests that are not kept
		y -= rest
		fmt.Fprintf(&p.body, `<rect x="%s" y="%s" width="%s" height="%s" fill="%s" fill-opacity="0.5"/>`, plot.Px(x1), plot.Px(y), plot.Px(width), plot.Px(rest), palette[0])
	}
	fmt.Fprintf(&p.body, `<rect class="frame" x="%s" y="%s" width="%s" height="%s"/>`, plot.Px(x1), plot.Px(y), plot.Px(width), plot.Px(top+laneHeight-y))
	if plot.TextWidth(b.Why, 11.5) <= width {
		p.text(x1+2, top+laneHeight+13.5, `class="soft" font-size="11.5"`, b.Why)
	}
	p.body.WriteString("</g>\n")
}

func (p *picture) segment(q simulate.Request, x, y, width, height float64) {
	opacity := ""
	if q.Refusal != "" { // it was canceled or expired while the batch ran
		opacity = ` fill-opacity="0.45"`
	}
	fmt.Fprintf(&p.body, `<g class="request"><title>%s</title><rect x="%s" y="%s" width="%s" height="%s" fill="%s"%s/>`,
		plot.Escape(p.story(q)), plot.Px(x), plot.Px(y), plot.Px(width), plot.Px(height), p.colour[q.ID], opacity)
	if height >= 5 {
		p.line(x, y, x+width, y, `class="frame"`)
	}
	if size := min(15, height-2); size >= 7 {
		if room := width - 6; plot.TextWidth(q.ID, size) <= room {
			p.text(x+width/2, y+height/2+size*0.36, fmt.Sprintf(`class="in" font-size="%s" text-anchor="middle"`, plot.Px(size)), q.ID)
		}
	}
	p.body.WriteString("</g>\n")
}

// flag marks the time of the last answer.
func (p *picture) flag(run *simulate.Run, top, bottom float64) {
	x := p.x(run.Total.Last)
	p.line(x, top, x, bottom, `class="flag"`)
	p.text(x+9, bottom-laneHeight/2+1, `class="big"`, p.unit.rough(run.Total.Last))
	p.text(x+9, bottom-laneHeight/2+18, `class="soft" font-size="11.5"`, "last answer")
}

func (p *picture) legend() {
	p.y += 18
	x, y := edge, p.y
	item := func(text string, draw func()) {
		width := 34 + plot.TextWidth(text, 12)
		if x+width > pictureWidth-edge {
			x, y = edge, y+20
		}
		draw()
		p.text(x+26, y, `class="soft" font-size="12"`, text)
		x += width + 18
	}
	box := func(class string, height float64) {
		fmt.Fprintf(&p.body, `<rect %s x="%s" y="%s" width="18" height="%s"/>`+"\n", class, plot.Px(x), plot.Px(y+2-height), plot.Px(height))
	}
	item("a request in a batch, as high as its rows", func() { box(`fill="`+palette[0]+`"`, 9) })
	item("room for more rows", func() { box(`class="room"`, 14) })
	item("arrives, and waits", func() {
		p.line(x+3, y-4, x+20, y-4, `stroke="`+palette[0]+`" stroke-width="2.4" stroke-opacity="0.6"`)
		fmt.Fprintf(&p.body, `<circle cx="%s" cy="%s" r="3.6" fill="%s"/>`+"\n", plot.Px(x+3), plot.Px(y-4), palette[0])
	})
	if p.refuses() {
		item("is refused", func() { p.cross(x+10, y-4, 4) })
	}
	item("below each batch: why it closed", func() { p.text(x, y, `class="soft" font-size="11.5"`, "full") })
	p.y = y
}

// Elements.

func (p *picture) text(x, y float64, attributes, text string) {
	fmt.Fprintf(&p.body, `<text x="%s" y="%s" %s>%s</text>`+"\n", plot.Px(x), plot.Px(y), attributes, plot.Escape(text))
}

func (p *picture) line(x1, y1, x2, y2 float64, attributes string) {
	fmt.Fprintf(&p.body, `<line x1="%s" y1="%s" x2="%s" y2="%s" %s/>`+"\n", plot.Px(x1), plot.Px(y1), plot.Px(x2), plot.Px(y2), attributes)
}

func plural(n int, of string) string {
	if n == 1 {
		return "1 " + of
	}
	return fmt.Sprintf("%d %ss", n, of)
}
