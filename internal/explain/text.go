package explain

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"
)

// WriteText writes a page for somebody who wants to know.
func (m *Model) WriteText(w io.Writer) error {
	p := page{Model: m}
	p.line("%s, version %s, run by %s", m.Name, m.Version, m.Backend)
	p.batching()
	p.curve()
	p.instances()
	p.traffic()
	p.batches()
	p.rules()
	p.objective()
	_, err := w.Write(p.out.Bytes())
	return err
}

// A page is the text while it is written.
type page struct {
	*Model
	out bytes.Buffer
}

func (p *page) line(format string, args ...any) {
	text := strings.TrimRight(fmt.Sprintf(format, args...), " ")
	p.out.WriteString(text + "\n")
}

// say writes one sentence of a section.
func (p *page) say(format string, args ...any) { p.line("  "+format+".", args...) }

func (p *page) section(name string) { p.line("\n%s", name) }

// widest is how many columns the bars of charts have.
const widest = 20

// bar draws a part of the most.
func bar(part, most float64) string {
	if !(most > 0) {
		return ""
	}
	return strings.Repeat("█", max(1, int(math.Round(widest*part/most))))
}

// settled says who has settled something, with what comes first.
func (p *page) settled(what string, s Setting) {
	if s.By == Written {
		p.say("%s kept as written%s: %s", what, at(s.Where), s.Why)
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
	p.settled(map[By]string{Written: "When a batch closes is", Automatic: "Shoal says when a batch closes:", Default: "Nobody had to decide:"}[b.By], b.Setting)
	switch {
	case b.Delay == nil:
	case *b.Delay == 0:
		p.say("No request is held for others")
	default:
		p.say("The oldest request is held for others for %s at most", *b.Delay)
	}
	if len(b.Preferred) > 0 {
		p.say("Preferred are batches of %s rows", list(b.Preferred))
	}
	switch {
	case b.MaxRows == 0:
		p.say("The model has no batch dimension that is Shoal's to fill")
	case b.MaxRowsWhere != "":
		p.say("A batch has %s at most, kept as written in %s", rows(b.MaxRows), b.MaxRowsWhere)
	default:
		p.say("A batch has %s at most, since nobody says otherwise", rows(b.MaxRows))
	}
	switch b.Safety.Verdict {
	case Safe:
		p.say("Rows may share a batch: they were run alone and together, and gave the same answers")
	case Unsafe:
		p.say("Rows must not share a batch: %s", b.Safety.Why)
	case Asked:
		p.say("Whether rows give the same answers alone and together was not tried: %s", b.Safety.Why)
	}
}

func (p *page) curve() {
	p.section("How long batches take")
	if len(p.Curve) == 0 {
		p.say("Nothing has run yet")
		p.size()
		return
	}
	fastest := 0.0
	for i := range p.Curve {
		fastest = max(fastest, speed(&p.Curve[i]))
	}
	p.line("  %6s %9s %9s %9s  %-*s  %s", "rows", "takes", "19 of 20", "rows/s", widest, "", "from")
	for i := range p.Curve {
		s := &p.Curve[i]
		slow, mark := "", ""
		if s.Slow > 0 {
			slow = brief(s.Slow)
		}
		if p.Policy != nil && s.Rows == p.Policy.Efficient {
			mark = "  ◀ filled up to here"
		}
		p.line("  %6d %9s %9s %9s  %-*s  %s%s", s.Rows, brief(s.Takes), slow, decimal(speed(s)), widest, bar(speed(s), fastest), p.from(s), mark)
	}
	p.size()
}

// speed returns rows in a second.
func speed(s *Size) float64 { return float64(s.Rows) / max(s.Takes, 1).Seconds() }

// from says what a size rests on.
func (p *page) from(s *Size) string {
	seen := "1 batch"
	if n := math.Round(s.Live); n != 1 {
		seen = decimal(n) + " batches"
	}
	switch {
	case p.Policy == nil:
		return seen + " seen in traffic, also beside others"
	case s.Calibrated && s.Live >= 1:
		return "calibrated, " + seen + " seen in traffic"
	case s.Calibrated:
		return "calibrated"
	case s.Live > 0:
		return seen + " seen in traffic"
	}
	return "fitted to the others"
}

// size says what follows from the curve.
func (p *page) size() {
	e := p.Policy
	if e == nil {
		return
	}
	if len(p.Curve) == 0 {
		p.say("Until then whatever waits runs as soon as an instance is free, up to %s", rows(e.Efficient))
		return
	}
	if e.Bent {
		p.say("About %s, and %s for each row; sizes are further from that line than noise explains, so each counts by itself", brief(e.Fixed), brief(e.PerRow))
	} else {
		p.say("That is %s, and %s for each row", brief(e.Fixed), brief(e.PerRow))
	}
	switch {
	case e.Efficient == 1:
		p.say("Batches have 1 row: more of them do not get more done in a time")
	case e.Efficient >= e.MaxRows:
		p.say("Batches are filled up to %s, the most there may be: each row more still makes all of them cheaper", rows(e.Efficient))
	default:
		p.say("Batches are filled up to %s: there the model does nearly the most in its time, and answers of larger batches only take longer", rows(e.Efficient))
	}
	if e.Peak > e.Efficient {
		p.say("While far more waits than that, up to %s, where it does the very most", rows(e.Peak))
	}
	switch {
	case e.Drifts == 0:
		p.say("The model has kept its speed since it was loaded")
	case e.Drifts > 0:
		p.say("The model changed its speed %s; the last time batches took %.2f times as long from then on", times(e.Drifts), e.Drifted)
	}
	if e.Resting > 0 {
		p.say("That was just now: for %s more nobody is held, until the new speed is known", batches(e.Resting))
	}
}

func (p *page) instances() {
	p.section("Instances and threads")
	p.settled(plural(p.Instances.Count, "instance", "instances")+",", p.Instances.Setting)
	if t := p.Threads; t != nil {
		what := "Threads of a batch:"
		if t.Count > 0 {
			what = plural(t.Count, "thread", "threads") + " for each batch,"
		}
		p.settled(what, t.Setting)
	}
	if p.ExclusiveThreads > 0 {
		p.say("A batch that begins while no other runs has %d threads, because so many answer small batches that are alone soonest", p.ExclusiveThreads)
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
			p.say("Such a batch takes %.2f times as long as one of the others", s)
		case n == 1:
		case e.Measured[i]:
			p.say("While %d batches run, each takes %.2f times as long, so that %.2f times as much gets done as with one", n, s, float64(n)/s*e.Slowdown[0])
		default:
			p.say("While %d batches run, each is taken to need %.2f times as long, until it is measured", n, s)
		}
	}
	p.say("%s worth running at once, and %d while more waits than fills a batch", plural(e.Useful, "batch is", "batches are"), e.Backlog)
}

