package scenario

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/device"
	"github.com/shoal-serving/shoal/internal/simulate"
)

// served is a model as written in the file. A setting changes a copy of it before the
// core's configuration is created.
type served struct {
	name      string
	maxRows   int
	curve     device.Curve
	varies    simulate.ModelSetting // how batches of one size differ
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
	keepOrder            bool
	apart                *bool // nil: as the server does
}

func (r *reader) model(n *yaml.Node) served {
	m := served{instances: 1, batching: "triton", calibrated: true, admission: true, policy: batching.Level{TimeoutIsDeadline: true}}
	var takes, table, parts *yaml.Node
	r.mapping(n, "a model", append(fields{
		{"name", func(n *yaml.Node) { m.name = r.text(n) }},
		{"max_batch_size", func(n *yaml.Node) { m.maxRows = r.integer(n, 0, maxRows) }},
		{"takes", func(n *yaml.Node) { takes = n; m.curve.Fixed = r.time(n) }},
		{"fixed", func(n *yaml.Node) { parts = n; m.curve.Fixed = r.time(n) }},
		{"per_row", func(n *yaml.Node) { parts = n; m.curve.PerRow = r.time(n) }},
		{"per_row_squared", func(n *yaml.Node) { parts = n; m.curve.Square = r.time(n) }},
		{"pads_to", func(n *yaml.Node) { parts = n; m.curve.Step = r.integer(n, 1, maxRows) }},
		{"table", func(n *yaml.Node) { table = n; m.curve.Table = r.table(n) }},
		{"slowdown", func(n *yaml.Node) {
			if !r.single || r.device.Slowdown != nil {
				r.errorf(n, "slowdown belongs to the device that several models share: write it once, under device")
				return
			}
			r.device.Slowdown = r.slowdown(n)
		}},
		{"noise", func(n *yaml.Node) { m.varies.Noise = r.noise(n) }},
		{"drift", func(n *yaml.Node) { m.varies.Drift = r.drift(n) }},
		{"lengths", func(n *yaml.Node) { m.varies.Lengths = r.factorRange(n) }},
		{"seed", func(n *yaml.Node) { m.varies.Seed = uint64(r.integer(n, 0, math.MaxInt)) }},
	}, r.servingFields(&m)...))
	given := 0
	for _, node := range []*yaml.Node{takes, table, parts} {
		if node != nil {
			given++
		}
	}
	if given != 1 {
		r.errorf(n, "a model needs exactly one description of its batch times: takes (the same for every size), or fixed with per_row, per_row_squared and pads_to, or table (rows: time)")
	}
	if m.name == "" && !r.single {
		r.errorf(n, "a model needs a name if there are several")
	}
	if slices.ContainsFunc(r.models, func(other served) bool { return other.name == m.name }) {
		r.errorf(n, "duplicate model name %q", m.name)
	}
	return m
}

func (r *reader) table(n *yaml.Node) (points []device.Point) {
	n = resolve(n)
	if n.Kind != yaml.MappingNode || len(n.Content) == 0 {
		r.errorf(n, "table must map numbers of rows to batch times, such as {1: 2ms, 8: 5ms}")
		return nil
	}
	for i := 0; i < len(n.Content); i += 2 {
		points = append(points, device.Point{Rows: r.integer(n.Content[i], 1, maxRows), Takes: r.time(n.Content[i+1])})
	}
	slices.SortFunc(points, func(a, b device.Point) int { return cmp.Compare(a.Rows, b.Rows) })
	for i := range len(points) - 1 {
		if points[i].Rows == points[i+1].Rows {
			r.errorf(n, "table has two entries for %d rows", points[i].Rows)
		}
	}
	return points
}

func (r *reader) noise(n *yaml.Node) (noise device.Noise) {
	r.mapping(n, "noise", fields{
		{"spread", func(n *yaml.Node) { noise.Spread = r.fraction(n) }},
		{"outliers", func(n *yaml.Node) { noise.Outliers = r.fraction(n) }},
		{"times", func(n *yaml.Node) { noise.Times = r.decimal(n) }},
	})
	if noise.Times < 0 || (noise.Times == 0) != (noise.Outliers == 0) {
		r.errorf(n, "outliers (a fraction of the batches) and times (how many times as long they take) must be set together: {outliers: 0.001, times: 3}")
	}
	return noise
}

func (r *reader) drift(n *yaml.Node) (changes []device.Change) {
	r.list(n, "drift", func(n *yaml.Node) {
		var c device.Change
		r.mapping(n, "a change of speed", fields{
			{"at", func(n *yaml.Node) { c.At = r.time(n) }},
			{"times", func(n *yaml.Node) { c.Times = r.decimal(n) }},
		})
		if c.Times <= 0 || len(changes) > 0 && c.At <= changes[len(changes)-1].At {
			r.errorf(n, "drift must be a list in order of time, with factors above 0: [{at: 10s, times: 2}] doubles batch times after 10s")
		}
		changes = append(changes, c)
	})
	return changes
}

// within reads the two bounds of a factor.
func (r *reader) factorRange(n *yaml.Node) (b simulate.Range) {
	r.mapping(n, "a range", fields{
		{"from", func(n *yaml.Node) { b.From = r.decimal(n) }},
		{"to", func(n *yaml.Node) { b.To = r.decimal(n) }},
	})
	if b.From < 0 || b.To < b.From || b.To == 0 {
		r.errorf(n, "a range needs from and to, with 0 <= from <= to and to > 0, such as {from: 0.5, to: 1.5}")
	}
	return b
}

