package render

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/shoal-serving/shoal/internal/explain"
	"github.com/shoal-serving/shoal/internal/simulate"
)

// Text writes the report for a terminal of the given width, which is at least 60 columns:
// a timeline of each setting, and then a table of the figures.
func Text(w io.Writer, r *simulate.Report, columns int) error {
	v := textView{view: viewOf(r), columns: max(columns, 60)}
	v.header()
	v.timelines()
	if r.Varied != "" {
		v.matrices()
	} else {
		v.table()
	}
	_, err := w.Write(v.out.Bytes())
	return err
}

type textView struct {
	view
	out     bytes.Buffer
	columns int

	end    time.Duration
	cut    bool // the timelines do not show everything
	margin int  // columns to the left of the timelines

	// The scale: columns per length of time.
	scale int64
	per   time.Duration
}

func (v *textView) header() {
	if v.Title != "" {
		fmt.Fprintf(&v.out, "%s\n", v.Title)
	}
	if v.Text != "" {
		for _, line := range wrap(v.Text, v.columns) {
			fmt.Fprintln(&v.out, line)
		}
	}
	if v.Title+v.Text != "" {
		fmt.Fprintln(&v.out)
	}
}

// Columns that a batch needs for a visible frame, and for the names of its requests.
const (
	narrowBatch = 4
	wideBatch   = 11
)

func (v *textView) timelines() {
	runs := v.drawn()
	v.margin = 3
	for _, run := range runs {
		for lane := range run.Lanes {
			v.margin = max(v.margin, width(label(run, lane))+2)
		}
	}
	v.margin = min(v.margin, v.columns/3)
	plot := v.columns - v.margin
	v.end, v.cut = v.horizon(plot/narrowBatch, plot/wideBatch)
	v.setScale(int64(plot - 1))
	if v.cut {
		fmt.Fprintf(&v.out, "The timelines show the first %s; the figures are of all.\n\n", v.unit.rough(v.end))
	}
	for _, run := range runs {
		v.heading(run)
		fmt.Fprintf(&v.out, "%s\n", v.timeline(run))
	}
}

// heading writes a horizontal rule with the name of the setting and its main figures.
func (v *textView) heading(run *simulate.Run) {
	name := v.nameOf(run)
	sums := fmt.Sprintf(" busy %s, last answer %s ──", v.unit.rough(run.Total.Busy), v.unit.rough(run.Total.Last))
	name = "── " + clip(name, v.columns-width(sums)-8) + " "
	fmt.Fprintln(&v.out, name+strings.Repeat("─", max(0, v.columns-width(name)-width(sums)))+sums)
}

// setScale makes the timelines as wide as the plot or slightly narrower, so that halves
// and thirds of the unit fall on whole columns.
func (v *textView) setScale(plot int64) {
	v.scale, v.per = plot, v.end
	perUnit := int64(float64(plot) * float64(v.unit.Length) / float64(v.end))
	for _, parts := range []int64{6, 3, 1} {
		if perUnit >= 2*parts {
			v.scale, v.per = perUnit-perUnit%parts, v.unit.Length
			return
		}
	}
}

// column returns the column of a time.
func (v *textView) column(t time.Duration) int {
	return v.margin + int(math.Round(float64(t)*float64(v.scale)/float64(v.per)))
}

func (v *textView) timeline(run *simulate.Run) string {
	c := &canvas{width: v.columns}
	y := v.arrivals(c, run)
	for lane := range run.Lanes {
		c.write(0, y+1, clip(label(run, lane), v.margin-1))
		for _, b := range run.Batches {
			if b.Lane == lane && b.Began < v.end {
				v.batch(c, y, run, b)
			}
		}
		y += 4
	}
	y += v.refusals(c, y, run)
	v.axis(c, y)
	return c.String()
}

// A mark is the names of requests that arrive at about the same time.
type mark struct {
	from, to int
	names    []string
}

// marks returns the arrivals. Requests within gap of each other share a mark.
func (v *textView) marks(run *simulate.Run, gap int) []mark {
	var all []mark
	for _, q := range run.Requests {
		x := v.column(q.Arrived)
		if q.Arrived > v.end {
			break // requests are in order of arrival
		}
		if n := len(all); n == 0 || x > all[n-1].to+gap || x > all[n-1].from+longestMark {
			all = append(all, mark{from: x})
		}
		m := &all[len(all)-1]
		m.to = x
		m.names = append(m.names, q.ID)
	}
	return all
}

