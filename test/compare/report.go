package main

import (
	_ "embed" // puts page.html into pageText
	"errors"
	"fmt"
	"html/template"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/shoal-serving/shoal/internal/bench"
	"github.com/shoal-serving/shoal/internal/plot"
	"github.com/shoal-serving/shoal/test/measure"
)

//go:embed page.html
var pageText string

// page is the report as HTML, in the look of shoal bench's. It asks nothing of
// anybody.
var page = template.Must(bench.Pages().New("compare").Parse(pageText))

// A report is what was measured, ready to be shown.
type report struct {
	*results
	Window   time.Duration
	Cores    int
	From, To time.Time
	Groups   []group
	Servers  []serverRow
	Sections []section
	Missed   []gate
	Absent   []line
	Troubles *troubles // nil if they were not played

	gates []gate
}

// A group counts promises of one kind.
type group struct {
	Name         string
	Met, Of      int
	Once         int // of those that are met, how many in one look
	Worst        string
	NotMeasured  int
	ByHand, Hand int // how many Shoal by hand reaches in the one look that it gets, of how many
}

// A serverRow is what is said of a server as a whole.
type serverRow struct{ Name, About, StartUp, Memory, Size string }

// A section is a model over a protocol.
type section struct {
	Name, About string
	Charts      []drawing
	Rows        []sectionRow
}

// A drawing is a chart with its heading, as bench's template wants it.
type drawing struct {
	Name, Text string
	SVG        template.HTML
}

// A sectionRow is a server in the table of a section.
type sectionRow struct {
	Name  string
	Cells []string // throughput and p99 for each number of clients
	P50   string   // with one client
	CPU   string   // for a request, with most clients
}

func newReport(r *results, window time.Duration) *report {
	rep := &report{results: r, Window: window, Cores: runtime.NumCPU()}
	for _, l := range r.lines {
		if rep.From.IsZero() || l.At.Before(rep.From) {
			rep.From = l.At
		}
		if l.At.After(rep.To) {
			rep.To = l.At
		}
		if l.Kind == kindAbsent {
			rep.Absent = append(rep.Absent, l)
		}
	}
	rep.gates = gates(r, untouched, subjects(), servers())
	for _, g := range rep.gates {
		if g.ok && !g.met() {
			rep.Missed = append(rep.Missed, g)
		}
	}
	rep.Groups = rep.groups()
	for _, s := range servers() {
		rep.Servers = append(rep.Servers, rep.serverRow(s))
	}
	for _, m := range subjects() {
		for _, protocol := range []string{protocolHTTP, protocolGRPC} {
			if s, ok := rep.section(m, protocol); ok {
				rep.Sections = append(rep.Sections, s)
			}
		}
	}
	return rep
}

// kindOf names the kind of a promise.
func (g gate) kindOf() string {
	switch {
	case g.lower:
		return "p99 lower than every peer's, in every cell"
	case g.bound == leastThroughput:
		return "throughput at least every peer's, in every cell"
	case g.bound == timesWaiting:
		return fmt.Sprintf("one client alone: at least %g times those that wait", timesWaiting)
	case g.bound == timesMMS:
		return fmt.Sprintf("tiny model over HTTP: at least %g times MMS", timesMMS)
	}
	return fmt.Sprintf("tiny model over HTTP: at least %g times the front ends in Python", timesScripted)
}

func (r *report) groups() (all []group) {
	at := map[string]int{}
	worst := map[string]gate{}
	for _, g := range r.gates {
		name := g.kindOf()
		if _, ok := at[name]; !ok {
			at[name] = len(all)
			all = append(all, group{Name: name})
		}
		of := &all[at[name]]
		if !g.ok {
			of.NotMeasured++
			continue
		}
		of.Of++
		if g.met() {
			of.Met++
		}
		if g.clear() {
			of.Once++
		}
		if w, ok := worst[name]; !ok || (g.got.mid < w.got.mid) != g.lower {
			worst[name] = g
			of.Worst = fmt.Sprintf("%v (%v, %s)", g.got, g.cell, g.peer)
		}
	}
	for _, g := range gates(r.results, "Shoal by hand", subjects(), servers()) {
		of := &all[at[g.kindOf()]]
		if g.ok {
			of.Hand++
		}
		if g.ok && g.want().Miss(g.got.mid) == 0 {
			of.ByHand++
		}
	}
	return all
}

func (r *report) serverRow(s *server) serverRow {
	row := serverRow{Name: s.name, About: s.about, StartUp: "–", Memory: "–", Size: "–"}
	var took, memory []float64
	for _, l := range r.starts(s.name) {
		took = append(took, l.StartUp.Seconds())
		if l.Model == "text_recognition" {
			memory = append(memory, float64(l.Memory)/1e6)
		}
	}
	if len(took) > 0 {
		mid, _, _ := bench.Median(took)
		row.StartUp = fmt.Sprintf("%.1f", mid)
		if size, err := sizeOf(s.where...); err == nil {
			row.Size = fmt.Sprintf("%.0f", float64(size)/1e6)
		}
	}
	if len(memory) > 0 {
		mid, _, _ := bench.Median(memory)
		row.Memory = fmt.Sprintf("%.0f", mid)
	}
	return row
}

