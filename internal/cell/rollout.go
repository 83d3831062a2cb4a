package cell

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/shoal-serving/shoal/internal/node"
	"github.com/shoal-serving/shoal/internal/placement"
)

const (
	measureEvery = 200 * time.Millisecond // between two looks at a rollout
	minRequests  = 500                    // that both versions answer before a step is judged to be good
	moreFailures = 0.001                  // of all requests, that the new version may add
	slower       = 1.2                    // times the old version's p99 is slow
	slowShare    = 0.01                   // of requests may be slow, which makes it a p99
)

// A RolloutState is how far a rollout is.
type RolloutState string

// States of a rollout.
const (
	RolloutWaiting RolloutState = "waiting" // for nodes that load the new version
	RolloutRunning RolloutState = "running"
	RolloutDone    RolloutState = "done"    // the new version gets all requests; or mirroring has ended
	RolloutStopped RolloutState = "stopped" // the old version gets all requests
)

// A Rollout gives the requests of a model to a new version, in steps, and stops by itself if the
// new version is worse than the old one.
type Rollout struct {
	Model  string        `json:"model"`
	From   string        `json:"from"`    // the version that the configuration gives all requests to
	To     string        `json:"to"`      // the new one
	Steps  []uint32      `json:"steps"`   // percent
	Hold   time.Duration `json:"hold_ns"` // least time of a step
	Mirror bool          `json:"mirror"`  // the old version answers, and the new one gets copies of requests
	State  RolloutState  `json:"state"`
	Step   int           `json:"step"`
	Reason string        `json:"reason,omitempty"` // why it stopped
	Since  Time          `json:"since_ns"`         // of the state or step

	// What was measured in this step; not kept on disk.
	seen     map[target]node.Figures // last figures, by node and version
	asked    map[string]bool         // nodes that have not answered
	loaded   map[string]Time         // when nodes last answered an order to load it
	measured Time
	old, new node.Tally
}

// judge says why the new version must not go on; "" if nothing speaks against it.
//
// The rules are for 500 requests or more. They already hold before that if the requests that are
// missing could not change the outcome. Three standard deviations are allowed for chance, but none
// beside a version that never fails.
func (r *Rollout) judge() string {
	n := float64(max(r.new.Requests, minRequests))
	rate := float64(r.old.Failures) / float64(max(r.old.Requests, 1))
	if float64(r.new.Failures) > n*(rate+moreFailures)+3*math.Sqrt(n*rate) {
		return fmt.Sprintf("%d of %d requests of version %s failed, and %d of %d of version %s", r.new.Failures, r.new.Requests, r.To, r.old.Failures, r.old.Requests, r.From)
	}
	limit := time.Duration(slower * float64(r.old.P99()))
	if slow := r.new.Above(limit); limit > 0 && r.old.Requests >= minRequests && float64(slow) > n*slowShare+3*math.Sqrt(n*slowShare) {
		return fmt.Sprintf("%d of %d requests of version %s took longer than %v, a fifth more than the p99 of version %s", slow, r.new.Requests, r.To, limit.Round(10*time.Microsecond), r.From)
	}
	return ""
}

// pinned returns the version that gets all requests of a model; "" if there is no such one.
func (m *Model) pinned() string {
	for _, s := range m.Split {
		if s.Percent == 100 {
			return s.Version
		}
	}
	return ""
}

// PrepareRollout completes and checks a rollout before it is started with [Started].
func (c *Core) PrepareRollout(r Rollout) (Rollout, error) {
	m := c.wanted.find(r.Model)
	number, err := strconv.ParseInt(r.To, 10, 64)
	switch old := c.rollouts[r.Model]; {
	case !c.orders():
		return r, fmt.Errorf("this cell decides nothing now; \"shoal cell status\" says why")
	case m == nil:
		return r, fmt.Errorf("the cell has no model %q", r.Model)
	case err != nil || number < 1:
		return r, fmt.Errorf("version: found %q, expected a number, such as 2", r.To)
	case old != nil && (old.State == RolloutWaiting || old.State == RolloutRunning):
		return r, fmt.Errorf("a rollout of version %s of %s is under way; stop it first", old.To, r.Model)
	case r.Hold < 0:
		return r, fmt.Errorf("hold must not be negative")
	}
	if r.From = m.pinned(); r.From == "" || r.From == r.To {
		return r, fmt.Errorf("models.%s.split: found %v in the cell's file, expected the version that serves now with 100 %%, such as {1: 100}; other than %s", r.Model, m.Split, r.To)
	}
	if len(r.Steps) == 0 {
		r.Steps = []uint32{1, 10, 50, 100} // percent
	}
	if !slices.IsSorted(r.Steps) || r.Steps[0] < 1 || r.Steps[len(r.Steps)-1] > 100 {
		return r, fmt.Errorf("steps: found %v, expected ascending percentages, such as 1,10,50,100", r.Steps)
	}
	if !r.Mirror && r.Steps[len(r.Steps)-1] < 100 {
		r.Steps = append(slices.Clone(r.Steps), 100)
	}
	return r, nil
}

