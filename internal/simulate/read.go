package simulate

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/shoal-serving/shoal/internal/arrivals"
	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/device"
)

// Limits that only a mistake in the file exceeds.
const (
	maxInstances = 1024
	maxClients   = 100_000
	maxRequests  = 100_000_000
	maxLevels    = 1024
	maxRows      = 1_000_000
)

var errEmpty = errors.New("the file is empty; a scenario has at least a model, and arrivals or a load")

// Read parses a scenario from the text of a YAML file. The file name is used in errors.
func Read(file string, text []byte) (*Scenario, error) {
	dec := yaml.NewDecoder(bytes.NewReader(text))
	var doc, more yaml.Node
	if err := dec.Decode(&doc); errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: %w", file, errEmpty)
	} else if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if len(doc.Content) != 1 {
		return nil, fmt.Errorf("%s: %w", file, errEmpty)
	}
	if err := dec.Decode(&more); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: a scenario is one YAML document; something follows it", file)
	}
	r := &reader{file: file, shapes: map[string]uint64{}}
	r.scenario(doc.Content[0])
	if len(r.errs) > 0 {
		return nil, errors.Join(r.errs...)
	}
	return &r.out, nil
}

// A reader converts the nodes of a document to a scenario. It continues after a mistake,
// so that it can report all of them.
type reader struct {
	file string
	errs []error
	out  Scenario

	single  bool // the file has model instead of models
	device  Setting
	models  []served
	traffic []Traffic
	loads   []*yaml.Node // nodes of the traffic
	shapes  map[string]uint64
}

func (r *reader) wrong(n *yaml.Node, format string, args ...any) {
	err := fmt.Errorf("%s:%d: %w", r.file, n.Line, fmt.Errorf(format, args...))
	// A setting's common fields are read for each model.
	if !slices.ContainsFunc(r.errs, func(other error) bool { return other.Error() == err.Error() }) {
		r.errs = append(r.errs, err)
	}
}

func (r *reader) scenario(n *yaml.Node) {
	s := &r.out
	var model, models, settings *yaml.Node
	r.object(n, "a scenario", fields{
		{"title", func(n *yaml.Node) { s.Title = r.text(n) }},
		{"text", func(n *yaml.Node) { s.Text = strings.TrimSpace(r.text(n)) }},
		{"unit", func(n *yaml.Node) { s.Unit = r.unit(n) }},
		{"model", func(n *yaml.Node) { model = n }},
		{"models", func(n *yaml.Node) { models = n }},
		{"device", func(n *yaml.Node) { r.readDevice(n, &r.device) }},
		{"arrivals", nil}, // read after the models, which they refer to
		{"load", nil},
		{"settings", func(n *yaml.Node) { settings = n }},
	})
	switch {
	case model != nil && models != nil:
		r.wrong(models, "a scenario has either model or models")
	case model != nil:
		r.single = true
		r.models = []served{r.model(model)}
	case models != nil:
		r.list(models, "models", func(n *yaml.Node) { r.models = append(r.models, r.model(n)) })
	default:
		r.wrong(n, "a scenario needs a model: write model with max_batch_size and takes")
	}
	r.object(n, "", fields{
		{"arrivals", r.arrivals},
		{"load", r.load},
	})
	switch {
	case len(r.errs) > 0:
		return // settings depend on what could not be read
	case settings == nil:
		r.setting(&yaml.Node{Kind: yaml.MappingNode, Line: n.Line})
	default:
		r.list(settings, "settings", r.setting)
	}
}

var unitName = regexp.MustCompile(`^[A-Z][A-Za-z]*$`)

// unit reads a unit such as {X: 300ms}. Its name begins with a capital letter, which no
// duration contains.
func (r *reader) unit(n *yaml.Node) (u Unit) {
	n = follow(n)
	if n.Kind != yaml.MappingNode || len(n.Content) != 2 || !unitName.MatchString(n.Content[0].Value) {
		r.wrong(n, "a unit is a name that begins with a capital, and its length: {X: 300ms}")
		return u
	}
	length := r.time(n.Content[1])
	if length == 0 {
		r.wrong(n, "a unit must be longer than 0")
		return u
	}
	return Unit{n.Content[0].Value, length}
}

