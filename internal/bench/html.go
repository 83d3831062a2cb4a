package bench

import (
	"embed"
	"fmt"
	"html/template"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/shoal-serving/shoal/internal/plot"
)

//go:embed pages
var pageFiles embed.FS

// pages are the templates of HTML reports. Pages are self-contained: they have inline style
// and SVG, and no scripts. Texts come from servers and files, so templates and package plot
// escape them.
var pages = template.Must(template.New("").Funcs(template.FuncMap{
	"brief":   brief,
	"grouped": grouped,
	"fixed":   func(digits int, v float64) string { return strconv.FormatFloat(v, 'f', digits, 64) },
}).ParseFS(pageFiles, "pages/*"))

// Pages returns the templates "style", "figure" and "notes", for other pages with the same
// look. The caller owns them.
func Pages() *template.Template { return template.Must(pages.Clone()) }

// Sizes of the charts, for a page of 1160 pixels.
const (
	halfWidth  = 566.0
	chartTall  = 340.0
	chartSmall = 176.0
)

// WriteHTML writes the report as a self-contained page.
func (r *Report) WriteHTML(w io.Writer) error {
	return pages.ExecuteTemplate(w, "report.html", r.page())
}

// A reportPage is the data of the report template.
type reportPage struct {
	*Report
	Requests string // their rows
	Windows  string // their length
	Compared string // latency by which windows are compared
	Notes    []string
	Tiles    []tile
	Charts   []figure
	Percents []string
	Rows     []levelRow
	Parts    []string // names of the parts of server time
	Lapses   []lapse
}

// A tile is a highlighted figure.
type tile struct{ Name, Value, Detail string }

// A figure is a chart with its heading.
type figure struct {
	Name, Text string
	SVG        template.HTML
}

// A levelRow is a level in the tables.
type levelRow struct {
	Level
	Name  string
	Parts []part // of the mean latency; empty without server statistics
}

// A part is a part of a latency, with its position in a bar.
type part struct {
	Name    string
	Class   string
	Length  time.Duration
	X, Wide string
}

// BatchSizes returns the share of each batch size.
func (r levelRow) BatchSizes() string { return shares(r.Server.BatchSizes) }

// Closed returns the share of each reason for closing a batch.
func (r levelRow) Closed() string { return shares(r.Server.Closed) }

// RowsPerBatch returns the mean batch size. Rows of the successful requests do not say it of batches
// that failed, but not all servers report sizes.
func (r levelRow) RowsPerBatch() string {
	if len(r.Server.BatchSizes) > 0 {
		return threeDigits(r.Server.BatchRows())
	}
	return threeDigits(float64(r.Server.Inferences) / float64(max(1, r.Server.Executions)))
}

// A lapse is a level second by second.
type lapse struct {
	Name   string
	Charts []figure
}

func (r *Report) page() reportPage {
	p := reportPage{Report: r, Compared: r.compared(), Notes: r.notes()}
	p.Requests, p.Windows = r.settings()
	loads := byLoad(r.Levels)
	if len(loads) == 0 {
		return p
	}
	kind := strings.ToLower(r.Levels[0].kind())
	for i, of := range byModel(loads) {
		model, id := of[0].levels[0].Model, strconv.Itoa(i)
		if model == "" {
			p.Tiles = tiles(of)
		} else {
			model = ": " + model
		}
		p.Charts = append(
			p.Charts,
			figure{
				"Throughput and latency" + model, "Each point is a load, with its " + kind + ". Right is more done, up is longer to wait.",
				curve("curve-"+id, "Throughput and latency"+model, percentileLines(of)),
			},
			figure{
				"Percentiles" + model, "How long all but the slowest wait. Each line is a load, with its " + kind + ".",
				tail("percentiles-"+id, "Percentiles of the latency"+model, of),
			},
		)
	}
	for _, q := range r.Levels[0].Client.Percentiles {
		p.Percents = append(p.Percents, shortPercent(q.Percent))
	}
	longest := slices.MaxFunc(r.Levels, func(a, b Level) int { return int(a.Client.Mean - b.Client.Mean) }).Client.Mean
	for i, l := range r.Levels {
		name := l.repeatName()
		row := levelRow{Level: l, Name: name}
		if l.Server != nil {
			row.Parts = parts(l.Client.Mean, l.Server.Each(), longest)
		}
		p.Rows = append(p.Rows, row)
		if len(l.Timeline) > 0 {
			p.Lapses = append(p.Lapses, lapseOf(i, name, l))
		}
	}
	return p
}

