package cell

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/shoal-serving/shoal/internal/placement"
)

// A Description is the state of a cell for people.
type Description struct {
	Epoch      uint64               `json:"epoch"`
	Version    uint64               `json:"version"`
	Follower   bool                 `json:"follower"`
	Superseded string               `json:"superseded,omitempty"` // why it sends no orders
	Frozen     string               `json:"frozen,omitempty"`     // why the plan does not change
	Nodes      []NodeDescription    `json:"nodes"`
	Models     []ModelDescription   `json:"models"`
	Pending    []Change             `json:"pending"` // what the plan still changes
	Rollouts   []RolloutDescription `json:"rollouts"`
}

// A NodeDescription describes a wanted node.
type NodeDescription struct {
	Node
	Zone   string `json:"zone,omitempty"`
	State  string `json:"state"` // ready, draining, not ready, gone, or unknown
	Reason string `json:"reason,omitempty"`
	Bytes  int64  `json:"bytes"` // of models
	Memory int64  `json:"memory_bytes"`
	Copies int    `json:"copies"`
}

// A ModelDescription describes a wanted model.
type ModelDescription struct {
	Name   string   `json:"name"`
	Tenant string   `json:"tenant,omitempty"`
	Rate   float64  `json:"rate"` // rows/s
	Active []string `json:"active"`
	Spare  []string `json:"spare,omitempty"`
	Home   string   `json:"home,omitempty"`
	Split  []Share  `json:"split,omitempty"` // of requests by version
	Why    []string `json:"why"`
}

// A Change is a step of a plan.
type Change struct {
	Node   string `json:"node"`
	Model  string `json:"model"`
	Change string `json:"change"` // load or unload
}

// Describe describes the cell.
func (c *Core) Describe() Description {
	d := Description{Epoch: c.epoch, Version: c.version, Follower: c.follow, Superseded: c.superseded, Nodes: []NodeDescription{}, Models: []ModelDescription{}, Pending: []Change{}, Rollouts: c.describeRollouts()}
	for _, w := range c.wanted.Nodes {
		d.Nodes = append(d.Nodes, c.nodes[w.Name].describe())
	}
	if c.plan == nil {
		return d
	}
	d.Frozen = c.plan.Frozen
	models := c.models()
	for i := range models {
		d.Models = append(d.Models, c.describeModel(&models[i]))
	}
	for _, s := range placement.Steps(c.plan, c.placed(false, nil), models) {
		d.Pending = append(d.Pending, Change{s.Node, s.Model, Order{Unload: s.Unload}.Verb()})
	}
	return d
}

func (m *member) describe() NodeDescription {
	d := NodeDescription{Node: m.Node, State: "unknown", Reason: m.reason}
	if m.page == nil {
		return d
	}
	d.Zone, d.Memory, d.State = m.page.Zone, m.page.Memory, "ready"
	for i := range m.page.Models {
		if m.page.Models[i].State == ready {
			d.Copies++
			d.Bytes += m.page.Models[i].Bytes
		}
	}
	switch {
	case m.gone:
		d.State = "gone"
	case m.page.Draining:
		d.State = "draining"
	case !m.page.Ready:
		d.State = "not ready"
	}
	return d
}

func (c *Core) describeModel(m *placement.Model) ModelDescription {
	route := c.routes[m.Name]
	d := ModelDescription{Name: m.Name, Tenant: m.Tenant, Rate: m.Rate, Active: []string{}, Split: route.Split}
	for _, n := range route.Active {
		d.Active = append(d.Active, n.Name)
	}
	for _, n := range route.Spare {
		d.Spare = append(d.Spare, n.Name)
	}
	if route.Home {
		d.Home, d.Active = d.Active[0], []string{}
	}
	d.Why = c.why(m, &d)
	return d
}

