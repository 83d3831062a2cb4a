package explain

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/shoal-serving/shoal/internal/console"
)

// WriteText writes the page that shoal explain prints, in lines of at most width columns.
func (m *Model) WriteText(w io.Writer, width int) error {
	p := page{Model: m, width: width, bar: widestBar}
	if width < narrow {
		p.bar = narrowBar
	}
	p.line("%s, version %s, run by %s", m.Name, m.Version, m.Backend)
	if m.Ensemble != nil { // which batches nothing itself
		p.steps()
		p.traffic()
		p.objective()
	} else {
		p.batching()
		p.curve()
		p.instances()
		p.traffic()
		p.batches()
		p.rules()
		p.objective()
	}
	_, err := w.Write(p.out.Bytes())
	return err
}

// A page builds the text.
type page struct {
	*Model
	width int // columns of a line
	bar   int // columns of the longest bar of a chart
	out   bytes.Buffer
}

func (p *page) line(format string, args ...any) {
	text := strings.TrimRight(fmt.Sprintf(format, args...), " ")
	p.out.WriteString(text + "\n")
}

// say writes a sentence of a section.
func (p *page) say(format string, args ...any) {
	p.wrap("  ", fmt.Sprintf(format+".", args...), 4)
}

// wrap writes text after prefix. Lines after the first are indented by hang columns.
func (p *page) wrap(prefix, text string, hang int) {
	p.out.WriteString(strings.Join(console.Wrap(prefix, text, p.width, hang), "\n") + "\n")
}

// row writes a row of a table whose last column has text, which wraps below itself.
func (p *page) row(text, format string, args ...any) {
	prefix := fmt.Sprintf(format, args...)
	p.wrap(prefix, text, console.Columns(prefix))
}

func (p *page) section(name string) { p.line("\n%s", name) }

// Widths of the longest bar of a chart, in columns: narrowBar on pages of fewer than
// narrow columns.
const (
	narrow    = 100
	narrowBar = 10
	widestBar = 20
)

// drawBar draws a bar for part, where most is the longest.
func (p *page) drawBar(part, most float64) string {
	if !(most > 0) {
		return ""
	}
	return strings.Repeat("█", max(1, int(math.Round(float64(p.bar)*part/most))))
}

// minJudged is the duration of a batch of one row below which the page does not judge
// speed, traffic and rules. Such a batch ends before its clients can send their next
// request, and scheduling noise is as long as the batch.
const minJudged = 250 * time.Microsecond

// tooFast returns the duration of the smallest batch if it is too short for a judgement.
func (p *page) tooFast() (takes time.Duration, yes bool) {
	if p.Policy == nil || len(p.Curve) == 0 {
		return 0, false
	}
	takes = p.Curve[0].Expected
	return takes, takes < minJudged
}

// setting writes a sentence about a setting that begins with what.
func (p *page) setting(what string, s Setting) {
	if s.Origin == Configured {
		p.say("%s configured%s: %s", what, at(s.Where), s.Why)
		return
	}
	p.say("%s %s", what, s.Why)
}

func at(where string) string {
	if where == "" {
		return ""
	}
	return " in " + where
}

func (p *page) batching() {
	b := &p.Batching
	p.section("Batching")
	p.setting(map[Origin]string{Configured: "Batching is", Automatic: "Shoal decides when a batch closes:", Default: "Default:"}[b.Origin], b.Setting)
	switch {
	case b.Delay == nil:
	case *b.Delay == 0:
		p.say("Requests are not held for further requests")
	default:
		p.say("The oldest request is held for further requests for at most %s", *b.Delay)
	}
	if len(b.Preferred) > 0 {
		p.say("Preferred batch sizes are %s rows", list(b.Preferred))
	}
	switch {
	case b.MaxRows == 0:
		p.say("The model has no batch dimension that Shoal can use")
	case b.MaxRowsByModel:
		p.say("The maximum batch size is %s, set by the model", rows(b.MaxRows))
	case b.MaxRowsWhere != "":
		p.say("The maximum batch size is %s, configured in %s", rows(b.MaxRows), b.MaxRowsWhere)
	default:
		p.say("The maximum batch size is %s, the default", rows(b.MaxRows))
	}
	switch b.Safety.Verdict {
	case Safe:
		p.say("Rows are independent: one by one and in batches, they gave the same results")
	case Unsafe:
		p.say("Rows must not share a batch: %s", b.Safety.Why)
	case NotChecked:
		p.say("Whether rows are independent was not checked: %s", b.Safety.Why)
	}
	p.padding()
	if s := p.Slots; s != nil {
		p.say("Sequences have %d of %s now, and %d wait for one", s.Used, plural(s.All, "slot", "slots"), s.Waiting)
	}
}