func (r *reader) readDevice(n *yaml.Node, set *Setting) {
	r.object(n, "a device", fields{
		{"slots", func(n *yaml.Node) { set.Slots = r.whole(n, 1, maxInstances) }},
		{"slowdown", func(n *yaml.Node) { set.Slowdown = r.slowdown(n) }},
	})
}

func (r *reader) slowdown(n *yaml.Node) (factors []float64) {
	r.list(n, "slowdown", func(n *yaml.Node) {
		factor := r.decimal(n)
		if factor < 1 || factor > 1e6 {
			r.wrong(n, "slowdown says how many times longer a batch takes while 1, 2, … run: each at least 1, such as [1, 1.4]")
		}
		factors = append(factors, factor)
	})
	return factors
}

// Models.

// served is a model as written in the file. A setting changes a copy of it before the
// core's configuration is created.
type served struct {
	name      string
	maxRows   int
	curve     device.Curve
	varies    ModelSetting // how batches of one size differ
	instances int

	batching   string // triton, automatic or none
	calibrated bool   // the automatic policy starts with the exact profile

	preferred []int
	delay     time.Duration

	objective time.Duration
	admission bool

	levels, defaultLevel int
	policy               batching.Level
	policies             map[int]batching.Level
	keepOrder, apart     bool
}

func (r *reader) model(n *yaml.Node) served {
	m := served{instances: 1, batching: "triton", calibrated: true, admission: true, policy: batching.Level{Ends: true}}
	var takes, table, parts *yaml.Node
	r.object(n, "a model", append(fields{
		{"name", func(n *yaml.Node) { m.name = r.text(n) }},
		{"max_batch_size", func(n *yaml.Node) { m.maxRows = r.whole(n, 0, maxRows) }},
		{"takes", func(n *yaml.Node) { takes = n; m.curve.Fixed = r.time(n) }},
		{"fixed", func(n *yaml.Node) { parts = n; m.curve.Fixed = r.time(n) }},
		{"per_row", func(n *yaml.Node) { parts = n; m.curve.PerRow = r.time(n) }},
		{"per_row_squared", func(n *yaml.Node) { parts = n; m.curve.Square = r.time(n) }},
		{"pads_to", func(n *yaml.Node) { parts = n; m.curve.Step = r.whole(n, 1, maxRows) }},
		{"table", func(n *yaml.Node) { table = n; m.curve.Table = r.table(n) }},
		{"slowdown", func(n *yaml.Node) {
			if !r.single || r.device.Slowdown != nil {
				r.wrong(n, "models that share a device are slowed down by it: write slowdown under device, once")
				return
			}
			r.device.Slowdown = r.slowdown(n)
		}},
		{"noise", func(n *yaml.Node) { m.varies.Noise = r.noise(n) }},
		{"drift", func(n *yaml.Node) { m.varies.Drift = r.drift(n) }},
		{"lengths", func(n *yaml.Node) { m.varies.Lengths = r.within(n) }},
		{"seed", func(n *yaml.Node) { m.varies.Seed = uint64(r.whole(n, 0, math.MaxInt)) }},
	}, r.serving(&m)...))
	given := 0
	for _, node := range []*yaml.Node{takes, table, parts} {
		if node != nil {
			given++
		}
	}
	if given != 1 {
		r.wrong(n, "a model says how long it takes in one way: takes (the same for any batch), fixed, per_row, per_row_squared and pads_to, or table (rows: time)")
	}
	if m.name == "" && !r.single {
		r.wrong(n, "each of several models needs a name")
	}
	if slices.ContainsFunc(r.models, func(other served) bool { return other.name == m.name }) {
		r.wrong(n, "there are two models %q", m.name)
	}
	return m
}

func (r *reader) table(n *yaml.Node) (points []device.Point) {
	n = follow(n)
	if n.Kind != yaml.MappingNode || len(n.Content) == 0 {
		r.wrong(n, "table gives for numbers of rows how long they take: {1: 2ms, 8: 5ms}")
		return nil
	}
	for i := 0; i < len(n.Content); i += 2 {
		points = append(points, device.Point{Rows: r.whole(n.Content[i], 1, maxRows), Takes: r.time(n.Content[i+1])})
	}
	slices.SortFunc(points, func(a, b device.Point) int { return cmp.Compare(a.Rows, b.Rows) })
	for i := range len(points) - 1 {
		if points[i].Rows == points[i+1].Rows {
			r.wrong(n, "table has %d rows twice", points[i].Rows)
		}
	}
	return points
}