func (c *Core) startRollout(r Rollout, a *Actions) {
	r.State, r.Step, r.Reason, r.Since = RolloutWaiting, 0, "", c.now
	r.init()
	c.rollouts[r.Model] = &r
	c.stepDirty = true // nodes may have to load the version
	c.changedRollout(&r, "the rollout waits for the nodes of the model", a)
}

// changedRollout makes a change of a rollout known.
func (c *Core) changedRollout(r *Rollout, what string, a *Actions) {
	r.Since, r.old, r.new = c.now, node.Tally{}, node.Tally{}
	c.routeDirty[r.Model] = struct{}{}
	c.version++
	a.Save = c.state()
	a.Log = append(a.Log, fmt.Sprintf("rollout of %s to version %s: %s", r.Model, r.To, what))
}

func (r *Rollout) init() {
	r.seen, r.asked, r.loaded = map[target]node.Figures{}, map[string]bool{}, map[string]Time{}
}

// stopRollout ends a rollout: the old version gets all requests.
func (c *Core) stopRollout(r *Rollout, reason string, a *Actions) {
	old, fresh := r.old, r.new
	r.State, r.Reason = RolloutStopped, reason
	c.changedRollout(r, "rolled back: "+reason, a)
	r.old, r.new = old, fresh // the reason is about these
}

// reconcileRollouts forgets rollouts that the configuration has overtaken. A follower keeps them:
// its file may be older than that of the cell.
func (c *Core) reconcileRollouts(a *Actions) {
	for name, r := range c.rollouts {
		if m := c.wanted.find(name); !c.follow && (m == nil || m.pinned() != r.From) {
			delete(c.rollouts, name)
			c.version++
			a.Save = c.state()
		}
	}
}

// advance moves rollouts on, and asks nodes for figures.
func (c *Core) advance(a *Actions) {
	if !c.orders() {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(c.rollouts)) {
		r := c.rollouts[name]
		switch r.State {
		case RolloutWaiting:
			c.await(r, a)
		case RolloutRunning:
			if reason := r.judge(); reason != "" {
				c.stopRollout(r, reason, a)
			} else if r.new.Requests >= minRequests && r.old.Requests >= min(minRequests, r.new.Requests) && r.Since+r.Hold <= c.now {
				c.nextStep(r, a)
			}
		}
		if r.State == RolloutRunning && r.measured+measureEvery <= c.now {
			r.measured = c.now
			for _, n := range c.routes[r.Model].Active {
				if !r.asked[n.Name] {
					r.asked[n.Name] = true
					a.Measure = append(a.Measure, Measure{n, r.Model})
				}
			}
		}
	}
}

// await starts a rollout when all nodes of the model have loaded both versions.
func (c *Core) await(r *Rollout, a *Actions) {
	active := c.routes[r.Model].Active
	for _, n := range active {
		for _, version := range []string{r.From, r.To} {
			m := c.nodes[n.Name]
			state, reason := m.version(r.Model, version)
			at, carried := r.loaded[n.Name]
			// Before its page comes, the reason is that of an earlier load.
			known := m != nil && (m.answered > at || m.failed(r.Model))
			if state == "" && carried && at+reflectFor <= c.now && c.now < at+retryAfter && !m.failed(r.Model) { // later it is loaded again
				known, state, reason = true, "UNAVAILABLE", "it does not exist, or the model's version_policy excludes it"
			}
			if !present(state) && reason != "" && carried && known && at+stepEvery <= c.now {
				c.stopRollout(r, fmt.Sprintf("node %s has no version %s: %s", n.Name, version, reason), a)
				return
			}
		}
	}
	if len(active) == 0 || c.routes[r.Model].Home || !c.have(active, r.Model, r.From) || !c.have(active, r.Model, r.To) {
		return
	}
	r.State, r.Step = RolloutRunning, -1
	c.nextStep(r, a)
}

func (c *Core) nextStep(r *Rollout, a *Actions) {
	r.Step++
	switch {
	case r.Step == len(r.Steps):
		r.Step, r.State = r.Step-1, RolloutDone
		c.changedRollout(r, "mirroring has ended, and nothing speaks against the version", a)
	case r.Steps[r.Step] == 100 && !r.Mirror:
		r.State = RolloutDone
		c.changedRollout(r, "it gets all requests; write this to the cell's file, too", a)
	case r.Mirror:
		c.changedRollout(r, fmt.Sprintf("it gets copies of %d %% of the requests", r.Steps[r.Step]), a)
	default:
		c.changedRollout(r, fmt.Sprintf("it gets %d %% of the requests", r.Steps[r.Step]), a)
	}
}