// padding says whether requests of different lengths share batches, and what that saves.
func (p *page) padding() {
	pad := p.Batching.Padding
	switch {
	case pad == nil:
		return
	case pad.Verdict == Unsafe:
		p.say("Requests of different lengths are not padded: %s", pad.Why)
		return
	case pad.Verdict == NotChecked:
		p.say("Requests of different lengths are not padded: %s", pad.Why)
		return
	case pad.Detected:
		p.say("Requests of different lengths may be padded, because the model has a mask: rows gave the same results with padding and without")
	default:
		p.say("Requests of different lengths may be padded: rows gave the same results with padding and without")
	}
	e := p.Policy
	if e == nil {
		return
	}
	if t := e.Padded; t.Batches > 0 {
		p.say("Padding was used in %d batches: they take %s, and %s without padding, with a batch for each length", t.Batches, brief(t.Together), brief(t.Separate))
	}
	if t := e.NotPadded; t.Batches > 0 {
		p.say("Padding did not pay in %d batches: with the next request they would take %s, and %s without padding", t.Batches, brief(t.Together), brief(t.Separate))
	}
}

func (p *page) curve() {
	p.section("Batch times")
	if len(p.Curve) == 0 {
		p.say("No batch has run yet")
		p.size()
		return
	}
	fastest := 0.0
	for i := range p.Curve {
		fastest = max(fastest, speed(&p.Curve[i]))
	}
	p.row("source", "  %6s %9s %9s %11s  %-*s  ", "rows", "time", "p95", "rows/s", p.bar, "")
	for i := range p.Curve {
		s := &p.Curve[i]
		slow, mark := "", "  "
		if s.P95 > 0 {
			slow = brief(s.P95)
		}
		if p.Policy != nil && s.Rows == p.Policy.TargetRows {
			mark = "▶ "
		}
		p.row(p.from(s), "%s%6d %9s %9s %11s  %-*s  ", mark, s.Rows, brief(s.Expected), slow, decimal(speed(s)), p.bar, p.drawBar(speed(s), fastest))
	}
	if p.Policy == nil {
		p.say("Times are those of batches in traffic, including batches that ran in parallel")
	}
	p.size()
}

// speed returns the throughput in rows per second.
func speed(s *Size) float64 { return float64(s.Rows) / max(s.Expected, 1).Seconds() }

// from returns what the time of a size is based on.
func (p *page) from(s *Size) string {
	seen := "1 batch"
	if n := math.Round(s.Samples); n != 1 {
		seen = decimal(n) + " batches"
	}
	switch {
	case p.Policy == nil:
		return seen
	case s.Calibrated && s.Samples >= 1:
		return "calibrated, " + seen
	case s.Calibrated:
		return "calibrated"
	case s.Samples > 0:
		return seen
	}
	return "estimated from other sizes"
}