// byModel splits loads that are sorted by model.
func byModel(loads []loadLevels) (all [][]loadLevels) {
	for i, l := range loads {
		if i == 0 || l.levels[0].Model != loads[i-1].levels[0].Model {
			all = append(all, nil)
		}
		all[len(all)-1] = append(all[len(all)-1], l)
	}
	return all
}

// notes describes problems with the figures.
func (r *Report) notes() (notes []string) {
	for _, l := range r.Levels {
		for _, note := range l.notes() {
			notes = append(notes, l.repeatName()+": "+note)
		}
	}
	return notes
}

func (l Level) notes() (notes []string) {
	c := l.Client
	switch {
	case l.Interrupted:
		notes = append(notes, fmt.Sprintf("interrupted. These figures are of %v.", brief(c.Took)))
	case !l.Stable:
		notes = append(notes, "not stable. The last windows differ by more than was allowed: measure longer, or on a quieter machine.")
	}
	if c.Failed > 0 {
		notes = append(notes, fmt.Sprintf("%s of %s requests failed, the first with: %s", grouped(c.Failed), grouped(c.Failed+c.Requests), c.Error))
	}
	if o := l.ClosedLoop; l.closedMisses() {
		notes = append(notes, fmt.Sprintf("a closed loop would have missed what is seen here. Its p99 would have been %s (%d clients that count from when they could send); here it is %s.",
			brief(o.P99), o.Clients, brief(c.latency(99))))
	}
	if l.ServerError != "" {
		notes = append(notes, "the server reports no statistics: "+l.ServerError)
	}
	if l.late() {
		notes = append(notes, fmt.Sprintf("%s of %s requests were sent late. This machine could not keep up with the rate, and latencies have that in them.",
			grouped(c.Late), grouped(c.Failed+c.Requests)))
	}
	return notes
}

// name returns the load with its model, if there are several.
func (l Level) name() string {
	if l.Model == "" {
		return l.load()
	}
	return l.Model + ", " + l.load()
}

// repeatName is name with the number of the repeat.
func (l Level) repeatName() string {
	if l.Repeat == 0 {
		return l.name()
	}
	return fmt.Sprintf("%s, repeat %d", l.name(), l.Repeat)
}

// closedMisses reports whether a closed loop would have hidden high latencies.
func (l Level) closedMisses() bool {
	return l.ClosedLoop != nil && l.Client.latency(99) > missed*l.ClosedLoop.P99
}

// late reports whether more than 1 % of the requests were sent late.
func (l Level) late() bool { return l.Client.Late*100 > l.Client.Requests+l.Client.Failed }

func tiles(loads []loadLevels) []tile {
	rate := func(s Summary) float64 { return s.InfersPerSecond }
	latency := func(p float64) func(Summary) float64 {
		return func(s Summary) float64 { return float64(s.percentile(p)) }
	}
	best := slices.MaxFunc(loads, func(a, b loadLevels) int { return int(math.Copysign(1, a.median(rate)-b.median(rate))) })
	light := loads[0]
	at := func(l loadLevels, p float64) string { return brief(time.Duration(l.median(latency(p)))) }
	return []tile{
		{"Most throughput", number(best.median(rate)) + " infer/s", "at " + lower(best.load)},
		{"Latency there", at(best, 50), "p50; p99 is " + at(best, 99)},
		{"Least load", number(light.median(rate)) + " infer/s", "at " + lower(light.load)},
		{"Latency there", at(light, 50), "p50; p99 is " + at(light, 99)},
	}
}

// lower returns the name of a load for the middle of a sentence.
func lower(load string) string { return strings.ReplaceAll(strings.ToLower(load), ":", "") }

// A curveLine is one line of a chart of throughput and latency.
type curveLine struct {
	name, class string
	percent     float64
	loads       []loadLevels
	named       bool // show names of points
}

func percentileLines(loads []loadLevels) []curveLine {
	return []curveLine{
		{"p99", "s2", 99, loads, true},
		{"p95", "s1", 95, loads, false},
		{"p50", "s0", 50, loads, false},
	}
}