func (r *reader) noise(n *yaml.Node) (noise device.Noise) {
	r.object(n, "noise", fields{
		{"spread", func(n *yaml.Node) { noise.Spread = r.share(n) }},
		{"outliers", func(n *yaml.Node) { noise.Outliers = r.share(n) }},
		{"times", func(n *yaml.Node) { noise.Times = r.decimal(n) }},
	})
	if noise.Times < 0 || (noise.Times == 0) != (noise.Outliers == 0) {
		r.wrong(n, "outliers are a share of the runs, and take so many times as long: {outliers: 0.001, times: 3}")
	}
	return noise
}

func (r *reader) drift(n *yaml.Node) (changes []device.Change) {
	r.list(n, "drift", func(n *yaml.Node) {
		var c device.Change
		r.object(n, "a change of speed", fields{
			{"at", func(n *yaml.Node) { c.At = r.time(n) }},
			{"times", func(n *yaml.Node) { c.Times = r.decimal(n) }},
		})
		if c.Times <= 0 || len(changes) > 0 && c.At <= changes[len(changes)-1].At {
			r.wrong(n, "drift says from when on batches take how many times as long, by time: [{at: 10s, times: 2}]")
		}
		changes = append(changes, c)
	})
	return changes
}

// within reads the two bounds of a factor.
func (r *reader) within(n *yaml.Node) (b Range) {
	r.object(n, "a range", fields{
		{"from", func(n *yaml.Node) { b.From = r.decimal(n) }},
		{"to", func(n *yaml.Node) { b.To = r.decimal(n) }},
	})
	if b.From < 0 || b.To < b.From || b.To == 0 {
		r.wrong(n, "a range goes from one number up to another: {from: 0.5, to: 1.5}")
	}
	return b
}

// serving lists the fields that configure how a model is served. They are allowed in a
// model and in a setting.
func (r *reader) serving(m *served) fields {
	return fields{
		{"batching", func(n *yaml.Node) { m.batching = r.choice(n, "triton", "automatic", "none") }},
		{"calibrated", func(n *yaml.Node) { m.calibrated = r.yes(n) }},
		{"preferred_batch_size", func(n *yaml.Node) {
			m.preferred = nil
			r.some(n, func(n *yaml.Node) { m.preferred = append(m.preferred, r.whole(n, 1, maxRows)) })
			slices.Sort(m.preferred)
		}},
		{"max_queue_delay", func(n *yaml.Node) { m.delay = r.time(n) }},
		{"slo", func(n *yaml.Node) { m.objective = r.time(n) }},
		{"admission", func(n *yaml.Node) { m.admission = r.yes(n) }},
		{"instances", func(n *yaml.Node) { m.instances = r.whole(n, 1, maxInstances) }},
		{"priority_levels", func(n *yaml.Node) { m.levels = r.whole(n, 0, maxLevels) }},
		{"default_priority_level", func(n *yaml.Node) { m.defaultLevel = r.whole(n, 1, maxLevels) }},
		{"default_queue_policy", func(n *yaml.Node) { m.policy = r.queuePolicy(n) }},
		{"priority_queue_policy", func(n *yaml.Node) { m.policies = r.queuePolicies(n) }},
		{"preserve_ordering", func(n *yaml.Node) { m.keepOrder = r.yes(n) }},
		{"lanes_apart", func(n *yaml.Node) { m.apart = r.yes(n) }},
	}
}

func (r *reader) queuePolicies(n *yaml.Node) map[int]batching.Level {
	n = follow(n)
	if n.Kind != yaml.MappingNode {
		r.wrong(n, "priority_queue_policy gives levels their policies: {1: {max_queue_size: 10}}")
		return nil
	}
	policies := map[int]batching.Level{}
	for i := 0; i < len(n.Content); i += 2 {
		policies[r.whole(n.Content[i], 1, maxLevels)] = r.queuePolicy(n.Content[i+1])
	}
	return policies
}