// size explains the batch sizes that follow from the curve.
func (p *page) size() {
	e := p.Policy
	if e == nil {
		return
	}
	if len(p.Curve) == 0 {
		p.say("Until then, all waiting requests run as soon as an instance is free, up to %s per batch", rows(e.TargetRows))
		return
	}
	if e.Nonlinear {
		p.say("A batch takes about %s plus %s per row; some sizes are further from that line than noise explains, so sizes are compared by their own times", brief(e.FixedCost), brief(e.CostPerRow))
	} else {
		p.say("A batch takes %s plus %s per row", brief(e.FixedCost), brief(e.CostPerRow))
	}
	switch {
	case e.TargetRows == 1:
		p.say("Batches have 1 row: larger ones do not increase the throughput")
	case e.TargetRows >= e.MaxRows:
		p.say("Batches are filled up to %s, the maximum: each further row still increases the throughput", rows(e.TargetRows))
	default:
		p.say("Batches are filled up to %s: that gives nearly the best throughput, and larger ones would only increase the latency", rows(e.TargetRows))
	}
	if e.PeakRows > e.TargetRows {
		p.say("While the queue is long they have up to %s, for the best throughput", rows(e.PeakRows))
	}
	if _, fast := p.tooFast(); fast {
		return // noise looks like a change of speed
	}
	if e.Drifts == 0 {
		p.say("The speed of the model has not changed since it was loaded")
	} else {
		p.say("The speed of the model has changed %s; since the last change, batches take %.2f times as long", times(e.Drifts), e.DriftFactor)
	}
	if e.RestBatches > 0 {
		p.say("That was just now: for the next %s no request is held, until the new speed is known", batches(e.RestBatches))
	}
	if e.SmallBatches > 0 {
		p.say("%s far smaller than what waited and than what is efficient, at least 64 in a row: some estimate was wrong", plural(int(e.SmallBatches), "batch was", "batches were"))
	}
}

func (p *page) instances() {
	p.section("Instances and threads")
	p.setting(plural(p.Instances.Count, "instance", "instances")+",", p.Instances.Setting)
	if t := p.Threads; t != nil {
		what := "Threads of a batch:"
		if t.Count > 0 {
			what = plural(t.Count, "thread", "threads") + " per batch,"
		}
		p.setting(what, t.Setting)
	}
	if p.ExclusiveThreads > 0 {
		p.say("A batch that starts while no other runs has %d threads, which gives small batches the lowest latency", p.ExclusiveThreads)
	}
	p.contention()
	p.measured()
}

func (p *page) contention() {
	e := p.Policy
	if e == nil || e.Instances == 1 {
		return
	}
	for i, s := range e.Slowdown {
		switch n := i + 1; {
		case n == 1 && s < 1:
			p.say("Such a batch takes %.2f times as long as others", s)
		case n == 1:
		case e.Measured[i]:
			p.say("While %d batches run, each takes %.2f times as long, for %.2f times the throughput of one", n, s, float64(n)/s*e.Slowdown[0])
		default:
			p.say("While %d batches run, each is assumed to take %.2f times as long, until that is measured", n, s)
		}
	}
	p.say("Up to %s at a time, and up to %d during a backlog", plural(e.UsefulInstances, "batch runs", "batches run"), e.BacklogInstances)
}