// curve draws latency against throughput: a line through the medians of each load, and a
// dot for each repeat.
func curve(id, title string, lines []curveLine) template.HTML {
	c := plot.Chart{ID: id, Title: title, Width: halfWidth, Height: chartTall, Right: 40}
	least, most, fastest := math.Inf(1), 0.0, 0.0
	for _, l := range lines {
		c.Right = max(c.Right, min(160, plot.TextWidth(l.name, 12)+20))
		line := plot.Line{Name: l.name, Class: l.class}
		repeats := plot.Line{Class: l.class + " faint", Loose: true}
		rate := func(s Summary) float64 { return s.InfersPerSecond }
		latency := func(s Summary) float64 { return float64(s.percentile(l.percent)) }
		for _, load := range l.loads {
			point := func(x, y float64) plot.Point {
				fastest, most = max(fastest, x), max(most, y)
				if y > 0 {
					least = min(least, y)
				}
				return plot.Point{X: x, Y: y, Title: fmt.Sprintf("%s, %s: %s infer/s, %s %s",
					l.name, lower(load.load), number(x), percentName(l.percent), brief(time.Duration(y)))}
			}
			middle := point(load.median(rate), load.median(latency))
			if l.named {
				middle.Name = load.levels[0].amount()
			}
			line.Points = append(line.Points, middle)
			if len(load.levels) > 1 {
				for _, level := range load.levels {
					repeats.Points = append(repeats.Points, point(rate(level.Client), latency(level.Client)))
				}
			}
		}
		c.Lines = append(c.Lines, repeats, line)
	}
	c.X = plot.Linear("throughput, infer/s", fastest, 6, number)
	c.Y = latencyAxis(least, most)
	c.Desc = "Latency over throughput, a point for each load. All figures are in the table below."
	return draw(c)
}

// latencyAxis returns a linear axis, or a logarithmic one if the range is so large that
// short latencies would be invisible.
func latencyAxis(least, most float64) plot.Axis {
	if least > 0 && most > 20*least {
		return plot.Log("latency, each step a factor", least, most, tick)
	}
	return plot.Linear("latency", most, 5, tick)
}

// tail draws the percentiles of each load.
func tail(id, title string, loads []loadLevels) template.HTML {
	c := plot.Chart{
		ID: id, Title: title, Width: halfWidth, Height: chartTall, Right: 56,
		Desc: "Latency over percentiles, a line for each load. All figures are in the table below.",
	}
	least, most := math.Inf(1), 0.0
	var percents []float64
	for i, load := range loads {
		line := plot.Line{Name: load.levels[0].amount(), Class: ramp(i, len(loads))}
		for _, q := range load.levels[0].Client.Percentiles {
			y := load.median(func(s Summary) float64 { return float64(s.percentile(q.Percent)) })
			if i == 0 {
				percents = append(percents, q.Percent)
			}
			line.Points = append(line.Points, plot.Point{
				X: q.Percent, Y: y,
				Title: fmt.Sprintf("%s: %s %s", load.load, percentName(q.Percent), brief(time.Duration(y))),
			})
			least, most = min(least, y), max(most, y)
		}
		c.Lines = append(c.Lines, line)
	}
	c.X = plot.Tail("percentile", percents, shortPercent)
	c.Y = latencyAxis(least, most)
	return draw(c)
}

// ramp returns the CSS class for the i-th of n ordered elements.
func ramp(i, n int) string {
	const shades = 6
	if n == 1 {
		return "r" + strconv.Itoa(shades-1)
	}
	return "r" + strconv.Itoa(i*(shades-1)/(n-1))
}

// parts splits a mean latency into the time outside the server, and the parts that the
// server reports.
func parts(mean time.Duration, each Parts, longest time.Duration) []part {
	all := []part{
		{Name: "network and client", Class: "p0", Length: max(0, mean-each.Total)},
		{Name: "overhead", Class: "p1", Length: each.Overhead},
		{Name: "queue", Class: "p2", Length: each.Queue},
		{Name: "compute input", Class: "p3", Length: each.Input},
		{Name: "compute infer", Class: "p4", Length: each.Infer},
		{Name: "compute output", Class: "p5", Length: each.Output},
	}
	x := 0.0
	for i := range all {
		wide := barWidth * float64(all[i].Length) / float64(max(1, longest))
		all[i].X, all[i].Wide = plot.Px(x), plot.Px(min(wide, barWidth-x))
		x = min(barWidth, x+wide)
	}
	return all
}

// barWidth is the width of the longest bar in the table of server times.
const barWidth = 220.0

