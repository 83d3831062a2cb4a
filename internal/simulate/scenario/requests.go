package scenario

import (
	"cmp"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/shoal-serving/shoal/internal/arrivals"
	"github.com/shoal-serving/shoal/internal/simulate"
)

func (r *reader) modelNamed(n *yaml.Node) int {
	name := r.text(n)
	i := slices.IndexFunc(r.models, func(m served) bool { return m.name == name })
	if i < 0 {
		r.errorf(n, "unknown model %q", name)
		return 0
	}
	return i
}

// arrivals reads a list of requests, or a reference to a recording.
func (r *reader) arrivals(n *yaml.Node) {
	if resolve(n).Kind == yaml.MappingNode {
		r.recording(n)
		return
	}
	r.list(n, "arrivals", r.arrival)
}

func (r *reader) recording(n *yaml.Node) {
	var file string
	var names []string // models whose requests are used; empty means all
	r.mapping(n, "a recording", fields{
		{"file", func(n *yaml.Node) { file = r.text(n) }},
		{"model", func(n *yaml.Node) { r.oneOrMore(n, func(n *yaml.Node) { names = append(names, r.text(n)) }) }},
	})
	if file == "" {
		r.errorf(n, "arrivals must be a list of requests, or name a recording: {file: trace.txt}")
		return
	}
	if !filepath.IsAbs(file) {
		file = filepath.Join(filepath.Dir(r.file), file)
	}
	all, err := arrivals.ReadFile(file)
	if err != nil {
		r.errorf(n, "%w", err)
		return
	}
	chosen := all[:0]
	for _, a := range all {
		if len(names) == 0 || slices.Contains(names, a.Model) {
			chosen = append(chosen, a)
		}
	}
	if len(chosen) == 0 {
		r.errorf(n, "%s has no arrivals for %s", file, cmp.Or(strings.Join(names, ", "), "any model"))
	}
	r.addRecorded(n, file, chosen)
}

// record adds the arrivals of a recording, each to the model of its name. If there is
// only one model, its name may differ or be missing.
func (r *reader) addRecorded(n *yaml.Node, file string, all []arrivals.Arrival) {
	for _, a := range all {
		model := slices.IndexFunc(r.models, func(m served) bool { return r.single || m.name == a.Model })
		switch {
		case r.single && a.Model != all[0].Model:
			r.errorf(n, "%s has arrivals for %q and %q, but the scenario has one model: choose whose requests it receives, such as model: %[2]s",
				file, all[0].Model, a.Model)
			return
		case model < 0:
			r.errorf(n, "%s has arrivals for the unknown model %q: add the model, or choose whose requests are used, such as model: NAME", file, a.Model)
			return
		}
		if m := &r.models[model]; m.maxRows > 0 && a.Rows > m.maxRows {
			r.errorf(n, "%s has a request of %d rows, but %shas a max_batch_size of %d", file, a.Rows, m.subject(), m.maxRows)
			return
		}
		r.out.Recorded = append(r.out.Recorded, simulate.Arrival{At: a.At, Model: model, Rows: a.Rows, Priority: a.Priority})
	}
}

func (r *reader) arrival(n *yaml.Node) {
	a := simulate.Arrival{ID: fmt.Sprint(len(r.out.Arrivals) + 1), Rows: 1}
	fields := fields{
		{"at", func(n *yaml.Node) { a.At = r.time(n) }},
		{"id", func(n *yaml.Node) { a.ID = r.text(n) }},
		{"model", func(n *yaml.Node) { a.Model = r.modelNamed(n) }},
		{"rows", func(n *yaml.Node) { a.Rows = r.integer(n, 1, maxRows) }},
		{"shape", func(n *yaml.Node) { a.Shape = r.shape(n) }},
		{"priority", func(n *yaml.Node) { a.Priority = uint64(r.integer(n, 0, math.MaxInt32)) }},
		{"timeout", func(n *yaml.Node) { a.Timeout = r.time(n) }},
		{"deadline", func(n *yaml.Node) { a.Deadline = r.time(n) }},
		{"cancel_at", func(n *yaml.Node) { a.CancelAt = r.time(n) }},
	}
	r.mapping(n, "an arrival", fields)
	if a.ID == "" {
		r.errorf(n, "id must not be empty: remove it to use the number of the request")
	}
	if slices.ContainsFunc(r.out.Arrivals, func(other simulate.Arrival) bool { return other.ID == a.ID }) {
		r.errorf(n, "duplicate request id %q", a.ID)
	}
	if a.CancelAt != 0 && a.CancelAt < a.At {
		r.errorf(n, "request %q has a cancel_at before its arrival", a.ID)
	}
	r.out.Arrivals = append(r.out.Arrivals, a)
}