// measure takes note of the figures of a node.
func (c *Core) measure(e Measured) {
	r := c.rollouts[e.Model]
	if r == nil || r.State != RolloutRunning || !r.asked[e.Node] {
		return
	}
	delete(r.asked, e.Node)
	for _, f := range e.Versions {
		at := target{e.Node, f.Version}
		before, known := r.seen[at]
		r.seen[at] = f
		switch { // the first figures are what happened before
		case known && f.Version == r.From:
			r.old.Add(&before, &f)
		case known && f.Version == r.To:
			r.new.Add(&before, &f)
		}
	}
}

// version returns the state of a model's version on a node, and why it is not ready.
func (m *member) version(model, version string) (state, reason string) {
	for i, models := 0, m.models(); i < len(models); i++ {
		if models[i].Name == model && models[i].Version == version {
			return models[i].State, models[i].Reason
		}
	}
	return "", ""
}

// failed reports whether a node could not carry out its last order for a model.
func (m *member) failed(model string) bool {
	return m != nil && m.pending[model] != nil && m.pending[model].failed != ""
}

func present(state string) bool { return state == ready || state == loading }

// have reports whether a version is ready on all nodes.
func (c *Core) have(nodes []Node, model, version string) bool {
	return !slices.ContainsFunc(nodes, func(n Node) bool {
		state, _ := c.nodes[n.Name].version(model, version)
		return state != ready
	})
}

// divide sets how the requests of a route are divided between versions. While an active node has
// no copy of the new version, or has lost it, the old one gets everything. A version of the file
// that one of them does not have gets nothing; if none is left, nodes choose.
func (c *Core) divide(route *Route, m *Model) {
	known := slices.DeleteFunc(slices.Clone(route.Active), func(n Node) bool { return c.nodes[n.Name].page == nil })
	route.Split = slices.DeleteFunc(slices.Clone(m.Split), func(s Share) bool {
		return !route.Home && (s.Percent == 0 || !c.have(known, m.Name, s.Version))
	})
	r := c.rollouts[m.Name]
	if r == nil || r.From != m.pinned() || r.State == RolloutWaiting || r.State == RolloutStopped || !c.have(route.Active, r.Model, r.To) {
		return
	}
	percent := r.Steps[r.Step]
	switch {
	case r.Mirror && r.State == RolloutRunning:
		route.Mirror = Share{r.To, percent}
	case !r.Mirror:
		route.Split = []Share{{r.From, 100 - percent}, {r.To, percent}}
	}
}

// lacking returns the nodes that must load a version of a rollout. Spare copies may become active.
// Those that are not planned will leave, but for the one at the home of a model without a place.
func (c *Core) lacking() (all []target) {
	for name, r := range c.rollouts {
		p := c.plan.Find(name)
		if p == nil || r.State == RolloutStopped || c.routes[name].Home || r.Mirror && r.State == RolloutDone {
			continue
		}
		for _, n := range slices.Concat(c.routes[name].Active, c.routes[name].Spare) {
			old, _ := c.nodes[n.Name].version(name, r.From)
			fresh, _ := c.nodes[n.Name].version(name, r.To)
			at, carried := r.loaded[n.Name]
			stays := c.leaving[target{n.Name, name}] == 0 && (p.Home == n.Name || slices.ContainsFunc(p.Copies, func(x placement.Copy) bool { return x.Node == n.Name }))
			if stays && c.nodes[n.Name] != nil && (!carried || at+retryAfter <= c.now) && (!present(fresh) || r.State != RolloutDone && !present(old)) {
				all = append(all, target{n.Name, name})
			}
		}
	}
	slices.SortFunc(all, func(x, y target) int { return cmp.Or(cmp.Compare(x.model, y.model), cmp.Compare(x.node, y.node)) })
	return all
}

// HasRollout reports whether a model has a rollout that can be stopped.
func (c *Core) HasRollout(model string) bool {
	r := c.rollouts[model]
	return r != nil && r.State != RolloutStopped && !c.follow
}

// A RolloutDescription describes a rollout, with what was measured in its step.
type RolloutDescription struct {
	Rollout
	Old VersionFigures `json:"old"`
	New VersionFigures `json:"new"`
}

// VersionFigures are what a version did in a step of a rollout.
type VersionFigures struct {
	Requests uint64        `json:"requests"`
	Failures uint64        `json:"failures"`
	P99      time.Duration `json:"p99_ns"`
}

func (c *Core) describeRollouts() []RolloutDescription {
	all := []RolloutDescription{}
	for _, name := range slices.Sorted(maps.Keys(c.rollouts)) {
		r := c.rollouts[name]
		figures := func(t *node.Tally) VersionFigures { return VersionFigures{t.Requests, t.Failures, t.P99()} }
		all = append(all, RolloutDescription{*r, figures(&r.old), figures(&r.new)})
	}
	return all
}