func (r *reader) queuePolicy(n *yaml.Node) (l batching.Level) {
	r.object(n, "a queue policy", fields{
		{"max_queue_size", func(n *yaml.Node) { l.MaxQueue = r.whole(n, 0, maxRequests) }},
		{"default_timeout", func(n *yaml.Node) { l.Timeout = r.time(n) }},
		{"timeout_action", func(n *yaml.Node) { l.DelayLate = r.choice(n, "reject", "delay") == "delay" }},
		{"allow_timeout_override", func(n *yaml.Node) { l.AllowOverride = r.yes(n) }},
	})
	return l
}

// setting converts it to the configuration that the server would run. Errors refer to n,
// the node that was read last.
func (m *served) setting(n *yaml.Node, r *reader) ModelSetting {
	cfg := batching.Config{MaxRows: m.maxRows, KeepOrder: m.keepOrder, LanesApart: m.apart}
	switch largest := slices.Max(append([]int{0}, m.preferred...)); {
	case m.batching == "none":
	case m.maxRows == 0:
		r.wrong(n, "%scannot be batched without max_batch_size: give it one, or write batching: none", m.called())
	case largest > m.maxRows:
		r.wrong(n, "%sprefers batches of %d rows, but has max_batch_size %d", m.called(), largest, m.maxRows)
	case m.batching == "automatic" && (m.delay > 0 || largest > 0):
		r.wrong(n, "%shas max_queue_delay or preferred_batch_size, which the automatic policy chooses: leave them out, or write batching: triton", m.called())
	case m.batching == "triton":
		cfg.Policy = batching.Triton{MaxRows: m.maxRows, Preferred: m.preferred, MaxDelay: m.delay}
	}
	if m.levels > 0 && (m.defaultLevel < 1 || m.defaultLevel > m.levels) {
		r.wrong(n, "%shas %d priority levels; default_priority_level must be one of them", m.called(), m.levels)
		return ModelSetting{}
	}
	cfg.Levels = make([]batching.Level, max(1, m.levels))
	cfg.DefaultLevel = max(1, m.defaultLevel)
	for i := range cfg.Levels {
		cfg.Levels[i] = m.policy
		if p, ok := m.policies[i+1]; ok {
			cfg.Levels[i] = p
		}
	}
	for level := range m.policies {
		if level > m.levels {
			r.wrong(n, "%shas a queue policy for priority %d, but %d priority levels", m.called(), level, m.levels)
		}
	}
	return ModelSetting{
		Name: m.name, Config: cfg, Curve: m.curve, Instances: m.instances,
		Automatic: m.batching == "automatic", Calibrated: m.calibrated,
		Objective: m.objective, Admission: m.admission,
		Noise: m.varies.Noise, Drift: m.varies.Drift, Lengths: m.varies.Lengths, Seed: m.varies.Seed,
	}
}

// called returns the beginning of a sentence about the model.
func (m *served) called() string {
	if m.name == "" {
		return "the model "
	}
	return fmt.Sprintf("model %q ", m.name)
}

// Requests.

func (r *reader) modelNamed(n *yaml.Node) int {
	name := r.text(n)
	i := slices.IndexFunc(r.models, func(m served) bool { return m.name == name })
	if i < 0 {
		r.wrong(n, "no model is called %q", name)
		return 0
	}
	return i
}

// arrivals reads a list of requests, or a reference to a recording.
func (r *reader) arrivals(n *yaml.Node) {
	if follow(n).Kind == yaml.MappingNode {
		r.recording(n)
		return
	}
	r.list(n, "arrivals", r.arrival)
}

