package cell

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/shoal-serving/shoal/internal/placement"
)

// control is the control plane: what it knows, and the plan.
type control struct {
	plan     *placement.Plan
	models   []placement.Model
	index    map[string]int32 // of nodes
	byName   map[string]int32 // of models
	errors   []float64        // factors of the reported rates, by model
	late     [][]float64      // rates that are on their way, oldest first
	silent   bool             // reports have stopped
	stepped  Time             // of the last steps
	loading  []Time           // when copies that were ordered will be ready
	died     bool             // a node has died since the last round
	allEqual bool             // all copies are active
}

// startControl places all models before the first request arrives.
func (c *cell) startControl() {
	k := &c.control
	k.index, k.byName = map[string]int32{}, map[string]int32{}
	k.allEqual = c.cfg.Balancer != ActiveSet
	errors := rand.New(rand.NewPCG(c.cfg.Seed, 2))
	for i := range c.cfg.Models {
		m := &c.cfg.Models[i]
		factor := 1.0
		if c.cfg.RateError > 1 {
			factor = math.Exp(errors.NormFloat64() * math.Log(c.cfg.RateError))
		}
		k.errors = append(k.errors, factor)
		k.byName[m.Name] = int32(i)
		k.models = append(k.models, placement.Model{
			Name: m.Name, Tenant: m.Tenant, Digest: m.Name, Bytes: m.Bytes, Curve: m.Curve, Efficient: m.efficient,
			Objective: m.Objective, Rate: m.Rate * factor * c.firstLoad(), Asked: m.Rate > 0,
		})
	}
	for i, n := range c.cfg.Nodes {
		k.index[n.Name] = int32(i)
	}
	k.plan = c.cfg.Placement.Plan(nil, c.reports(), k.models, 0)
	if k.allEqual {
		c.spread()
	} else {
		for i := range k.plan.Models {
			for _, at := range k.plan.Models[i].Copies {
				c.addCopy(k.byName[k.plan.Models[i].Model], k.index[at.Node], 0)
			}
		}
	}
	c.updateRoutes(nil)
	for at := c.cfg.ReportEvery; c.cfg.ReportEvery > 0 && at <= c.cfg.Duration; at += c.cfg.ReportEvery {
		c.plan(at, c.round)
		for look := at - c.cfg.ReportEvery + lookEvery; look < at; look += lookEvery {
			c.plan(look, c.look)
		}
	}
}

func (c *cell) firstLoad() float64 {
	if len(c.cfg.Load) > 0 && c.cfg.Load[0].At == 0 {
		return c.cfg.Load[0].Times
	}
	return 1
}

func (c *cell) addCopy(m, n int32, readyAt Time) *copyOf {
	to := &copyOf{model: m, node: n, inFlight: make([]uint16, c.cfg.Proxies), readyAt: readyAt}
	c.nodes[n].copies = append(c.nodes[n].copies, to)
	return to
}

// reports returns what the nodes report.
func (c *cell) reports() (all []placement.Node) {
	if c.control.silent {
		return nil
	}
	for i, n := range c.nodes {
		if n.dead || n.silent {
			continue
		}
		report := placement.Node{Name: c.cfg.Nodes[i].Name, Zone: n.zone, Bytes: cmp.Or(c.cfg.Nodes[i].Bytes, math.MaxInt64/4), Draining: n.draining}
		for _, to := range n.copies {
			report.Copies = append(report.Copies, placement.Loaded{Model: c.cfg.Models[to.model].Name, Bytes: c.cfg.Models[to.model].Bytes, Ready: to.readyAt <= c.now})
		}
		all = append(all, report)
	}
	return all
}

// round is one round of reports, plan and orders.
func (c *cell) round() {
	k := &c.control
	k.died = false
	c.takeReports()
	nodes := c.reports()
	if k.allEqual {
		c.dropDead()
		return
	}
	k.plan = c.cfg.Placement.Plan(k.plan, nodes, k.models, c.now)
	steps := placement.Steps(k.plan, nodes, k.models)
	steps = steps[:min(len(steps), placement.Moves(c.now-k.stepped))]
	k.stepped = c.now
	for _, s := range steps {
		m, n := k.byName[s.Model], k.index[s.Node]
		if s.Unload {
			c.nodes[n].copies = slices.DeleteFunc(c.nodes[n].copies, func(to *copyOf) bool { return to.model == m })
		} else {
			k.loading = append(k.loading, c.addCopy(m, n, c.now+c.cfg.Models[m].LoadTime).readyAt)
		}
	}
	c.figures.round(c.now, k.plan, steps)
	if k.plan.Frozen == "" {
		c.updateRoutes(c.reports())
	}
}

// lookEvery is how often proxies learn of copies that have become ready: nodes report that at once.
const lookEvery = time.Second

// look routes to copies that have become ready since the last round, unless a node has died since
// then: proxies keep its copies until the next round, which decides whether the plan is frozen.
func (c *cell) look() {
	k := &c.control
	isReady := func(at Time) bool { return at <= c.now }
	if !k.silent && !k.died && k.plan.Frozen == "" && slices.ContainsFunc(k.loading, isReady) {
		k.loading = slices.DeleteFunc(k.loading, isReady)
		c.updateRoutes(nil)
	}
}