func (p *page) measured() {
	c := &p.Calibration
	switch {
	case c.Error != "":
		p.say("Calibration failed: %s", c.Error)
	case c.State == CalibrationRunning:
		p.say("Calibration runs while the cores are idle; %s so far", plural(int(c.Steps), "step", "steps"))
	case c.State == CalibrationDone && c.Steps == 0:
		p.say("All measurements are from an earlier calibration")
	case c.State == CalibrationDone:
		p.say("Calibration took %s", plural(int(c.Steps), "step", "steps"))
	case c.State == CalibrationNotNeeded:
		p.say("There is nothing to calibrate: no setting depends on measurements")
	}
	switch {
	case c.Shape == "":
	case c.ShapeOrigin == TrafficShape:
		p.say("Calibration used generated rows in the most frequent shape of the traffic, %s", c.Shape)
	case c.ShapeOrigin == SampleShape:
		p.say("Calibration used the rows of model_warmup, %s", c.Shape)
	case c.ShapeOrigin == SyntheticShape:
		p.say("Calibration used generated rows in an assumed shape, %s, until most requests have another", c.Shape)
	}
	if len(c.Trials) < 2 {
		return
	}
	most := 0.0
	for _, t := range c.Trials {
		most = max(most, t.PerSecond)
	}
	p.row("latency of 1 row", "  %7s %9s %6s %11s  %-*s  ", "threads", "instances", "rows", "rows/s", p.bar, "")
	for _, t := range c.Trials {
		mark := "  "
		if t.Chosen {
			mark = "▶ "
		}
		exclusive := ""
		if t.ExclusiveThreads > 0 {
			exclusive = fmt.Sprintf(" on %d threads", t.ExclusiveThreads)
		}
		p.row(brief(t.SingleLatency)+exclusive, "%s%7d %9d %6d %11s  %-*s  ", mark, t.Threads, t.Instances, t.Rows, decimal(t.PerSecond), p.bar, p.drawBar(t.PerSecond, most))
	}
}

func (p *page) traffic() {
	p.section("Traffic")
	d := &p.Totals
	if d.SinceLastBatch == 0 && d.Requests+d.Failed == 0 && d.Waiting == 0 {
		p.say("No requests yet")
		return
	}
	last := "no batch has ended yet" // requests may be refused before they run
	if d.SinceLastBatch > 0 {
		last = "the last batch ended " + brief(d.SinceLastBatch) + " ago"
	}
	p.say("%s and %s failed; %s", plural(int(d.Requests), "request succeeded", "requests succeeded"), decimal(float64(d.Failed)), last)
	if d.Waiting > 0 {
		p.say("%s in the queue now", plural(d.Waiting, "request is", "requests are"))
	}
	if p.Policy == nil {
		return
	}
	e := p.Policy
	if e.Arrived < 2 {
		return
	}
	p.say("The last %s arrived at %s req/s, with %s each", plural(e.Arrived, "request", "requests"), decimal(e.Rate), rowsOf(e.Rows))
	takes, fast := p.tooFast()
	switch l := &e.ClosedLoop; {
	case l.Clients > 0:
		p.say("It is a closed loop of about %.0f clients: %s of the answered clients send their next request soon (p50 %s, p90 %s)",
			l.Clients, percent(e.ReturnShare), brief(e.ReturnP50), brief(e.ReturnP90))
		p.say("Batches of %s serve it best, %d at a time", rows(l.Rows), l.Batches)
		return // clients that were answered together look like a burst
	case e.ReturnShare > 0:
		p.say("%s of the answered clients send their next request soon (p50 %s, p90 %s): too few or too late to be served as a closed loop",
			percent(e.ReturnShare), brief(e.ReturnP50), brief(e.ReturnP90))
	case fast:
		p.say("A batch takes %s, which is too fast to detect whether clients wait for their answers, or send requests in bursts", brief(takes))
		return
	default:
		p.say("No clients were seen to send their next request soon after an answer, so no batch is held for them")
	}
	if e.BurstShare > 0 {
		bursts := "without bursts"
		if e.BurstShare > bursty {
			bursts = "in bursts"
		}
		p.say("Requests arrive %s: %s of them within a tenth of the mean interval after another, compared with 10 %% at random", bursts, percent(e.BurstShare))
	}
}

// bursty is the share of requests right after another above which the page reports bursts:
// twice that of random arrivals.
const bursty = 0.2