// section returns what was measured of a model over a protocol, if anything was.
func (r *report) section(m *subject, protocol string) (section, bool) {
	s := section{Name: m.name + " over " + protocol, About: fmt.Sprintf("Peers run it with %v; Shoal by hand with %v.", m.peers, m.hand)}
	if one, ok := r.bare(m.name); ok {
		s.About = fmt.Sprintf("The bare engine computes %s rows/s at most (%s), and one row in %s ms. ", number(one.Throughput), one.Text, ms(one.P50)) + s.About
	}
	rates := r.chart(s.Name+": throughput", "requests/s", m.name, protocol, throughput.of)
	waits := r.chart(s.Name+": p99", "p99, ms", m.name, protocol, func(l line) float64 { return l.P99.Seconds() * 1000 })
	for _, sv := range servers() {
		row := sectionRow{Name: sv.name, P50: "–", CPU: "–"}
		found := false
		for _, clients := range clientCounts {
			l, ok := r.middle(cell{m.name, protocol, clients}, sv.name)
			if !ok {
				row.Cells = append(row.Cells, "–")
				continue
			}
			found = true
			if l.Throughput == 0 {
				row.Cells = append(row.Cells, "failed")
				continue
			}
			text := fmt.Sprintf("%s (%s)", number(l.Throughput), ms(l.P99))
			if l.Failed > 0 {
				text += fmt.Sprintf(", %d failed", l.Failed)
			}
			row.Cells = append(row.Cells, text)
			if clients == 1 {
				row.P50 = ms(l.P50)
			}
			row.CPU = number(float64(l.ServerCPU.Microseconds())) + " + " + number(float64(l.ClientCPU.Microseconds()))
		}
		if found {
			s.Rows = append(s.Rows, row)
		}
	}
	s.Charts = []drawing{
		{"Throughput", "Requests a second over the number of clients, each step a factor.", rates},
		{"99th percentile", "All but one in a hundred wait no longer, in milliseconds, each step a factor.", waits},
	}
	return s, len(s.Rows) > 0
}

// middle returns the medians of a server in a cell, over all that was measured.
func (r *report) middle(c cell, server string) (line, bool) {
	var all []line
	for _, l := range r.lines {
		if l.Kind == kindPass && l.cell == c && l.Server == server {
			all = append(all, l)
		}
	}
	if len(all) == 0 {
		return line{}, false
	}
	median := func(of func(line) float64) float64 {
		var values []float64
		for _, l := range all {
			values = append(values, of(l))
		}
		mid, _, _ := bench.Median(values)
		return mid
	}
	span := func(of func(line) time.Duration) time.Duration {
		return time.Duration(median(func(l line) float64 { return float64(of(l)) }))
	}
	m := line{cell: c, Server: server, Throughput: median(throughput.of)}
	m.P50, m.P99 = span(func(l line) time.Duration { return l.P50 }), span(func(l line) time.Duration { return l.P99 })
	m.ServerCPU, m.ClientCPU = span(func(l line) time.Duration { return l.ServerCPU }), span(func(l line) time.Duration { return l.ClientCPU })
	for _, l := range all {
		m.Failed += l.Failed
	}
	return m, true
}

// chart draws a figure over the clients, a line for each server.
func (r *report) chart(title, name, model, protocol string, of func(line) float64) template.HTML {
	c := plot.Chart{
		ID: strings.NewReplacer(" ", "-", ":", "").Replace(title), Title: title, Width: 566, Height: 340, Right: 130,
		Desc: "A line for each server. All figures are in the table below.",
	}
	least, most := math.Inf(1), 0.0
	for i, s := range servers() {
		one := plot.Line{Name: s.name, Class: "s" + strconv.Itoa(i)}
		for _, clients := range clientCounts {
			l, ok := r.middle(cell{model, protocol, clients}, s.name)
			if v := of(l); ok && v > 0 {
				least, most = min(least, v), max(most, v)
				one.Points = append(one.Points, plot.Point{X: float64(clients), Y: v, Title: fmt.Sprintf("%s, %d clients: %s", s.name, clients, number(v))})
			}
		}
		if len(one.Points) > 0 {
			c.Lines = append(c.Lines, one)
		}
	}
	if len(c.Lines) == 0 {
		return ""
	}
	slices.Reverse(c.Lines) // ours are drawn last, and so on top
	c.X = plot.Log("clients", 1, 100, number)
	c.X.Ticks = nil
	for _, clients := range clientCounts {
		c.X.Ticks = append(c.X.Ticks, plot.Tick{Value: float64(clients), Label: strconv.Itoa(clients)})
	}
	c.Y = plot.Log(name, least, most, number)
	return template.HTML(c.SVG()) // plot escapes
}