func (p *page) measured() {
	c := &p.Measured
	switch {
	case c.Error != "":
		p.say("Measuring has failed: %s", c.Error)
	case c.State == Going:
		p.say("It is being measured while nobody needs the cores; %s so far", plural(int(c.Steps), "step", "steps"))
	case c.State == Ended && c.Steps == 0:
		p.say("All of it was measured before, and kept")
	case c.State == Ended:
		p.say("It was measured in %s", plural(int(c.Steps), "step", "steps"))
	case c.State == Idle:
		p.say("There is nothing to measure: what measuring would tell is not left to Shoal")
	}
	switch {
	case c.Shape == "":
	case c.ShapeFrom == Traffic:
		p.say("Its rows were made up in the shape that most of the traffic had, %s", c.Shape)
	case c.ShapeFrom == Sample:
		p.say("Its rows were those of model_warmup, %s", c.Shape)
	case c.ShapeFrom == MadeUp:
		p.say("Its rows were made up, and so was their shape, %s, until most of the traffic has another", c.Shape)
	}
	if len(c.Tried) < 2 {
		return
	}
	most := 0.0
	for _, t := range c.Tried {
		most = max(most, t.PerSecond)
	}
	p.line("  %7s %9s %6s %9s  %-*s  %s", "threads", "instances", "rows", "rows/s", widest, "", "one row alone")
	for _, t := range c.Tried {
		mark := ""
		if t.Chosen {
			mark = "  ◀ chosen"
		}
		exclusive := ""
		if t.ExclusiveThreads > 0 {
			exclusive = fmt.Sprintf(" on %d threads", t.ExclusiveThreads)
		}
		p.line("  %7d %9d %6d %9s  %-*s  %s%s%s", t.Threads, t.Instances, t.Rows, decimal(t.PerSecond), widest, bar(t.PerSecond, most), brief(t.Alone), exclusive, mark)
	}
}