func (r *reader) recording(n *yaml.Node) {
	var file string
	var names []string // models whose requests are used; empty means all
	r.object(n, "a recording", fields{
		{"file", func(n *yaml.Node) { file = r.text(n) }},
		{"model", func(n *yaml.Node) { r.some(n, func(n *yaml.Node) { names = append(names, r.text(n)) }) }},
	})
	if file == "" {
		r.wrong(n, "arrivals are a list, or a recording that has a file: {file: trace.txt}")
		return
	}
	if !filepath.IsAbs(file) {
		file = filepath.Join(filepath.Dir(r.file), file)
	}
	all, err := arrivals.ReadFile(file)
	if err != nil {
		r.wrong(n, "%w", err)
		return
	}
	chosen := all[:0]
	for _, a := range all {
		if len(names) == 0 || slices.Contains(names, a.Model) {
			chosen = append(chosen, a)
		}
	}
	if len(chosen) == 0 {
		r.wrong(n, "%s has no arrivals for %s", file, cmp.Or(strings.Join(names, ", "), "any model"))
	}
	r.record(n, file, chosen)
}

// record adds the arrivals of a recording, each to the model of its name. If there is
// only one model, its name may differ or be missing.
func (r *reader) record(n *yaml.Node, file string, all []arrivals.Arrival) {
	for _, a := range all {
		model := slices.IndexFunc(r.models, func(m served) bool { return r.single || m.name == a.Model })
		switch {
		case r.single && a.Model != all[0].Model:
			r.wrong(n, "%s has arrivals for %q and %q, but the scenario has one model: say whose requests it gets, such as model: %[2]s",
				file, all[0].Model, a.Model)
			return
		case model < 0:
			r.wrong(n, "%s has arrivals for %q, but no model is called that: add it, or say whose requests are taken, such as model: NAME", file, a.Model)
			return
		}
		if m := &r.models[model]; m.maxRows > 0 && a.Rows > m.maxRows {
			r.wrong(n, "%s has a request of %d rows, but %shas max_batch_size %d", file, a.Rows, m.called(), m.maxRows)
			return
		}
		r.out.Recorded = append(r.out.Recorded, Arrival{At: a.At, Model: model, Rows: a.Rows, Priority: a.Priority})
	}
}

