package bench

import (
	"cmp"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A Report is the results of a run.
type Report struct {
	Model      string        `json:"model"`
	Protocol   string        `json:"protocol"` // "gRPC", "gRPC streams" or "HTTP"
	Address    string        `json:"address"`
	Rows       int           `json:"rows"`                 // of each request; 0 means as recorded
	Percentile float64       `json:"percentile,omitempty"` // latency percentile by which windows are compared; 0 means the mean
	Interval   time.Duration `json:"interval_ns"`          // of a window, unless WindowRequests is set or requests are as recorded

	WindowRequests int     `json:"window_requests,omitempty"` // requests of a window, instead of Interval
	Levels         []Level `json:"levels"`
}

// A Level is the results of one load.
type Level struct {
	Model       string      `json:"model,omitempty"`        // if there are several
	Concurrency int         `json:"concurrency,omitempty"`  // of a closed loop
	Rate        float64     `json:"request_rate,omitempty"` // of an open loop, in req/s
	Stable      bool        `json:"stable"`                 // the windows agree
	Interrupted bool        `json:"interrupted,omitempty"`  // the run was interrupted
	Repeat      int         `json:"repeat,omitempty"`       // from 1, if loads are repeated
	Client      Summary     `json:"client"`
	ClosedLoop  *ClosedLoop `json:"closed_loop,omitempty"`  // estimate of a closed loop in place of an open one
	Server      *Statistics `json:"server,omitempty"`       // during the reported windows; nil if unknown
	ServerError string      `json:"server_error,omitempty"` // why Server is unknown
	Timeline    []Second    `json:"timeline"`               // of all windows, including those that are not reported
}

// A Second is the answers within one second of a load.
type Second struct {
	At       time.Duration `json:"at_ns"`    // since the start of the load
	Requests int           `json:"requests"` // answered without an error
	Failed   int           `json:"failed"`
	P50      time.Duration `json:"p50_ns"`
	P99      time.Duration `json:"p99_ns"`
	Max      time.Duration `json:"max_ns"`
}

// A Summary is the client's figures of the reported windows.
type Summary struct {
	Took            time.Duration `json:"took_ns"`
	Requests        int           `json:"requests"` // answered without an error
	Failed          int           `json:"failed"`
	Error           string        `json:"error,omitempty"` // of the first failed request
	Late            int           `json:"late"`            // sent more than a millisecond after they were due
	InfersPerSecond float64       `json:"infers_per_second"`
	Mean            time.Duration `json:"mean_ns"`
	Deviation       time.Duration `json:"standard_deviation_ns"`
	Percentiles     []Percentile  `json:"percentiles"` // ascending
	// Delay between due time and sending, in an open loop.
	SendLateness []Percentile `json:"send_lateness,omitempty"`
}

// A Percentile is a percentile of the latency.
type Percentile struct {
	Percent float64       `json:"percent"`
	Latency time.Duration `json:"latency_ns"`
}

// Summarize returns the figures of a window, with the default percentiles and the given
// one unless it is 0.
func (w *Window) Summarize(percentile float64) Summary {
	s := Summary{
		Took: w.Took, Requests: w.Requests(), Failed: w.Failed, Late: w.Late,
		Mean:      w.Latency(0),
		Deviation: time.Duration(math.Round(w.latencies.StdDev())),
	}
	if w.Took > 0 {
		s.InfersPerSecond = float64(w.Rows) / w.Took.Seconds()
	}
	if w.Err != nil {
		s.Error = w.Err.Error()
	}
	for _, p := range with([]float64{50, 75, 90, 95, 99, 99.9, 100}, percentile) {
		s.Percentiles = append(s.Percentiles, Percentile{p, w.Latency(p)})
		if w.behind != nil {
			s.SendLateness = append(s.SendLateness, Percentile{p, time.Duration(w.behind.ValueAtPercentile(p))})
		}
	}
	return s
}

// with returns percentages with another one inserted in order, unless it is 0.
func with(percents []float64, another float64) []float64 {
	if another != 0 && !slices.Contains(percents, another) {
		percents = append(percents, another)
		slices.Sort(percents)
	}
	return percents
}

// latency returns the mean or the percentile.
func (s Summary) latency(percentile float64) time.Duration {
	for _, p := range s.Percentiles {
		if p.Percent == percentile {
			return p.Latency
		}
	}
	return s.Mean
}

// late returns a percentile of the delay of sending.
func (s Summary) late(percentile float64) time.Duration {
	i := slices.IndexFunc(s.SendLateness, func(p Percentile) bool { return p.Percent == percentile })
	return s.SendLateness[i].Latency
}

func (b *Bench) level(l Load, d *driver, interrupted bool) Level {
	reported := last(d.windows)
	all := merge(plainWindows(reported))
	level := Level{
		Concurrency: l.Concurrency, Rate: l.Rate, Repeat: l.Repeat,
		// A single window, if the user asked for one, is stable.
		Stable:      l.finite() || b.Rule.Stable(plainWindows(d.windows)),
		Interrupted: interrupted,
		Client:      all.Summarize(b.Rule.Percentile),
		ClosedLoop:  all.closedLoop(),
	}
	if len(b.Targets) > 1 {
		level.Model = d.Model
	}
	if l.Plan {
		level.Rate = planned(d.Plan)
	}
	before, after := reported[0].before, reported[len(reported)-1].after
	if err := cmp.Or(before.err, after.err); err != nil {
		level.ServerError = err.Error()
		return level
	}
	for _, w := range reported {
		if w.before.err == nil && w.after.err == nil && w.after.restarted(w.before.Statistics) {
			level.ServerError = "they began again during the load, as after a reload of the model"
			return level
		}
	}
	meanwhile := after.Since(before.Statistics)
	level.Server = &meanwhile
	return level
}

// load describes the load, such as "Concurrency: 4".
func (l Level) load() string { return l.kind() + ": " + l.amount() }

func (l Level) kind() string {
	if l.Concurrency > 0 {
		return "Concurrency"
	}
	return "Request Rate"
}

func (l Level) amount() string {
	if l.Concurrency > 0 {
		return strconv.Itoa(l.Concurrency)
	}
	return strconv.FormatFloat(math.Round(l.Rate*1000)/1000, 'f', -1, 64)
}

// compared returns the name of the latency by which windows are compared, such as "p95".
func (r *Report) compared() string {
	if r.Percentile == 0 {
		return "average"
	}
	return percentName(r.Percentile)
}

func percentName(p float64) string { return "p" + strconv.FormatFloat(p, 'f', -1, 64) }

// WriteHead writes a description of the measurement.
func (r *Report) WriteHead(w io.Writer) error {
	rows, window := "as recorded", strconv.FormatInt(r.Interval.Milliseconds(), 10)+" msec"
	if r.Rows > 0 {
		rows = strconv.Itoa(r.Rows)
	}
	if r.Rows == 0 || r.WindowRequests > 0 {
		window = r.window()
	}
	_, err := fmt.Fprintf(w, `*** Measurement Settings ***
  Model: %s at %s, over %s
  Batch size: %s
  Measurement window: %s
  Stabilizing using %s latency and throughput

`, r.Model, r.Address, r.Protocol, rows, window, r.compared())
	return err
}

// window describes how long a window is.
func (r *Report) window() string {
	switch {
	case r.Rows == 0:
		return "the whole trace"
	case r.WindowRequests > 0:
		return fmt.Sprintf("%d requests", r.WindowRequests)
	}
	return r.Interval.String()
}

// settings describes requests and windows in the middle of a sentence.
func (r *Report) settings() (requests, windows string) {
	switch r.Rows {
	case 0:
		return "requests as recorded", "one window, " + r.window()
	case 1:
		return "requests of 1 row", "windows of " + r.window()
	}
	return fmt.Sprintf("requests of %d rows", r.Rows), "windows of " + r.window()
}

// WriteText writes the level in the format of Triton's perf_analyzer.
func (l Level) WriteText(w io.Writer) error {
	p := &printer{w: w}
	if l.Model != "" {
		p.line("Model: %s", l.Model)
	}
	if l.Repeat > 0 {
		p.line("Repeat: %d", l.Repeat)
	}
	if l.Concurrency > 0 {
		p.line("Request concurrency: %d", l.Concurrency)
	} else {
		p.line("Request Rate: %s inference requests per seconds", l.amount())
	}
	c := l.Client
	p.line("  Client:")
	p.line("    Request count: %d", c.Requests)
	if c.Failed > 0 {
		p.line("    Failed request count: %d, the first with: %s", c.Failed, c.Error)
	}
	p.line("    Throughput: %.2f infer/sec", c.InfersPerSecond)
	p.line("    Avg latency: %d usec (standard deviation %d usec)", c.Mean.Microseconds(), c.Deviation.Microseconds())
	for _, q := range c.Percentiles {
		p.line("    %s latency: %d usec", percentName(q.Percent), q.Latency.Microseconds())
	}
	if c.SendLateness != nil {
		p.line("    Sent later than due: p50 %d usec, p99 %d usec, at most %d usec",
			c.late(50).Microseconds(), c.late(99).Microseconds(), c.late(100).Microseconds())
	}
	if l.late() {
		p.line("    Late request count: %d; this machine could not keep up with the rate, and latencies have that in them", c.Late)
	}
	if o := l.ClosedLoop; l.closedMisses() {
		p.line("    A closed loop would have missed this: its p99 would have been %d usec (%d waiting at a time, counted from when they could be sent); here it is %d usec",
			o.P99.Microseconds(), o.Clients, c.latency(99).Microseconds())
	}
	if l.ServerError != "" {
		p.line("  Server: no statistics: %s", l.ServerError)
	}
	if s := l.Server; s != nil {
		each := s.Each()
		p.line("  Server:")
		p.line("    Inference count: %d", s.Inferences)
		p.line("    Execution count: %d", s.Executions)
		p.line("    Successful request count: %d", s.Requests)
		p.line("    Avg request latency: %d usec (overhead %d usec + queue %d usec + compute input %d usec + compute infer %d usec + compute output %d usec)",
			each.Total.Microseconds(), each.Overhead.Microseconds(), each.Queue.Microseconds(),
			each.Input.Microseconds(), each.Infer.Microseconds(), each.Output.Microseconds())
		if len(s.BatchSizes) > 0 {
			p.line("    Batch sizes: %.2f rows on average; %s", s.BatchRows(), shares(s.BatchSizes))
		}
		if len(s.Closed) > 0 {
			p.line("    Batches closed: %s", shares(s.Closed))
		}
	}
	switch {
	case l.Interrupted:
		p.line("  Interrupted: these figures are of %d msec.", c.Took.Milliseconds())
	case !l.Stable:
		p.line("  Not stable: the last windows differ by more than was allowed.")
	}
	p.line("")
	return p.err
}

// shares returns the share of each count, such as "1: 25 %, 2: 75 %".
func shares[K cmp.Ordered](counts map[K]int) string {
	sum := 0
	for _, n := range counts {
		sum += n
	}
	var all []string
	for _, k := range slices.Sorted(maps.Keys(counts)) {
		all = append(all, fmt.Sprintf("%v: %.0f %%", k, 100*float64(counts[k])/float64(max(1, sum))))
	}
	return strings.Join(all, ", ")
}

// WriteTable writes a line for each level.
func (r *Report) WriteTable(w io.Writer) error {
	p := &printer{w: w}
	name := "Avg"
	if r.Percentile != 0 {
		name = percentName(r.Percentile)
	}
	p.line("Inferences/Second vs. Client %s Batch Latency", name)
	for _, l := range r.Levels {
		model := ""
		if l.Model != "" {
			model = l.Model + ": "
		}
		p.line("%s%s, throughput: %.2f infer/sec, latency %d usec", model, l.load(), l.Client.InfersPerSecond, l.Client.latency(r.Percentile).Microseconds())
	}
	return p.err
}

// A printer keeps the first error of writing.
type printer struct {
	w   io.Writer
	err error
}

func (p *printer) line(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format+"\n", args...)
	}
}