// takeReports updates the rates that placement knows.
func (c *cell) takeReports() {
	k := &c.control
	rates := make([]float64, len(c.asked))
	for m, n := range c.asked {
		rates[m] = float64(n) / c.cfg.ReportEvery.Seconds() * k.errors[m]
	}
	clear(c.asked)
	if k.silent {
		return
	}
	if k.late = append(k.late, rates); len(k.late) <= c.cfg.ReportDelay {
		return
	}
	for m := range k.models {
		k.models[m].Rate, k.models[m].Reported = k.late[0][m], c.now
		k.models[m].Asked = k.models[m].Asked || k.late[0][m] > 0
	}
	k.late = k.late[1:]
}

// updateRoutes updates the copies that are active for the proxies. nodes may be nil for the reports
// of now.
func (c *cell) updateRoutes(nodes []placement.Node) {
	if c.control.allEqual {
		c.routeToAll()
		return
	}
	if nodes == nil {
		nodes = c.reports()
	}
	at := make([]map[int32]*copyOf, len(c.nodes))
	for i, n := range c.nodes {
		at[i] = make(map[int32]*copyOf, len(n.copies))
		for _, to := range n.copies {
			at[i][to.model] = to
		}
	}
	for _, r := range placement.Routes(c.control.plan, nodes) {
		m := c.control.byName[r.Model]
		to := route{home: -1}
		for _, name := range r.Active {
			to.active = append(to.active, at[c.control.index[name]][m])
		}
		for _, name := range r.Spare {
			to.spare = append(to.spare, at[c.control.index[name]][m])
		}
		if r.Home != "" {
			to.home = c.control.index[r.Home]
		}
		c.routes[m] = to
	}
}

// loadOnDemand makes the home of a model load it. The request waits for that.
func (c *cell) loadOnDemand(m int32) *copyOf {
	home := c.routes[m].home
	if home < 0 || c.nodes[home].dead {
		return nil
	}
	var to *copyOf
	if i := slices.IndexFunc(c.nodes[home].copies, func(to *copyOf) bool { return to.model == m }); i >= 0 {
		to = c.nodes[home].copies[i] // it is loading
	} else {
		c.figures.cold(c.now)
		to = c.addCopy(m, home, c.now+c.cfg.Models[m].LoadTime)
	}
	c.routes[m] = route{active: []*copyOf{to}, home: -1}
	return to
}

// unbatchedUse is the share of the time for which a copy may be busy with batches of one.
const unbatchedUse = 0.5

// spread places models for a balancer that uses all copies: as many as the rate needs without
// batches, but at least those of the plan and at most one for each node of a zone. The
// device time of a request is that of a batch of one, and goes to the least busy node of each
// zone in turn.
func (c *cell) spread() {
	zones := map[string][]int32{}
	names := []string{}
	for i, n := range c.nodes {
		if zones[n.zone] == nil {
			names = append(names, n.zone)
		}
		zones[n.zone] = append(zones[n.zone], int32(i))
	}
	copies, share, order := make([]int, len(c.cfg.Models)), make([]float64, len(c.cfg.Models)), make([]int, len(c.cfg.Models))
	for m := range c.cfg.Models {
		need := c.control.models[m].Rate * c.cfg.Models[m].Curve.Takes(1).Seconds()
		planned := c.control.plan.Find(c.cfg.Models[m].Name)
		copies[m] = max(len(planned.Copies), min(int(math.Ceil(need/unbatchedUse)), len(c.nodes)/len(names)))
		share[m], order[m] = need/float64(max(1, copies[m])), m
	}
	slices.SortStableFunc(order, func(x, y int) int { return cmp.Compare(share[y], share[x]) })
	busy := make([]float64, len(c.nodes))
	for _, m := range order {
		used := map[int32]bool{}
		for i := range copies[m] {
			best := int32(-1)
			for _, n := range zones[names[(m+i)%len(names)]] {
				if !used[n] && (best < 0 || busy[n] < busy[best]) {
					best = n
				}
			}
			if best < 0 {
				continue
			}
			used[best] = true
			busy[best] += share[m]
			c.addCopy(int32(m), best, 0)
		}
	}
}

// routeToAll makes all copies active.
func (c *cell) routeToAll() {
	for m := range c.routes {
		c.routes[m] = route{home: -1}
	}
	// Starting at another node for each model, so that not all have their first copy on the first.
	for i := range c.nodes {
		for _, to := range c.nodes[i].copies {
			c.routes[to.model].active = append(c.routes[to.model].active, to)
		}
	}
	for m := range c.routes {
		if all := c.routes[m].active; len(all) > 0 {
			first := m % len(all)
			c.routes[m].active = append(slices.Clone(all[first:]), all[:first]...)
		}
	}
}

// dropDead removes the copies of dead nodes from the routes.
func (c *cell) dropDead() {
	for m := range c.routes {
		c.routes[m].active = slices.DeleteFunc(c.routes[m].active, func(to *copyOf) bool { return c.nodes[to.node].dead })
	}
}