// steps says what the time of a request to an ensemble consists of.
func (p *page) steps() {
	e := p.Ensemble
	p.section("Steps")
	if e.Requests == 0 {
		p.say("No request has succeeded yet")
	}
	longest := len("model")
	for i := range e.Steps {
		longest = max(longest, console.Columns(e.Steps[i].name()))
	}
	p.line("  %-*s %11s %9s %9s %9s  %s", longest, "model", "requests", "time", "queue", "compute", "critical path")
	for i := range e.Steps {
		s := &e.Steps[i]
		p.line("  %-*s %11s %9s %9s %9s  %5s  %s", longest, s.name(), decimal(float64(s.Requests)), brief(s.Time), brief(s.Queue), brief(s.Compute),
			percent(s.Share), p.shareBar(s.Share))
	}
	if e.Requests > 0 {
		p.say("A request takes %s on average; steps of its critical path, each of which waits for the one before, run for all but %s of it", brief(e.Time), percent(e.Between))
	}
	p.say("Each step is batched with other requests of its model; shoal explain MODEL has the details")
}

// name returns the model of a step, with the version if the ensemble names one.
func (s *Step) name() string {
	if s.Version == "" {
		return s.Model
	}
	return s.Model + ":" + s.Version
}

// shareBar draws a bar for a part of 1; none for less than what one column means.
func (p *page) shareBar(part float64) string {
	if part == 0 {
		return ""
	}
	return p.drawBar(part, 1)
}

func (p *page) batches() {
	d := &p.Totals
	if d.Batches == 0 {
		return
	}
	p.section("Batches, by reason for closing")
	for _, c := range d.Closed {
		p.row(reasons[c.Reason], "  %-9s %11s %6s  %-*s  ", c.Reason, decimal(float64(c.Batches)), percent(float64(c.Batches)/float64(d.Batches)),
			p.bar, p.drawBar(float64(c.Batches), float64(d.Batches)))
	}
	p.say("%s with %s on average; requests waited %s on average", batches(d.Batches), rowsOf(float64(d.Rows)/float64(d.Batches)), brief(d.MeanQueueTime))
}

// reasons describe each [batching.Reason].
var reasons = map[string]string{
	"alone":     "the model does not combine requests",
	"full":      "the maximum batch size was reached",
	"preferred": "a preferred batch size was reached",
	"unfit":     "the next request had another shape, or too many rows",
	"waited":    "the oldest request had waited for the maximum delay",
	"idle":      "an instance was free, and no more requests waited",
	"closing":   "the model is being unloaded",
	"efficient": "the efficient size was reached",
	"gathered":  "held for clients that had just been answered",
	"burst":     "held for the rest of a burst",
	"shared":    "other instances run the rest",
	"cut":       "several smaller batches are faster than one",
	"retest":    "measures again a size that is expected to be slower",
	"padded":    "requests of other shapes were padded to join it",
}

func (p *page) rules() {
	e := p.Policy
	if e == nil || e.Batches == 0 {
		return
	}
	p.section("Rules, compared with running all waiting requests immediately")
	if takes, fast := p.tooFast(); fast {
		p.say("A batch takes %s, which is too fast to measure what a rule costs or gains", brief(takes))
		return
	}
	p.line("  %-7s %-5s %10s %9s %9s %8s", "rule", "", "held", "cost", "gain", "saved")
	for _, r := range e.Rules {
		state, cost, gain, saved := "on", brief(r.Cost), brief(r.Gain), ""
		if !r.Enabled {
			state, cost, gain = "off", "", ""
		} else if r.Cost+r.Gain > 0 && e.TotalLatency > 0 {
			saved = fmt.Sprintf("%+.1f %%", 100*float64(r.Gain-r.Cost)/float64(e.TotalLatency))
		}
		p.row(rules[r.Name], "  %-7s %-5s %10s %9s %9s %8s  ", r.Name, state, decimal(float64(r.HeldBatches)), cost, gain, saved)
	}
	p.say("Held counts batches since the model was loaded; the other columns cover the last 256 batches, or those since the rule was enabled again. The requests of the last 256 batches took %s in total", brief(e.TotalLatency))
	p.say("Every 32 batches, a rule that has cost more than 1 %% of the latency is disabled for a while")
	for _, r := range e.Rules {
		if r.Stops == 0 {
			continue
		}
		off := ""
		if !r.Enabled {
			off = fmt.Sprintf(", and stays disabled for %s", batches(r.OffBatches))
		}
		p.say("%s was disabled %s so far%s; since the model was loaded it has cost %s and gained %s", r.Name, times(r.Stops), off, brief(r.TotalCost), brief(r.TotalGain))
	}
}