// longestMark is the maximum width of a mark, in columns.
const longestMark = 15

// arrivals draws the arrivals, and returns the first row below them.
func (v *textView) arrivals(c *canvas, run *simulate.Run) int {
	const labelRows = 3
	for _, m := range v.marks(run, 0) {
		c.write(m.from, labelRows, "▼")
	}
	gap := 0
	if v.cut {
		gap = 3 // too many to label each
	}
	top := labelRows - 1 // highest row in use
	for _, m := range v.marks(run, gap) {
		label := short(m.names, longestMark)
		for y := labelRows - 1; y >= 0; y-- {
			if x := min(m.from, c.width-width(label)); c.free(x, y, width(label)) {
				c.write(x, y, label)
				top = min(top, y)
				break
			}
		}
	}
	c.cut(labelRows + 1)
	c.rows = c.rows[top:]
	return labelRows + 1 - top
}

// batch draws a frame with the names of the requests, the fill level of the batch, and
// below it the reason for closing.
func (v *textView) batch(c *canvas, y int, run *simulate.Run, b simulate.Batch) {
	x1 := v.column(b.Began)
	x2 := min(max(v.column(b.Ended), x1+1), c.width) // a batch beyond the edge has no right border
	c.box(x1, y, x2, y+3)
	inside := x2 - x1 - 1
	pad := 0
	if inside > narrowBatch {
		pad = 1
	}
	c.write(x1+1+pad, y+1, short(namesOf(run, b), inside-pad))
	c.write(x1+1+pad, y+2, gauge(b.Rows, capacity(run, b.Lane), inside-2*pad))
	if why := b.Why; width(why) <= inside-4 {
		c.write(x1+2, y+3, " "+why+" ")
	} else if width(why) <= inside {
		c.write(x1+1, y+3, why)
	}
}

// gauge draws the share of rows in use, with one cell per row if there is room.
func gauge(rows, capacity, room int) string {
	cells := min(capacity, room)
	if cells < 1 {
		return ""
	}
	full := min(cells, max(1, rows*cells/capacity))
	bar := strings.Repeat("█", full) + strings.Repeat("░", cells-full)
	if figures := fmt.Sprintf(" %d/%d", rows, capacity); len(figures) <= room-cells {
		bar += figures
	}
	return bar
}

// refusals draws the requests without a result, when and why, and returns the number of
// rows used.
func (v *textView) refusals(c *canvas, y int, run *simulate.Run) int {
	used := 0
	for _, q := range run.Requests {
		if q.Refusal == "" || q.Answered > v.end {
			continue
		}
		for _, label := range []string{"✕ " + q.ID + " " + q.Refusal, "✕ " + q.ID, "✕"} {
			row := 0
			x := min(v.column(q.Answered), c.width-width(label))
			for row < 3 && !c.free(x, y+row, width(label)) {
				row++
			}
			if row < 3 {
				c.write(x, y+row, label)
				used = max(used, row+1)
				break
			}
		}
	}
	c.cut(y + used) // drop rows that were not written on
	return used
}

func (v *textView) axis(c *canvas, y int) {
	for x := v.margin; x < v.column(v.end); x++ {
		c.line(x, y, right)
		c.line(x+1, y, left)
	}
	for _, t := range v.unit.ticks(v.end, (c.width-v.margin)/9) {
		x, label := v.column(t), v.unit.exact(t)
		c.line(x, y, down)
		if x = min(x-(width(label)-1)/2, c.width-width(label)); c.free(x, y+1, width(label)) {
			c.write(x, y+1, label)
		}
	}
}

// A grid is a table with column widths that fit the contents.
type grid struct {
	rows [][]string
	left []int // left-aligned columns
}

func (g *grid) add(cells ...string) { g.rows = append(g.rows, cells) }