func number(v float64) string {
	if v < 100 {
		return strconv.FormatFloat(v, 'g', 3, 64)
	}
	text := strconv.FormatFloat(v, 'f', 0, 64)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

func ms(d time.Duration) string { return number(d.Seconds() * 1000) }

// write writes the page, and the tables as Markdown to out and into a file. It returns
// how many promises failed.
func (r *report) write(folder string, out io.Writer) (failed int, err error) {
	if r.Troubles, err = readTroubles(filepath.Join(folder, troublesFile)); err != nil {
		return 0, err
	}
	known, err := measure.KnownMisses()
	if err != nil {
		return 0, err
	}
	html, err := os.Create(filepath.Join(folder, "compare.html"))
	if err != nil {
		return 0, err
	}
	err = errors.Join(page.Execute(html, r), html.Close())
	text := r.markdown()
	_, printed := io.WriteString(out, text)
	failed, said := r.verdicts(out, known)
	return failed, errors.Join(err, printed, os.WriteFile(filepath.Join(folder, "compare.md"), []byte(text), 0o644), said)
}

// markdown returns the tables for docs/lab/measurements.md.
func (r *report) markdown() string {
	var b strings.Builder
	row := func(cells ...string) { fmt.Fprintf(&b, "| %s |\n", strings.Join(cells, " | ")) }
	head := func(cells ...string) {
		row(cells...)
		fmt.Fprintln(&b, strings.Repeat("|---", len(cells))+"|")
	}
	head("promised", "met", "of those clearly, in one look", "furthest from it", "Shoal by hand")
	for _, g := range r.Groups {
		row(g.Name, fmt.Sprintf("%d of %d", g.Met, g.Of), strconv.Itoa(g.Once), g.Worst, fmt.Sprintf("%d of %d", g.ByHand, g.Hand))
	}
	b.WriteString("\nRequests a second (p99 in ms); CPU of server + clients for a request with 64 clients, µs.\n")
	for _, s := range r.Sections {
		fmt.Fprintf(&b, "\n**%s.** %s\n\n", s.Name, s.About)
		titles := []string{"clients"}
		for _, clients := range clientCounts {
			titles = append(titles, strconv.Itoa(clients))
		}
		head(append(titles, "CPU, µs")...)
		for _, of := range s.Rows {
			row(append(append([]string{of.Name}, of.Cells...), of.CPU)...)
		}
	}
	b.WriteString("\nStart-up until the first answer (s, median over the models), memory with text_recognition after 64 clients (MB), and what it takes on the disk (MB).\n\n")
	head("", "asked with", "start-up", "memory", "disk")
	for _, s := range r.Servers {
		row(s.Name, s.About, s.StartUp, s.Memory, s.Size)
	}
	if t := r.Troubles; t != nil {
		b.WriteString("\n")
		head(append([]string{""}, t.Names...)...)
		for _, of := range t.Rows {
			row(append([]string{of.Server}, of.Words...)...)
		}
	}
	if len(r.Absent) > 0 {
		b.WriteString("\n")
	}
	for _, l := range r.Absent {
		fmt.Fprintf(&b, "- %s with %s was not measured: %s\n", l.Server, l.Model, strings.Join(strings.Fields(l.Text), " "))
	}
	return b.String()
}

// verdicts prints each promise that is not met, and last how many are. A miss that is
// known does not fail; nothing measured at all does.
func (r *report) verdicts(out io.Writer, known []measure.Known) (failed int, err error) {
	var b strings.Builder
	b.WriteString("\n")
	passed, skipped := 0, 0
	for _, g := range r.gates {
		if !g.ok {
			skipped++
			continue
		}
		if g.clear() {
			passed++
			continue
		}
		v, err := g.judge()
		note := ""
		if err == nil {
			note, err = measure.Held(v, known)
		}
		if err != nil {
			failed++
			fmt.Fprintf(&b, "FAILED  %v\n", g)
			continue
		}
		passed++
		if note != "" {
			fmt.Fprintf(&b, "known   %s\n", note)
		}
	}
	if passed+failed == 0 {
		failed++
		b.WriteString("FAILED  no promise was measured\n")
	}
	fmt.Fprintf(&b, "%d passed, %d failed, %d skipped\n", passed, failed, skipped)
	_, err = io.WriteString(out, b.String())
	return failed, err
}

// Clients returns the loads, for the template.
func (*report) Clients() []int { return clientCounts }

// Notes says what has to be known beside the figures.
func (r *report) Notes() []string {
	notes := []string{
		"Triton runs its Python backend with ONNX Runtime in it, which is all that its package for machines without a GPU has. Its own ONNX backend was not measured.",
		"Server and clients share the same cores, and so what a server takes for a request is missing to its clients, too.",
		"Peers are asked with bytes where they take them; what is said beside their names is how they were asked.",
	}
	unmeasured := 0
	for _, g := range r.gates {
		if !g.ok {
			unmeasured++
		}
	}
	if unmeasured > 0 {
		notes = append(notes, fmt.Sprintf("%d of %d promises were not measured.", unmeasured, len(r.gates)))
	}
	absent := map[string]bool{}
	for _, l := range r.Absent {
		absent[fmt.Sprintf("%s with %s was not measured: %s", l.Server, l.Model, l.Text)] = true
	}
	return append(notes, slices.Sorted(maps.Keys(absent))...)
}