func (p *page) traffic() {
	p.section("Traffic")
	d := &p.Done
	if d.Since == 0 {
		p.say("Nobody has asked yet")
		return
	}
	p.say("%s answered and %s failed, and the last batch ended %s ago", plural(int(d.Requests), "request was", "requests were"), decimal(float64(d.Failed)), brief(d.Since))
	if d.Waiting > 0 {
		p.say("%s now", plural(d.Waiting, "request waits", "requests wait"))
	}
	if p.Policy == nil {
		return
	}
	e := p.Policy
	if e.Arrived < 2 {
		return
	}
	p.say("The last %s came at %s a second, of %s each", plural(e.Arrived, "request", "requests"), decimal(e.Rate), rowsOf(e.Rows))
	switch l := &e.Loop; {
	case l.Clients > 0:
		p.say("It is a closed loop of about %.0f clients: %s of those that are answered soon send their next request, half of them within %s and 9 of 10 within %s",
			l.Clients, percent(e.Returns), brief(e.Back), brief(e.Last))
		p.say("Batches of %s serve it best, %d at once", rows(l.Rows), l.Batches)
		return // what is close together are those that were answered together
	case e.Returns > 0:
		p.say("%s of the clients that are answered send their next request, half of them within %s and 9 of 10 within %s: just now too few or too late to be served as a closed loop",
			percent(e.Returns), brief(e.Back), brief(e.Last))
	default:
		p.say("Requests follow no answers: it is an open loop")
	}
	if e.Crowded > 0 {
		bursts := "no bursts"
		if e.Crowded > bursty {
			bursts = "bursts"
		}
		p.say("They come in %s: %s within a tenth of the mean distance after another, where chance makes it 10 %%", bursts, percent(e.Crowded))
	}
}

// bursty is the part of requests that come right after another, from which on it is
// told as bursts: twice what chance makes it.
const bursty = 0.2

func (p *page) batches() {
	d := &p.Done
	if d.Batches == 0 {
		return
	}
	p.section("Batches, by why they were not made larger")
	for _, c := range d.Closed {
		p.line("  %-9s %9s %6s  %-*s  %s", c.Reason, decimal(float64(c.Batches)), percent(float64(c.Batches)/float64(d.Batches)),
			widest, bar(float64(c.Batches), float64(d.Batches)), reasons[c.Reason])
	}
	p.say("%s of %s, for which requests waited %s on average", batches(d.Batches), rowsOf(float64(d.Rows)/float64(d.Batches)), brief(d.Wait))
}

// reasons are what batches close for, in words.
var reasons = map[string]string{
	"alone":     "the model does not combine requests",
	"full":      "as large as the model takes",
	"preferred": "a size that is preferred",
	"unfit":     "the next request has another shape, or too many rows",
	"waited":    "the oldest request had waited as long as it may",
	"idle":      "an instance was free, and no more were there",
	"closing":   "the model is being unloaded",
	"efficient": "large enough: the model does the most in its time",
	"gathered":  "held for clients that had just been answered",
	"burst":     "held for requests that come close together",
	"shared":    "other instances take the rest",
	"cut":       "the rest does better in a batch of its own",
	"retest":    "tried whether larger batches are worse as believed",
}