// write writes the table. If it is too wide, its columns move together, and the texts of the
// first column are wrapped.
func (g *grid) write(out *bytes.Buffer, columns int) {
	widths := g.widths()
	others, gap := 0, 2
	for _, w := range widths[1:] {
		others += w + gap
	}
	if columns-others < min(20, widths[0]) {
		gap, others = 1, others-len(widths[1:])
	}
	rows := g.rows
	if first := max(16, columns-others); first < widths[0] {
		rows = nil
		for _, row := range g.rows {
			if width(row[0]) <= first {
				rows = append(rows, row)
				continue
			}
			lines := wrap(row[0], first-2)
			rows = append(rows, append(lines[:1:1], row[1:]...))
			for _, line := range lines[1:] {
				rows = append(rows, append([]string{"  " + line}, make([]string, len(row)-1)...))
			}
		}
		widths = (&grid{rows: rows}).widths()
	}
	for _, row := range rows {
		var line strings.Builder
		for i, cell := range row {
			pad := strings.Repeat(" ", widths[i]-width(cell))
			if i > 0 {
				line.WriteString(strings.Repeat(" ", gap))
			}
			if slices.Contains(g.left, i) {
				line.WriteString(cell + pad)
			} else {
				line.WriteString(pad + cell)
			}
		}
		fmt.Fprintln(out, strings.TrimRight(line.String(), " "))
	}
}

func (g *grid) widths() []int {
	widths := make([]int, len(g.rows[0]))
	for _, row := range g.rows {
		for i, cell := range row {
			widths[i] = max(widths[i], width(cell))
		}
	}
	return widths
}

// table writes the figures of all settings, one per row.
func (v *textView) table() {
	g := grid{left: []int{0}}
	g.add("", "", "rows per", "", "last", "rows per", "mean", "p95", "max")
	g.add("setting", "batches", "batch", "busy", "answer", "second", "latency", "latency", "latency")
	closed := grid{left: []int{0, 1, 2}}
	refused := ""
	if v.refuses() {
		refused = "refused"
	}
	closed.add("setting", "batches closed", refused)
	served := grid{left: []int{0}}
	served.add("", "in time", "answered", "", "mean time", "max time")
	served.add("setting", "per second", "late", "refused", "to refuse", "to refuse")
	line := func(name string, s simulate.Summary) {
		u := v.unit
		g.add(name, strconv.Itoa(s.Batches), trimZeros(strconv.FormatFloat(s.MeanBatch, 'f', 1, 64)), u.rough(s.Busy), u.rough(s.Last),
			perSecond(s.RowsPerSecond), u.rough(s.Latency.Mean), u.rough(s.Latency.P95), u.rough(s.Latency.Max))
		closed.add(name, counts(s.Closed), counts(s.Refused))
		served.add(name, perSecond(s.Goodput), strconv.Itoa(s.Late), strconv.Itoa(s.Sent-s.Answered), u.rough(s.Refusal.Mean), u.rough(s.Refusal.Max))
	}
	for _, run := range v.Runs {
		line(run.Setting, run.Total)
		for _, m := range run.Models {
			line("  "+m.Model, m.Summary)
		}
	}
	g.write(&v.out, v.columns)
	fmt.Fprintln(&v.out)
	closed.write(&v.out, v.columns)
	if v.objective() {
		fmt.Fprintln(&v.out)
		served.write(&v.out, v.columns)
	}
	v.policies()
}

// policies writes the summaries of automatic policies.
func (v *textView) policies() {
	for _, run := range v.Runs {
		for _, p := range run.Policies {
			name := run.Setting
			if len(run.Policies) > 1 {
				name += ", " + p.Model
			}
			fmt.Fprintln(&v.out)
			for _, line := range wrap(strings.TrimPrefix(name+": ", ": ")+explain.Brief(&p.Policy)+".", v.columns) {
				fmt.Fprintln(&v.out, line)
			}
		}
	}
}

// matrices writes the figures of all settings at each point of the varied parameter.
func (v *textView) matrices() {
	points := v.points()
	for i, m := range v.measures() {
		if i > 0 {
			fmt.Fprintln(&v.out)
		}
		g := grid{left: []int{0}}
		head := []string{m.name + ", by " + v.Varied}
		for _, point := range points {
			head = append(head, perSecond(point))
		}
		g.add(head...)
		for _, group := range v.groups() {
			row := []string{group.setting}
			for _, point := range points {
				cell := ""
				if run := group.at(point); run != nil {
					cell = threeDigits(m.of(run))
				}
				row = append(row, cell)
			}
			g.add(row...)
		}
		g.write(&v.out, v.columns)
	}
}
