package cell

import (
	"fmt"
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
	Pending    []ChangeDescription  `json:"pending"` // what the plan still changes
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

// A ChangeDescription describes a step of a plan.
type ChangeDescription struct {
	Node   string `json:"node"`
	Model  string `json:"model"`
	Change string `json:"change"` // load or unload
}

// Describe describes the cell.
func (c *Core) Describe() Description {
	d := Description{Epoch: c.epoch, Version: c.version, Follower: c.follow, Superseded: c.superseded, Nodes: []NodeDescription{}, Models: []ModelDescription{}, Pending: []ChangeDescription{}, Rollouts: c.describeRollouts()}
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
	d.Pending = changes(placement.Steps(c.plan, c.placed(false), models, planEvery))
	return d
}

func changes(steps []placement.Step) []ChangeDescription {
	all := []ChangeDescription{}
	for _, s := range steps {
		all = append(all, ChangeDescription{Node: s.Node, Model: s.Model, Change: Order{Unload: s.Unload}.verb()})
	}
	return all
}

func (m *member) describe() NodeDescription {
	d := NodeDescription{Node: m.Node, State: "unknown", Reason: m.reason}
	if m.page == nil {
		return d
	}
	d.Zone, d.Memory = m.page.Zone, m.page.Memory
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
	default:
		d.State = "ready"
	}
	return d
}

func (c *Core) describeModel(m *placement.Model) ModelDescription {
	d := ModelDescription{Name: m.Name, Tenant: m.Tenant, Rate: m.Rate, Active: []string{}}
	route := c.routes[m.Name]
	for _, n := range route.Active {
		d.Active = append(d.Active, n.Name)
	}
	for _, n := range route.Spare {
		d.Spare = append(d.Spare, n.Name)
	}
	if route.Home {
		d.Home, d.Active = d.Active[0], []string{}
	}
	d.Split = route.Split
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
	batch := m.PlannedBatch()
	switch {
	case p.OverQuota:
		add("tenant %s has no quota left for it", m.Tenant)
	case p.Active == 0:
		add("no client has asked for it: node %s loads it for the first request", p.Home)
	case m.Rate == 0 && m.Copies > 0:
		add("it has %s, because the configuration asks for that many", count(p.Active, "active copy", "active copies"))
	case m.Rate == 0:
		add("clients have asked for it, but not recently: it has %s", count(p.Active, "active copy", "active copies"))
	default:
		add("it has %s for %.1f rows/s: batches of %d rows take %v, and a copy may be busy 60 %% of the time", count(p.Active, "active copy", "active copies"), m.Rate, batch, m.Curve.Takes(batch).Round(10*time.Microsecond))
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
	switch p := c.pending[target{name, model}]; {
	case m == nil || m.gone:
		return "is not used: the node is gone"
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

// A Preview is what another configuration would change.
type Preview struct {
	Changes []ChangeDescription `json:"changes"`
}

// Preview returns what the nodes would be ordered to do if w were wanted, without limits of
// their number per second and of loads at a time.
func (c *Core) Preview(w Wanted) Preview {
	o := NewCore(Options{State: c.state()})
	o.now = c.now
	o.configure(w)
	for name, m := range c.nodes {
		if kept := o.nodes[name]; kept != nil {
			*kept = member{Node: kept.Node, page: m.page, seen: m.seen, failing: m.failing, gone: m.gone}
		}
	}
	o.learned = c.learned
	plan := placement.Config{Quotas: w.Quotas}.Plan(o.plan, o.placed(false), o.models(), o.now)
	p := Preview{Changes: []ChangeDescription{}}
	for _, n := range o.placed(false) {
		for _, held := range n.Copies {
			if at := plan.Find(held.Model); at == nil || !slices.ContainsFunc(at.Copies, func(x placement.Copy) bool { return x.Node == n.Name }) {
				p.Changes = append(p.Changes, ChangeDescription{n.Name, held.Model, "unload"})
			}
		}
		for _, m := range plan.Models {
			planned := slices.ContainsFunc(m.Copies, func(x placement.Copy) bool { return x.Node == n.Name })
			if planned && !slices.ContainsFunc(n.Copies, func(l placement.Loaded) bool { return l.Model == m.Model }) {
				p.Changes = append(p.Changes, ChangeDescription{n.Name, m.Model, "load"})
			}
		}
	}
	return p
}

// Version returns the epoch, and the version of the plan.
func (c *Core) Version() (epoch, version uint64) { return c.epoch, c.version }