// shape returns a unique number for each name. Zero is for requests without a shape.
func (r *reader) shape(n *yaml.Node) uint64 {
	name := r.text(n)
	if r.shapes[name] == 0 {
		r.shapes[name] = uint64(len(r.shapes) + 1)
	}
	return r.shapes[name]
}

func (r *reader) load(n *yaml.Node) {
	r.oneOrMore(n, func(n *yaml.Node) {
		t := simulate.Traffic{Seed: 1, Rows: []int{1}}
		r.mapping(n, "a load", append(fields{{"model", func(n *yaml.Node) { t.Model = r.modelNamed(n) }}}, r.loadFields(&t)...))
		r.clientsOrRate(n)
		r.traffic = append(r.traffic, t)
		r.loads = append(r.loads, n)
	})
}

// loading lists the fields of a load that a setting may change.
func (r *reader) loadFields(t *simulate.Traffic) fields {
	return fields{
		{"clients", func(n *yaml.Node) {
			t.Clients, t.Rate = nil, nil // a setting may change an open loop to a closed one
			r.oneOrMore(n, func(n *yaml.Node) { t.Clients = append(t.Clients, r.integer(n, 1, maxClients)) })
		}},
		{"think", func(n *yaml.Node) {
			t.Think = nil
			r.oneOrMore(n, func(n *yaml.Node) { t.Think = append(t.Think, r.span(n)) })
		}},
		{"rate", func(n *yaml.Node) {
			t.Clients, t.Rate = nil, nil
			r.oneOrMore(n, func(n *yaml.Node) { t.Rate = append(t.Rate, r.rate(n)) })
		}},
		{"pattern", func(n *yaml.Node) { t.Even = r.choice(n, "poisson", "constant") == "constant" }},
		{"think_spread", func(n *yaml.Node) { t.Spread = r.fraction(n) }},
		{"phases", func(n *yaml.Node) { t.Phases = r.phases(n) }},
		{"phases_by_chance", func(n *yaml.Node) { t.Chance = r.boolean(n) }},
		{"ramp", func(n *yaml.Node) { t.Ramp = r.ramp(n) }},
		{"burst", func(n *yaml.Node) { t.Burst = r.burst(n) }},
		{"seed", func(n *yaml.Node) { t.Seed = uint64(r.integer(n, 0, math.MaxInt)) }},
		{"requests", func(n *yaml.Node) { t.Requests = r.integer(n, 1, maxRequests) }},
		{"duration", func(n *yaml.Node) { t.Duration = r.time(n) }},
		{"rows", func(n *yaml.Node) {
			t.Rows = nil
			r.oneOrMore(n, func(n *yaml.Node) { t.Rows = append(t.Rows, r.integer(n, 1, maxRows)) })
		}},
		{"shape", func(n *yaml.Node) { t.Shape = r.shape(n) }},
		{"priority", func(n *yaml.Node) { t.Priority = uint64(r.integer(n, 0, math.MaxInt32)) }},
		{"timeout", func(n *yaml.Node) { t.Timeout = r.time(n) }},
		{"answer_within", func(n *yaml.Node) { t.Within = r.time(n) }},
	}
}

// share reads a number from 0 to 1.
func (r *reader) fraction(n *yaml.Node) float64 {
	v := r.decimal(n)
	if v < 0 || v > 1 {
		r.errorf(n, "%q is not a number from 0 to 1", resolve(n).Value)
	}
	return v
}

func (r *reader) phases(n *yaml.Node) (phases []simulate.Phase) {
	some := false
	r.list(n, "phases", func(n *yaml.Node) {
		var p simulate.Phase
		r.mapping(n, "a phase", fields{
			{"times", func(n *yaml.Node) { p.Times = r.decimal(n) }},
			{"lasts", func(n *yaml.Node) { p.Lasts = r.time(n) }},
		})
		if p.Times < 0 || p.Times > 1e6 || p.Lasts == 0 {
			r.errorf(n, "a phase needs times, the factor of the rate from 0 to 1000000, and lasts, its duration: {times: 0.2, lasts: 100ms}")
		}
		some = some || p.Times > 0
		phases = append(phases, p)
	})
	if !some {
		r.errorf(n, "no phase has any requests: at least one needs times above 0")
	}
	return phases
}