func (r *reader) arrival(n *yaml.Node) {
	a := Arrival{ID: fmt.Sprint(len(r.out.Arrivals) + 1), Rows: 1}
	fields := fields{
		{"at", func(n *yaml.Node) { a.At = r.time(n) }},
		{"id", func(n *yaml.Node) { a.ID = r.text(n) }},
		{"model", func(n *yaml.Node) { a.Model = r.modelNamed(n) }},
		{"rows", func(n *yaml.Node) { a.Rows = r.whole(n, 1, maxRows) }},
		{"shape", func(n *yaml.Node) { a.Shape = r.shape(n) }},
		{"priority", func(n *yaml.Node) { a.Priority = uint64(r.whole(n, 0, math.MaxInt32)) }},
		{"timeout", func(n *yaml.Node) { a.Timeout = r.time(n) }},
		{"deadline", func(n *yaml.Node) { a.Deadline = r.time(n) }},
		{"cancel_at", func(n *yaml.Node) { a.CancelAt = r.time(n) }},
	}
	r.object(n, "an arrival", fields)
	if a.ID == "" {
		r.wrong(n, "a request needs an id that can be seen, or none")
	}
	if slices.ContainsFunc(r.out.Arrivals, func(other Arrival) bool { return other.ID == a.ID }) {
		r.wrong(n, "there are two requests %q", a.ID)
	}
	if a.CancelAt != 0 && a.CancelAt < a.At {
		r.wrong(n, "request %q is cancelled before it arrives", a.ID)
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
	r.some(n, func(n *yaml.Node) {
		t := Traffic{Seed: 1, Rows: []int{1}}
		r.object(n, "a load", append(fields{{"model", func(n *yaml.Node) { t.Model = r.modelNamed(n) }}}, r.loading(&t)...))
		r.clientsOrRate(n)
		r.traffic = append(r.traffic, t)
		r.loads = append(r.loads, n)
	})
}

// loading lists the fields of a load that a setting may change.
func (r *reader) loading(t *Traffic) fields {
	return fields{
		{"clients", func(n *yaml.Node) {
			t.Clients, t.Rate = nil, nil // a setting may change an open loop to a closed one
			r.some(n, func(n *yaml.Node) { t.Clients = append(t.Clients, r.whole(n, 1, maxClients)) })
		}},
		{"think", func(n *yaml.Node) {
			t.Think = nil
			r.some(n, func(n *yaml.Node) { t.Think = append(t.Think, r.span(n)) })
		}},
		{"rate", func(n *yaml.Node) {
			t.Clients, t.Rate = nil, nil
			r.some(n, func(n *yaml.Node) { t.Rate = append(t.Rate, r.rate(n)) })
		}},
		{"pattern", func(n *yaml.Node) { t.Even = r.choice(n, "poisson", "constant") == "constant" }},
		{"think_spread", func(n *yaml.Node) { t.Spread = r.share(n) }},
		{"phases", func(n *yaml.Node) { t.Phases = r.phases(n) }},
		{"phases_by_chance", func(n *yaml.Node) { t.Chance = r.yes(n) }},
		{"ramp", func(n *yaml.Node) { t.Ramp = r.ramp(n) }},
		{"burst", func(n *yaml.Node) { t.Burst = r.burst(n) }},
		{"seed", func(n *yaml.Node) { t.Seed = uint64(r.whole(n, 0, math.MaxInt)) }},
		{"requests", func(n *yaml.Node) { t.Requests = r.whole(n, 1, maxRequests) }},
		{"duration", func(n *yaml.Node) { t.Duration = r.time(n) }},
		{"rows", func(n *yaml.Node) {
			t.Rows = nil
			r.some(n, func(n *yaml.Node) { t.Rows = append(t.Rows, r.whole(n, 1, maxRows)) })
		}},
		{"shape", func(n *yaml.Node) { t.Shape = r.shape(n) }},
		{"priority", func(n *yaml.Node) { t.Priority = uint64(r.whole(n, 0, math.MaxInt32)) }},
		{"timeout", func(n *yaml.Node) { t.Timeout = r.time(n) }},
		{"answer_within", func(n *yaml.Node) { t.Within = r.time(n) }},
	}
}

// share reads a number from 0 to 1.
func (r *reader) share(n *yaml.Node) float64 {
	v := r.decimal(n)
	if v < 0 || v > 1 {
		r.wrong(n, "%q is not a number from 0 to 1", follow(n).Value)
	}
	return v
}

func (r *reader) phases(n *yaml.Node) (phases []Phase) {
	some := false
	r.list(n, "phases", func(n *yaml.Node) {
		var p Phase
		r.object(n, "a phase", fields{
			{"times", func(n *yaml.Node) { p.Times = r.decimal(n) }},
			{"lasts", func(n *yaml.Node) { p.Lasts = r.time(n) }},
		})
		if p.Times < 0 || p.Times > 1e6 || p.Lasts == 0 {
			r.wrong(n, "a phase is by how much the rate is multiplied, and for how long: {times: 0.2, lasts: 100ms}")
		}
		some = some || p.Times > 0
		phases = append(phases, p)
	})
	if !some {
		r.wrong(n, "in no phase does anything arrive: give one of them times above 0")
	}
	return phases
}

func (r *reader) ramp(n *yaml.Node) (ramp Ramp) {
	r.object(n, "a ramp", fields{
		{"from", func(n *yaml.Node) { ramp.From = r.decimal(n) }},
		{"to", func(n *yaml.Node) { ramp.To = r.decimal(n) }},
		{"period", func(n *yaml.Node) { ramp.Period = r.time(n) }},
	})
	if ramp.From < 0 || ramp.To < 0 || ramp.From+ramp.To == 0 || ramp.Period == 0 {
		r.wrong(n, "a ramp is by how much the rate is multiplied, and in what time it goes up and down: {from: 0.05, to: 0.95, period: 5s}")
	}
	return ramp
}

func (r *reader) burst(n *yaml.Node) (b Burst) {
	r.object(n, "a burst", fields{
		{"size", func(n *yaml.Node) { b.Size = r.whole(n, 1, maxRequests) }},
		{"spacing", func(n *yaml.Node) { b.Spacing = r.time(n) }},
	})
	return b
}

func (r *reader) clientsOrRate(n *yaml.Node) {
	n = follow(n)
	has := func(name string) bool {
		return slices.ContainsFunc(n.Content, func(key *yaml.Node) bool { return key.Value == name })
	}
	if has("clients") && has("rate") {
		r.wrong(n, "a load has either clients, who wait for their answers, or a rate")
	}
}

func (r *reader) rate(n *yaml.Node) float64 {
	rate := r.decimal(n)
	if !(rate > 0 && rate <= 1e9) {
		r.wrong(n, "rate is requests a second, more than 0 and up to a thousand million")
		return 1
	}
	return rate
}

func (r *reader) span(n *yaml.Node) (s Span) {
	if n = follow(n); n.Kind != yaml.MappingNode {
		d := r.time(n)
		return Span{d, d}
	}
	r.object(n, "a span of time", fields{
		{"from", func(n *yaml.Node) { s.From = r.time(n) }},
		{"to", func(n *yaml.Node) { s.To = r.time(n) }},
	})
	if s.To < s.From {
		r.wrong(n, "a span of time ends after it begins: {from: 0.2ms, to: 0.4ms}")
	}
	return s
}

// Settings.

func (r *reader) setting(n *yaml.Node) {
	set := r.device
	models := slices.Clone(r.models)
	set.Traffic = slices.Clone(r.traffic)
	loads := slices.Clone(r.loads)
	r.object(n, "a setting", append(fields{
		{"name", func(n *yaml.Node) { set.Name = r.text(n) }},
		{"slots", func(n *yaml.Node) { set.Slots = r.whole(n, 0, maxInstances) }},
		{"load", func(n *yaml.Node) {
			for i := range set.Traffic {
				r.object(n, "the load of a setting", r.loading(&set.Traffic[i]))
				loads[i] = n
			}
			r.clientsOrRate(n)
			if len(set.Traffic) == 0 {
				r.wrong(n, "there is no load that the setting could change")
			}
		}},
	}, r.forAll(models)...))
	// Fields of a single model override those of all models.
	r.object(n, "", fields{{"models", func(n *yaml.Node) { r.forEach(n, models) }}})
	if set.Name == "" {
		set.Name = fmt.Sprintf("setting %d", len(r.out.Settings)+1)
	}
	if slices.ContainsFunc(r.out.Settings, func(other Setting) bool { return other.Name == set.Name }) {
		r.wrong(n, "there are two settings %q", set.Name)
	}
	for i := range models {
		m := models[i].setting(n, r)
		m.Config.TakeTurns = set.Slots > 0
		set.Models = append(set.Models, m)
	}
	for i, t := range set.Traffic {
		r.checkTraffic(loads[i], t, &models[t.Model])
	}
	if len(set.Traffic)+len(r.out.Arrivals)+len(r.out.Recorded) == 0 {
		r.wrong(n, "nothing arrives: write arrivals or load")
	}
	if err := set.check(); err != nil {
		r.wrong(n, "%w", err)
	}
	r.out.Settings = append(r.out.Settings, set)
}

// forAll lists the fields that configure how all models are served.
func (r *reader) forAll(models []served) fields {
	var all fields
	for i, f := range r.serving(&served{}) {
		all = append(all, field{f.name, func(n *yaml.Node) {
			for m := range models {
				r.serving(&models[m])[i].read(n)
			}
		}})
	}
	return append(all, field{"models", nil})
}

// forEach reads the fields of a setting for single models, by name.
func (r *reader) forEach(n *yaml.Node, models []served) {
	n = follow(n)
	if n.Kind != yaml.MappingNode {
		r.wrong(n, "models gives each model that is served otherwise what is different: {NAME: {instances: 2}}")
		return
	}
	for i := 0; i < len(n.Content); i += 2 {
		m := &models[r.modelNamed(n.Content[i])]
		r.object(n.Content[i+1], "a model of a setting", r.serving(m))
	}
}

func (r *reader) checkTraffic(n *yaml.Node, t Traffic, m *served) {
	switch {
	case t.Clients == nil && t.Rate == nil:
		r.wrong(n, "a load has either clients, who wait for their answers, or a rate")
	case t.Rate == nil && (t.Phases != nil || t.Ramp != Ramp{} || t.Burst != Burst{}):
		r.wrong(n, "phases, a ramp and bursts are those of a rate; clients come when they have their answers")
	case t.Phases != nil && t.Ramp != Ramp{}, t.Even && (t.Phases != nil || t.Ramp != Ramp{}):
		r.wrong(n, "a rate changes in one way: phases, or a ramp, and neither with the pattern constant")
	case t.Requests == 0 && t.Duration == 0:
		r.wrong(n, "a load must end: write requests or duration")
	case m.maxRows > 0 && slices.Max(t.Rows) > m.maxRows:
		r.wrong(n, "a load has requests of %d rows, but %shas max_batch_size %d", slices.Max(t.Rows), m.called(), m.maxRows)
	}
	for _, rate := range t.Rate {
		if rate*t.Duration.Seconds() > maxRequests && t.Requests == 0 {
			r.wrong(n, "a load sends more than %d requests", maxRequests)
		}
	}
}

// Nodes.

// fields are the allowed keys of a mapping, in the order in which they are read.
type fields []field

type field struct {
	name string
	read func(*yaml.Node) // nil if it is read elsewhere
}

// object reads a mapping. It reports unknown fields, unless what is empty, in which case
// another reader has reported them.
func (r *reader) object(n *yaml.Node, what string, fields fields) {
	n = follow(n)
	if n.Kind != yaml.MappingNode {
		if what != "" {
			r.wrong(n, "%s is a mapping with fields: %s", what, fields.names())
		}
		return
	}
	found := map[string]*yaml.Node{}
	for i := 0; i < len(n.Content); i += 2 {
		key := n.Content[i]
		if what != "" {
			switch {
			case !slices.ContainsFunc(fields, func(f field) bool { return f.name == key.Value }):
				r.wrong(key, "%s has no field %q; its fields are %s", what, key.Value, fields.names())
			case found[key.Value] != nil:
				r.wrong(key, "%q stands here twice", key.Value)
			}
		}
		found[key.Value] = n.Content[i+1]
	}
	for _, f := range fields {
		if value := found[f.name]; value != nil && f.read != nil {
			f.read(value)
		}
	}
}

func (f fields) names() string {
	var names []string
	for _, field := range f {
		names = append(names, field.name)
	}
	return strings.Join(names, ", ")
}

func (r *reader) list(n *yaml.Node, what string, read func(*yaml.Node)) {
	n = follow(n)
	if n.Kind != yaml.SequenceNode || len(n.Content) == 0 {
		r.wrong(n, "%s is a list with at least one entry", what)
		return
	}
	for _, entry := range n.Content {
		read(entry)
	}
}

// some reads one value or a list of values.
func (r *reader) some(n *yaml.Node, read func(*yaml.Node)) {
	if n = follow(n); n.Kind == yaml.SequenceNode {
		r.list(n, "this", read)
		return
	}
	read(n)
}

func follow(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

func (r *reader) text(n *yaml.Node) string {
	if n = follow(n); n.Kind != yaml.ScalarNode || n.Tag == "!!null" {
		r.wrong(n, "here stands a text")
		return ""
	}
	return n.Value
}

func (r *reader) time(n *yaml.Node) time.Duration {
	n = follow(n)
	d, err := r.out.Unit.parse(n.Value)
	if err != nil {
		r.wrong(n, "%w", err)
	}
	return d
}

func (r *reader) whole(n *yaml.Node, least, most int) int {
	n = follow(n)
	var v int
	if err := n.Decode(&v); err != nil || n.Tag != "!!int" || v < least || v > most {
		r.wrong(n, "%q is not a whole number from %d to %d", n.Value, least, most)
		return least
	}
	return v
}

func (r *reader) decimal(n *yaml.Node) float64 {
	n = follow(n)
	var v float64
	if err := n.Decode(&v); err != nil || math.IsNaN(v) || math.IsInf(v, 0) {
		r.wrong(n, "%q is not a number", n.Value)
		return 1
	}
	return v
}

func (r *reader) yes(n *yaml.Node) bool { return r.choice(n, "true", "false") == "true" }

func (r *reader) choice(n *yaml.Node, known ...string) string {
	n = follow(n)
	if !slices.Contains(known, n.Value) {
		r.wrong(n, "%q is not one of %s", n.Value, strings.Join(known, ", "))
		return known[0]
	}
	return n.Value
}