// lapseOf draws a level second by second. It omits the last second, which is incomplete and
// would look like a drop, unless it is the only one.
func lapseOf(i int, name string, l Level) lapse {
	id := "lapse-" + strconv.Itoa(i)
	rate := plot.Chart{
		ID: id + "-rate", Title: name + ": requests a second", Width: halfWidth, Height: chartSmall, Right: 40,
		Desc: "Requests that were answered in each second as a line, and those that failed as bars.",
	}
	wait := plot.Chart{
		ID: id + "-latency", Title: name + ": latency", Width: halfWidth, Height: chartSmall, Right: 40,
		Desc: "The median and the 99th percentile of the latency in each second.",
	}
	answered := plot.Line{Class: "s0", Plain: true}
	p50, p99 := plot.Line{Name: "p50", Class: "s0", Plain: true}, plot.Line{Name: "p99", Class: "s2", Plain: true}
	seconds := l.Timeline[:max(1, len(l.Timeline)-1)]
	busiest, least, most := 0.0, math.Inf(1), 0.0
	for n, s := range seconds {
		from, to := float64(n), float64(n+1)
		busiest = max(busiest, float64(s.Requests), float64(s.Failed))
		title := fmt.Sprintf("second %d: %s requests", n+1, grouped(s.Requests))
		if s.Failed > 0 {
			rate.Bars = append(rate.Bars, plot.Bar{From: from, To: to, Y: float64(s.Failed), Class: "bad"})
			title += fmt.Sprintf(", %s failed", grouped(s.Failed))
		}
		low, high := math.NaN(), math.NaN()
		if s.Requests > 0 {
			low, high = float64(s.P50), float64(s.P99)
			least, most = min(least, low), max(most, high)
			title += fmt.Sprintf(", p50 %s, p99 %s, longest %s", brief(s.P50), brief(s.P99), brief(s.Max))
		}
		answered.Points = append(answered.Points, plot.Point{X: from + 0.5, Y: float64(s.Requests)})
		p50.Points = append(p50.Points, plot.Point{X: from + 0.5, Y: low})
		p99.Points = append(p99.Points, plot.Point{X: from + 0.5, Y: high})
		rate.Slices = append(rate.Slices, plot.Slice{From: from, To: to, Title: title})
	}
	rate.Lines, wait.Lines, wait.Slices = []plot.Line{answered}, []plot.Line{p99, p50}, rate.Slices
	rate.X = plot.Span("seconds", float64(len(seconds)), min(8, len(seconds)), number)
	rate.Y = plot.Linear("requests/s", busiest, 3, number)
	wait.X, wait.Y = rate.X, latencyAxis(least, most)
	return lapse{name, []figure{{SVG: draw(rate)}, {SVG: draw(wait)}}}
}

// draw returns a chart as trusted HTML: plot has escaped its texts.
func draw(c plot.Chart) template.HTML { return template.HTML(c.SVG()) }

// percentile returns the latency at a percentile, or 0 if it was not measured.
func (s Summary) percentile(percent float64) time.Duration {
	for _, p := range s.Percentiles {
		if p.Percent == percent {
			return p.Latency
		}
	}
	return 0
}

func shortPercent(p float64) string {
	if p >= 100 {
		return "max"
	}
	return percentName(p)
}

// brief formats a time with three digits, aligned for tables.
func brief(d time.Duration) string {
	for _, unit := range []struct {
		name   string
		length time.Duration
	}{{"s", time.Second}, {"ms", time.Millisecond}, {"µs", time.Microsecond}} {
		if v := float64(d) / float64(unit.length); v >= 0.9995 {
			return threeDigits(v) + " " + unit.name
		}
	}
	return strconv.FormatInt(int64(d), 10) + " ns"
}

// threeDigits formats a number with three significant digits, or all integer digits.
func threeDigits(v float64) string {
	digits := 2
	switch {
	case v >= 99.95:
		digits = 0
	case v >= 9.995:
		digits = 1
	}
	return strconv.FormatFloat(v, 'f', digits, 64)
}

// tick formats a round time.
func tick(v float64) string {
	if v == 0 {
		return "0"
	}
	return time.Duration(math.Round(v)).String()
}

// grouped formats a whole number with thousands separators.
func grouped(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// number formats a figure with three significant digits, or all integer digits.
func number(v float64) string {
	if math.Abs(v) >= 100 {
		return grouped(int(math.Round(v)))
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}