func (r *reader) ramp(n *yaml.Node) (ramp simulate.Ramp) {
	r.mapping(n, "a ramp", fields{
		{"from", func(n *yaml.Node) { ramp.From = r.decimal(n) }},
		{"to", func(n *yaml.Node) { ramp.To = r.decimal(n) }},
		{"period", func(n *yaml.Node) { ramp.Period = r.time(n) }},
	})
	if ramp.From < 0 || ramp.To < 0 || ramp.From+ramp.To == 0 || ramp.Period == 0 {
		r.errorf(n, "a ramp needs from and to, the lowest and highest factor of the rate, and period, the time to rise and fall once: {from: 0.05, to: 0.95, period: 5s}")
	}
	return ramp
}

func (r *reader) burst(n *yaml.Node) (b simulate.Burst) {
	r.mapping(n, "a burst", fields{
		{"size", func(n *yaml.Node) { b.Size = r.integer(n, 1, maxRequests) }},
		{"spacing", func(n *yaml.Node) { b.Spacing = r.time(n) }},
	})
	return b
}

func (r *reader) clientsOrRate(n *yaml.Node) {
	n = resolve(n)
	has := func(name string) bool {
		return slices.ContainsFunc(n.Content, func(key *yaml.Node) bool { return key.Value == name })
	}
	if has("clients") && has("rate") {
		r.errorf(n, "a load needs either clients (a closed loop) or rate (an open loop)")
	}
}

func (r *reader) rate(n *yaml.Node) float64 {
	rate := r.decimal(n)
	if !(rate > 0 && rate <= 1e9) {
		r.errorf(n, "rate must be above 0 and at most 1000000000 requests per second")
		return 1
	}
	return rate
}

func (r *reader) span(n *yaml.Node) (s simulate.Span) {
	if n = resolve(n); n.Kind != yaml.MappingNode {
		d := r.time(n)
		return simulate.Span{From: d, To: d}
	}
	r.mapping(n, "a span of time", fields{
		{"from", func(n *yaml.Node) { s.From = r.time(n) }},
		{"to", func(n *yaml.Node) { s.To = r.time(n) }},
	})
	if s.To < s.From {
		r.errorf(n, "to must not be less than from, as in {from: 0.2ms, to: 0.4ms}")
	}
	return s
}

func (r *reader) checkTraffic(n *yaml.Node, t simulate.Traffic, m *served) {
	switch {
	case t.Clients == nil && t.Rate == nil:
		r.errorf(n, "a load needs either clients (a closed loop) or rate (an open loop)")
	case t.Rate == nil && (t.Phases != nil || t.Ramp != simulate.Ramp{} || t.Burst != simulate.Burst{}):
		r.errorf(n, "phases, ramp and burst need a rate: clients of a closed loop send when they have their answer")
	case t.Phases != nil && t.Ramp != simulate.Ramp{}, t.Even && (t.Phases != nil || t.Ramp != simulate.Ramp{}):
		r.errorf(n, "phases, ramp and pattern: constant exclude each other")
	case t.Requests == 0 && t.Duration == 0:
		r.errorf(n, "a load needs an end: add requests or duration")
	case m.maxRows > 0 && slices.Max(t.Rows) > m.maxRows:
		r.errorf(n, "the load has requests of %d rows, but %shas a max_batch_size of %d", slices.Max(t.Rows), m.subject(), m.maxRows)
	}
	for _, rate := range t.Rate {
		if rate*t.Duration.Seconds() > maxRequests && t.Requests == 0 {
			r.errorf(n, "the load sends more than %d requests, which is the limit: lower rate or duration", maxRequests)
		}
		size, highest := float64(t.Burst.Size), rate*highestFactor(t)
		if t.Burst.Spacing.Seconds()*(size-1)*highest > size*(1+rounding) {
			r.errorf(n, "the next burst is due before the last one has ended: at %g requests per second, a spacing of %v is too long for bursts of %d", highest, t.Burst.Spacing, t.Burst.Size)
		}
	}
}

// rounding is a factor for comparisons of products that may be equal but for their last digits.
const rounding = 1e-9

// highestFactor returns the highest factor of the load's rate.
func highestFactor(t simulate.Traffic) float64 {
	switch {
	case t.Ramp.Period > 0:
		return max(t.Ramp.From, t.Ramp.To)
	case len(t.Phases) > 0:
		return slices.MaxFunc(t.Phases, func(a, b simulate.Phase) int { return cmp.Compare(a.Times, b.Times) }).Times
	}
	return 1
}

// checkPoints returns an error if two loads list different numbers of values to try.
func checkPoints(loads []simulate.Traffic) error {
	points := 1
	for _, t := range loads {
		points = max(points, len(t.Clients), len(t.Rate))
	}
	for _, t := range loads {
		if n := max(len(t.Clients), len(t.Rate)); n != 1 && n != points {
			return fmt.Errorf("one load lists %d values of clients or rate, another %d: list equally many, or a single value", n, points)
		}
	}
	return nil
}