// rules describe what each rule of the policy does.
var rules = map[string]string{
	"gather": "holds for clients that were just answered",
	"burst":  "holds for the rest of a burst",
	"pace":   "holds so that instances do not start at the same time",
	"share":  "holds until a batch on the same cores ends",
	"cut":    "runs fewer requests where smaller batches are faster",
}

func (p *page) objective() {
	o := p.Objective
	if o == nil {
		return
	}
	p.section("Objective")
	p.say("Requests should be answered within %s, configured%s", brief(o.Limit), at(o.Where))
	if e := p.Policy; e != nil {
		p.say("The batch size is limited so that a request that just misses a batch meets the objective in the next")
		for i := range p.Curve {
			s := &p.Curve[i]
			switch {
			case s.Rows != e.TargetRows:
			case s.P95 > o.Limit:
				p.say("The p95 of a batch of %s is %s, which is %s too much, even without waiting", rows(s.Rows), brief(s.P95), brief(s.P95-o.Limit))
			default:
				p.say("The p95 of a batch of %s is %s, which leaves %s for waiting", rows(s.Rows), brief(s.P95), brief(o.Limit-s.P95))
			}
		}
	}
	p.say("%s late, and %s immediately to avoid that", plural(int(o.Late), "request was answered", "requests were answered"), plural(int(o.Refused), "was refused", "were refused"))
}

// Brief summarizes the state of a policy in one line.
func Brief(e *Policy) string {
	parts := []string{"batches filled up to " + rows(e.TargetRows)}
	if e.Instances > 1 {
		parts = append(parts, fmt.Sprintf("%d to %d at a time", min(e.UsefulInstances, e.BacklogInstances), max(e.UsefulInstances, e.BacklogInstances)))
	}
	if e.ClosedLoop.Clients > 0 {
		parts = append(parts, fmt.Sprintf("a closed loop of about %.0f clients", e.ClosedLoop.Clients))
	} else {
		parts = append(parts, "no closed loop seen")
	}
	for _, r := range e.Rules {
		if r.HeldBatches == 0 {
			continue
		}
		text := fmt.Sprintf("%s held %s, cost %s and saved %s", r.Name, batches(r.HeldBatches), brief(r.TotalCost), brief(r.TotalGain))
		if r.Stops > 0 {
			text += fmt.Sprintf(", and was disabled %s", times(r.Stops))
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, "; ")
}

func rows(n int) string { return plural(n, "row", "rows") }

func rowsOf(n float64) string {
	text := strconv.FormatFloat(n, 'f', 1, 64)
	if whole, ok := strings.CutSuffix(text, ".0"); ok {
		text = whole
	}
	if text == "1" {
		return "1 row"
	}
	return text + " rows"
}

func batches(n uint64) string { return plural(int(n), "batch", "batches") }

func times(n uint64) string {
	if n == 1 {
		return "once"
	}
	return plural(int(n), "", "times")
}

func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return decimal(float64(n)) + " " + many
}

func percent(part float64) string { return fmt.Sprintf("%.0f %%", 100*part) }

func list(numbers []int) string {
	var all []string
	for _, n := range numbers {
		all = append(all, strconv.Itoa(n))
	}
	return strings.Join(all, ", ")
}

// decimal formats a number with thousands separators. Below 10 it keeps one decimal place,
// unless the number is whole.
func decimal(v float64) string {
	if v < 9.95 && v != math.Trunc(v) {
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	digits := strconv.FormatFloat(v, 'f', 0, 64)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// brief formats a duration with three significant digits.
func brief(d time.Duration) string {
	unit := time.Duration(1)
	for d.Abs()/unit >= 1000 {
		unit *= 10
	}
	return d.Round(unit).String()
}