// why says why a model is where it is.
func (c *Core) why(m *placement.Model, d *ModelDescription) (lines []string) {
	p := c.plan.Find(m.Name)
	if p == nil {
		return []string{"it is new, and the next plan has it"}
	}
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	batch, active := m.PlannedBatch(), count(p.Active, "active copy", "active copies")
	switch {
	case p.OverQuota:
		add("tenant %s has no quota left for it", m.Tenant)
	case p.Active == 0:
		add("no client has asked for it: node %s loads it for the first request", p.Home)
	case m.Rate == 0 && m.Copies > 0:
		add("it has %s, because the configuration asks for that many", active)
	case m.Rate == 0:
		add("clients have asked for it, but not recently: it has %s", active)
	default:
		add("it has %s for %.1f rows/s: batches of %d rows take %v, and a copy may be busy 60 %% of the time", active, m.Rate, batch, m.Curve.Takes(batch).Round(10*time.Microsecond))
		if p.Active == 2 && m.Copies < 2 {
			add("a model in use has at least two active copies")
		}
	}
	for _, s := range d.Split {
		add("version %s gets %d %% of the requests that name no version", s.Version, s.Percent)
	}
	if p.Spare > 0 {
		add("%s so that the loss of a zone leaves enough", count(p.Spare, "spare copy", "spare copies"))
	}
	if short := p.Active + p.Spare - len(p.Copies); short > 0 && !p.OverQuota {
		add("%s of them without a place: no node has the memory, or there are too few nodes", count(short, "copy", "copies"))
	}
	for _, copied := range p.Copies {
		if !slices.Contains(d.Active, copied.Node) && !slices.Contains(d.Spare, copied.Node) {
			add("the copy on %s %s", copied.Node, c.whyNotReady(copied.Node, m.Name))
		}
	}
	return lines
}

func (c *Core) whyNotReady(name, model string) string {
	m := c.nodes[name]
	if m == nil || m.gone {
		return "is not used: the node is gone"
	}
	switch p := m.pending[model]; {
	case m.page != nil && m.page.Draining:
		return "is not used: the node drains"
	case p != nil && p.failed != "":
		return "could not be loaded: " + strings.TrimSpace(p.failed)
	case p != nil:
		return "is being loaded"
	}
	return "is not loaded yet"
}

func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// Preview returns what the nodes would be ordered to do if w were wanted, without limits of
// their number per second and of loads at a time.
func (c *Core) Preview(w Wanted) []Change {
	o := NewCore(Options{State: c.state()})
	o.now, o.nodes = c.now, maps.Clone(c.nodes)
	for name, m := range o.nodes {
		o.nodes[name] = new(*m) // configure changes it
	}
	o.configure(w, &Actions{})
	nodes := o.placed(false, nil)
	plan := placement.Config{Quotas: w.Quotas}.Plan(o.plan, nodes, o.models(), o.now)
	changes := []Change{}
	for _, n := range nodes {
		planned := map[string]bool{}
		for _, m := range plan.Models {
			planned[m.Model] = slices.ContainsFunc(m.Copies, func(x placement.Copy) bool { return x.Node == n.Name })
			if planned[m.Model] && !slices.ContainsFunc(n.Copies, func(x placement.Loaded) bool { return x.Model == m.Model }) {
				changes = append(changes, Change{n.Name, m.Model, "load"})
			}
		}
		for _, c := range n.Copies {
			if !planned[c.Model] {
				changes = append(changes, Change{n.Name, c.Model, "unload"})
			}
		}
	}
	return changes
}

// Figures are the state of a cell in numbers.
type Figures struct {
	Routed                       bool // routes were given: there is a plan, and nodes have answered
	Follower, Superseded, Frozen bool
	PlanAge                      time.Duration // since the plan was last made, or since the start; 0 for followers
	Epoch, Version               uint64
	Nodes                        map[string]int // by state
	Models, Copies, Missing      int            // wanted models, planned copies, those of them that are not ready
	Unplaced                     int            // copies that models in use need, and that no node has a place for
	Orders                       map[string]uint64
	Failures                     uint64 // orders that nodes did not carry out
	StateFailures                uint64 // times that the state could not be written; set by package control
}

// Figures returns the state of the cell in numbers.
func (c *Core) Figures(now Time) Figures {
	f := Figures{
		Routed: c.routed != 0, Follower: c.follow, Superseded: c.superseded != "", Epoch: c.epoch, Version: c.version,
		Nodes: map[string]int{}, Models: len(c.wanted.Models), Orders: maps.Clone(c.sent), Failures: c.failures,
	}
	if !c.follow && c.began != 0 {
		f.PlanAge = now - max(c.planned, c.began)
	}
	for _, m := range c.nodes {
		f.Nodes[m.describe().State]++
	}
	if c.plan == nil {
		return f
	}
	f.Frozen = c.plan.Frozen != ""
	for i := range c.plan.Models {
		if p := &c.plan.Models[i]; p.InUse && !p.OverQuota {
			f.Unplaced += max(0, p.Active+p.Spare-len(p.Copies))
		}
		for _, at := range c.plan.Models[i].Copies {
			f.Copies++
			isIt := func(n Node) bool { return n.Name == at.Node }
			if r := c.routes[c.plan.Models[i].Model]; r.Home || !slices.ContainsFunc(r.Active, isIt) && !slices.ContainsFunc(r.Spare, isIt) {
				f.Missing++
			}
		}
	}
	return f
}