// serving lists the fields that configure how a model is served. They are allowed in a
// model and in a setting.
func (r *reader) servingFields(m *served) fields {
	return fields{
		{"batching", func(n *yaml.Node) { m.batching = r.choice(n, "triton", "automatic", "none") }},
		{"calibrated", func(n *yaml.Node) { m.calibrated = r.boolean(n) }},
		{"preferred_batch_size", func(n *yaml.Node) {
			m.preferred = nil
			r.oneOrMore(n, func(n *yaml.Node) { m.preferred = append(m.preferred, r.integer(n, 1, maxRows)) })
			slices.Sort(m.preferred)
		}},
		{"max_queue_delay", func(n *yaml.Node) { m.delay = r.time(n) }},
		{"slo", func(n *yaml.Node) { m.objective = r.time(n) }},
		{"admission", func(n *yaml.Node) { m.admission = r.boolean(n) }},
		{"instances", func(n *yaml.Node) { m.instances = r.integer(n, 1, maxInstances) }},
		{"priority_levels", func(n *yaml.Node) { m.levels = r.integer(n, 0, maxLevels) }},
		{"default_priority_level", func(n *yaml.Node) { m.defaultLevel = r.integer(n, 1, maxLevels) }},
		{"default_queue_policy", func(n *yaml.Node) { m.policy = r.queuePolicy(n) }},
		{"priority_queue_policy", func(n *yaml.Node) { m.policies = r.queuePolicies(n) }},
		{"preserve_ordering", func(n *yaml.Node) { m.keepOrder = r.boolean(n) }},
		{"lanes_apart", func(n *yaml.Node) { m.apart = new(r.boolean(n)) }},
	}
}

func (r *reader) queuePolicies(n *yaml.Node) map[int]batching.Level {
	n = resolve(n)
	if n.Kind != yaml.MappingNode {
		r.errorf(n, "priority_queue_policy must map priority levels to queue policies, such as {1: {max_queue_size: 10}}")
		return nil
	}
	policies := map[int]batching.Level{}
	for i := 0; i < len(n.Content); i += 2 {
		policies[r.integer(n.Content[i], 1, maxLevels)] = r.queuePolicy(n.Content[i+1])
	}
	return policies
}

func (r *reader) queuePolicy(n *yaml.Node) (l batching.Level) {
	r.mapping(n, "a queue policy", fields{
		{"max_queue_size", func(n *yaml.Node) { l.MaxQueue = r.integer(n, 0, maxRequests) }},
		{"default_timeout", func(n *yaml.Node) { l.Timeout = r.time(n) }},
		{"timeout_action", func(n *yaml.Node) { l.DelayOnTimeout = r.choice(n, "reject", "delay") == "delay" }},
		{"allow_timeout_override", func(n *yaml.Node) { l.AllowOverride = r.boolean(n) }},
	})
	return l
}

// setting converts it to the configuration that the server would run. Errors refer to n,
// the node that was read last.
func (m *served) setting(n *yaml.Node, r *reader) simulate.ModelSetting {
	cfg := batching.Config{MaxRows: m.maxRows, KeepOrder: m.keepOrder, OvertakeOtherShapes: m.batching == "automatic"}
	if m.apart != nil {
		cfg.OvertakeOtherShapes = *m.apart
	}
	switch largest := slices.Max(append([]int{0}, m.preferred...)); {
	case m.batching == "none":
	case m.maxRows == 0:
		r.errorf(n, "%sneeds max_batch_size to be batched: add it, or write batching: none", m.subject())
	case largest > m.maxRows:
		r.errorf(n, "%shas a preferred_batch_size of %d, which exceeds its max_batch_size of %d", m.subject(), largest, m.maxRows)
	case m.batching == "automatic" && (m.delay > 0 || largest > 0):
		r.errorf(n, "%ssets max_queue_delay or preferred_batch_size, which the automatic policy chooses: remove them, or write batching: triton", m.subject())
	case m.batching == "triton":
		cfg.Policy = batching.Triton{MaxRows: m.maxRows, Preferred: m.preferred, MaxDelay: m.delay}
	}
	if m.levels > 0 && (m.defaultLevel < 1 || m.defaultLevel > m.levels) {
		r.errorf(n, "%shas %d priority levels: default_priority_level must be one of them", m.subject(), m.levels)
		return simulate.ModelSetting{}
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
			r.errorf(n, "%shas a queue policy for priority %d, but only %d priority levels", m.subject(), level, m.levels)
		}
	}
	return simulate.ModelSetting{
		Name: m.name, Config: cfg, Curve: m.curve, Instances: m.instances,
		Automatic: m.batching == "automatic", Calibrated: m.calibrated,
		Objective: m.objective, Admission: m.admission,
		Noise: m.varies.Noise, Drift: m.varies.Drift, Lengths: m.varies.Lengths, Seed: m.varies.Seed,
	}
}

// called returns the beginning of a sentence about the model.
func (m *served) subject() string {
	if m.name == "" {
		return "the model "
	}
	return fmt.Sprintf("model %q ", m.name)
}