// WriteCSV writes a row for each level, with the column names of perf_analyzer. Times are
// in microseconds; unknown values are empty.
func (r *Report) WriteCSV(w io.Writer) error {
	if len(r.Levels) == 0 {
		return nil
	}
	out := csv.NewWriter(w)
	head := []string{
		r.Levels[0].kind(), "Inferences/Second", "Network+Server Send/Recv", "Server Queue",
		"Server Compute Input", "Server Compute Infer", "Server Compute Output",
	}
	percents := with([]float64{50, 90, 95, 99}, r.Percentile)
	for _, p := range percents {
		head = append(head, percentName(p)+" latency")
	}
	rows := [][]string{append(head, "Avg latency")}
	for _, l := range r.Levels {
		rows = append(rows, l.row(percents))
	}
	if r.Levels[0].Model != "" {
		rows[0] = append([]string{"Model"}, rows[0]...)
		for i, l := range r.Levels {
			rows[i+1] = append([]string{l.Model}, rows[i+1]...)
		}
	}
	if err := out.WriteAll(rows); err != nil {
		return err
	}
	return out.Error()
}

func (l Level) row(percents []float64) []string {
	us := func(d time.Duration) string { return strconv.FormatInt(d.Microseconds(), 10) }
	row := []string{l.amount(), strconv.FormatFloat(l.Client.InfersPerSecond, 'f', 2, 64)}
	if l.Server == nil {
		row = append(row, "", "", "", "", "")
	} else {
		each := l.Server.Each()
		outside := l.Client.Mean - each.Queue - each.Input - each.Infer - each.Output
		row = append(row, us(max(0, outside)), us(each.Queue), us(each.Input), us(each.Infer), us(each.Output))
	}
	for _, p := range percents {
		row = append(row, us(l.Client.latency(p)))
	}
	return append(row, us(l.Client.Mean))
}

// WriteJSON writes all figures.
func (r *Report) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r)
}