func (p *page) rules() {
	e := p.Policy
	if e == nil || e.Batches == 0 {
		return
	}
	p.section("What waiting cost and brought, against running at once what is there")
	p.line("  %-7s %-26s %8s %9s %9s %8s", "rule", "", "held", "cost", "brought", "saved")
	var off []Rule
	for _, r := range e.Rules {
		state := "on"
		if !r.On {
			state = "off for " + batches(r.Off) + " more"
		}
		if r.Stops > 0 {
			off = append(off, r)
		}
		saved := ""
		if r.Cost+r.Gain > 0 && e.Total > 0 {
			saved = fmt.Sprintf("%+.1f %%", 100*float64(r.Gain-r.Cost)/float64(e.Total))
		}
		p.line("  %-7s %-26s %8s %9s %9s %8s  %s", r.Name, state, decimal(float64(r.Held)), brief(r.Cost), brief(r.Gain), saved, rules[r.Name])
	}
	p.say("Held counts from the start; the others are of the last 256 batches, whose requests took %s in all", brief(e.Total))
	if len(off) == 0 {
		p.say("No rule had to be switched off: none has ever cost more than 1 %% of that")
	}
	for _, r := range off {
		p.say("%s was switched off %s so far, because it had cost more than 1 %% of what requests took", r.Name, times(r.Stops))
	}
}

// rules are what rules do, in words.
var rules = map[string]string{
	"gather": "holds for clients that were just answered",
	"burst":  "holds for requests that come close together",
	"pace":   "holds so that instances do not start all at once",
	"share":  "holds while a batch on the same cores ends soon",
	"cut":    "runs less than all where the curve has a step",
}

func (p *page) objective() {
	o := p.Objective
	if o == nil {
		return
	}
	p.section("Objective")
	p.say("Requests are to be answered within %s, kept as written%s", brief(o.Limit), at(o.Where))
	if e := p.Policy; e != nil {
		p.say("Batches are made no larger than lets those be answered in time who just miss one")
		for i := range p.Curve {
			if s := &p.Curve[i]; s.Rows == e.Efficient {
				p.say("19 of 20 batches of %s take no longer than %s, which leaves %s for waiting", rows(s.Rows), brief(s.Slow), brief(o.Limit-s.Slow))
			}
		}
	}
	p.say("%s later, and %s at once since they would have been", plural(int(o.Late), "request was answered", "requests were answered"), plural(int(o.Refused), "was refused", "were refused"))
}

// Brief returns what a policy has made of it in one line.
func Brief(e *Policy) string {
	parts := []string{"batches filled up to " + rows(e.Efficient)}
	if e.Instances > 1 {
		parts = append(parts, fmt.Sprintf("%d to %d at once", min(e.Useful, e.Backlog), max(e.Useful, e.Backlog)))
	}
	if e.Loop.Clients > 0 {
		parts = append(parts, fmt.Sprintf("a closed loop of about %.0f clients", e.Loop.Clients))
	} else {
		parts = append(parts, "an open loop")
	}
	for _, r := range e.Rules {
		if r.Held == 0 {
			continue
		}
		text := fmt.Sprintf("%s held %s, cost %s and brought %s", r.Name, batches(r.Held), brief(r.AllCost), brief(r.AllGain))
		if r.Stops > 0 {
			text += fmt.Sprintf(", and was switched off %s", times(r.Stops))
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

// decimal writes a number with a comma at each thousand; below 10 with one digit
// after the point, if it is not whole.
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

// brief writes a duration with three digits.
func brief(d time.Duration) string {
	unit := time.Duration(1)
	for d/unit >= 1000 {
		unit *= 10
	}
	return d.Round(unit).String()
}
