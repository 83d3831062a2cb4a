package cell

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/shoal-serving/shoal/internal/device"
	"github.com/shoal-serving/shoal/internal/node"
	"github.com/shoal-serving/shoal/internal/placement"
)

const (
	planEvery   = time.Second            // between plans, however many nodes report
	replanEvery = 10 * time.Second       // between plans if nothing is reported; also the time that a rate counts once
	routeEvery  = 50 * time.Millisecond  // between changes of routes
	stepEvery   = 250 * time.Millisecond // between orders
	settleFor   = 10 * time.Second       // the first plan waits this long for nodes that have not answered
	goneAfter   = 3 * time.Second        // a node is gone this long after the first poll that failed; a silent one after 5 to 10 s
	retryAfter  = 30 * time.Second       // before a failed order is repeated
	avoidFor    = 10 * time.Minute       // other nodes are preferred to one that could not load a model
	reflectFor  = 10 * time.Second       // a page must show what was ordered within this time
	keepFor     = time.Minute            // nothing is unloaded this long after a start without a plan
	leaveFor    = time.Second            // a copy is unloaded this long after it has left the routes
	forgetAfter = 24 * time.Hour         // what was learned of a model goes this long after it was last wanted or on a page
)

// An Event is what a [Core] reacts to: one of the following types.
type Event interface{ event() }

type (
	// Configured says what is wanted now.
	Configured struct{ Wanted Wanted }
	// Reported is a node's page; nil if it has not changed since the last one.
	Reported struct {
		Node string
		Page *node.Page
	}
	// Unreachable says that a node did not answer.
	Unreachable struct{ Node, Reason string }
	// Carried says what became of an order.
	Carried struct {
		Order    Order
		Outdated bool   // the node has seen a higher epoch
		Untried  bool   // no load that failed: it was not sent, the connection broke, or the node did not accept it
		Failed   string // why it was not carried out; empty if it was
	}
	// Followed is the state of the cell that a follower copies.
	Followed struct{ State State }
	// Started starts a rollout that [Core.PrepareRollout] returned.
	Started struct{ Rollout Rollout }
	// Stopped ends a rollout: the old version gets all requests.
	Stopped struct{ Model, Reason string }
	// Measured are the figures of a model's versions on a node; none if it did not answer.
	Measured struct {
		Node, Model string
		Versions    []node.Figures
	}
	// Tick says that it is the time that the last step asked for.
	Tick struct{}
)

func (Configured) event()  {}
func (Reported) event()    {}
func (Unreachable) event() {}
func (Carried) event()     {}
func (Followed) event()    {}
func (Started) event()     {}
func (Stopped) event()     {}
func (Measured) event()    {}
func (Tick) event()        {}

// Actions are what the caller of a step must do.
type Actions struct {
	Orders  []Order
	Routes  []Route  // that changed; without active nodes if there is none to send requests to
	Removed []string // models that have no route any more
	Measure []Measure
	Poll    []Node // all nodes to ask for pages; nil if they have not changed
	Save    *State // to keep on disk; nil if it has not changed
	Fence   bool   // it must be on disk before orders are sent, because of their epoch
	Log     []string
	Next    Time // when to step with Tick at the latest; 0 means never
}

// A Measure asks for the figures of a model's versions on a node, with [Measured].
type Measure struct {
	Node  Node
	Model string
}

// A Core decides for a cell. It has one caller at a time.
type Core struct {
	follow  bool
	now     Time
	began   Time // the first step
	wanted  Wanted
	nodes   map[string]*member
	learned map[string]Learned
	unused  map[string]Time // learned models that are neither wanted nor on a page, and since when
	plan    *placement.Plan
	planFor []placement.Model // that the plan was made for
	version uint64
	epoch   uint64
	fenced  uint64 // the last epoch that orders were sent with; 0 if none were

	numbered uint64            // the number of the last order
	sent     map[string]uint64 // orders by verb
	failures uint64            // of them

	superseded string // why it sends no orders any more

	configured Time // from when nodes are waited for: the first configuration, or the last step without an answer
	settled    bool // all nodes have answered, are gone, or had the time to
	keepUntil  Time // nothing is unloaded until then
	planDirty  bool
	stepDirty  bool
	cutOff     bool                // the last routes were those of a cell that is cut off
	routeAll   bool                // all routes must be found again
	routeDirty map[string]struct{} // or those of these models
	planned    Time
	routed     Time
	stepped    Time

	routes   map[string]Route
	rollouts map[string]*Rollout // by model
	leaving  map[target]Time     // copies that will be unloaded, and since when they get no requests
}

// A member is what is known of a wanted node.
type member struct {
	Node
	page     *node.Page
	answered Time // when its page was last seen, be it unchanged
	failing  Time // since when it does not answer; 0 if it does
	reason   string
	gone     bool
	hidden   bool                // its name has other addresses now; see keepHidden
	pending  map[string]*pending // by model
	avoided  map[string]Time     // by model that it could not load: until when other nodes are preferred
}

type target struct{ node, model string }

// pending is an order that a node's page does not show yet, or one that failed.
type pending struct {
	number  uint64 // of the order
	unload  bool
	carried bool   // the node has answered
	failed  string // with this error
	until   Time   // when it is forgotten
}

// Options of a [Core].
type Options struct {
	State  *State // that was on disk; nil if there was none
	Follow bool   // it plans nothing and orders nothing
}

// NewCore returns a core. Its epoch is higher than that of its state.
func NewCore(opts Options) *Core {
	c := &Core{follow: opts.Follow, nodes: map[string]*member{}, learned: map[string]Learned{}, routes: map[string]Route{}, routeDirty: map[string]struct{}{}, sent: map[string]uint64{}, rollouts: map[string]*Rollout{}, epoch: 1}
	if s := opts.State; s != nil {
		c.adopt(s)
		if !opts.Follow {
			c.epoch++
		}
	}
	return c
}

func (c *Core) adopt(s *State) {
	c.epoch, c.version, c.plan = s.Epoch, s.Version, s.Plan
	c.learned = map[string]Learned{}
	maps.Copy(c.learned, s.Learned)
	c.rollouts = make(map[string]*Rollout, len(s.Rollouts))
	for _, r := range s.Rollouts {
		r.init()
		c.rollouts[r.Model] = &r
	}
}

// Step reports an event to the core.
func (c *Core) Step(now Time, e Event) Actions {
	c.now = max(c.now, now)
	c.began = cmp.Or(c.began, c.now)
	a := &Actions{}
	switch e := e.(type) {
	case Configured:
		c.configure(e.Wanted, a)
	case Reported:
		c.report(e, a)
	case Unreachable:
		if m := c.nodes[e.Node]; m != nil && m.failing == 0 {
			m.failing, m.reason = c.now, e.Reason
		}
	case Carried:
		c.carry(e, a)
	case Started:
		c.startRollout(e.Rollout, a)
	case Stopped:
		if r := c.rollouts[e.Model]; r != nil && r.State != RolloutStopped {
			c.stopRollout(r, e.Reason, a)
		}
	case Measured:
		c.measure(e)
	case Followed:
		if c.follow && (c.plan == nil || e.State.Version != c.version || e.State.Epoch != c.epoch) {
			c.adopt(&e.State)
			c.routeAll = true
			a.Save = c.state()
		}
	}
	c.expire(a)
	c.dropHidden(a)
	c.settle()
	if c.planDue() <= c.now {
		c.replan(a)
	}
	c.advance(a)
	if c.routesDue() <= c.now {
		c.reroute(a)
	}
	if c.stepDirty && c.orders() && c.stepped+stepEvery <= c.now {
		c.order(a)
	}
	a.Next = c.next()
	return *a
}

func (c *Core) configure(w Wanted, a *Actions) {
	c.wanted = Wanted{Nodes: slices.Clone(w.Nodes), Models: slices.Clone(w.Models), Quotas: w.Quotas}
	c.wanted.sort()
	c.configured = cmp.Or(c.configured, c.now)
	kept := make(map[string]*member, len(w.Nodes))
	for _, n := range w.Nodes {
		m := cmp.Or(c.nodes[n.Name], &member{pending: map[string]*pending{}, avoided: map[string]Time{}})
		m.Node, m.hidden, kept[n.Name] = n, false, m
	}
	c.keepHidden(kept, a)
	c.nodes = kept
	a.Poll = c.polled()
	c.forgetRemoved()
	c.reconcileRollouts(a)
	c.planDirty, c.routeAll = true, true
}

// keepHidden keeps the nodes that were found by a name which other nodes still have: an answer may
// lack addresses of nodes that are well. The nodes of a name that is not wanted any more, and those
// that an operator has named, are not kept.
func (c *Core) keepHidden(kept map[string]*member, a *Actions) {
	names := map[string]bool{"": false}
	for _, n := range c.wanted.Nodes {
		names[n.DNS] = n.DNS != ""
	}
	for _, name := range slices.Sorted(maps.Keys(c.nodes)) {
		m := c.nodes[name]
		if kept[name] != nil || m.page == nil || !names[m.DNS] {
			continue
		}
		if !m.hidden {
			a.Log = append(a.Log, fmt.Sprintf("%s does not have the address of node %s any more, which stays while it answers", m.DNS, name))
		}
		m.hidden, kept[name] = true, m
		c.wanted.Nodes = append(c.wanted.Nodes, m.Node)
	}
	c.wanted.sort()
}

// dropHidden drops nodes that their name does not have and that do not answer either. Until the plan
// has decided that no mass failure is the reason, they count as nodes that vanished, unless they said
// that they would leave.
func (c *Core) dropHidden(a *Actions) {
	for name, m := range c.nodes {
		if !m.hidden || !m.gone || !m.page.Draining && c.plan != nil && slices.Contains(c.plan.Nodes, name) {
			continue
		}
		delete(c.nodes, name)
		c.wanted.Nodes = slices.DeleteFunc(slices.Clone(c.wanted.Nodes), func(n Node) bool { return n.Name == name })
		c.forgetRemoved()
		c.planDirty, c.routeAll, a.Poll = true, true, c.polled()
	}
}

// polled returns the nodes to ask for pages.
func (c *Core) polled() []Node {
	return slices.DeleteFunc(slices.Clone(c.wanted.Nodes), func(n Node) bool { return c.lost(c.nodes[n.Name]) })
}

// lost reports whether a node does not answer and its name does not have it: another cell's node may
// answer at its address by now. A follower goes by the plan of its cell, which may reach the node.
func (c *Core) lost(m *member) bool { return m.hidden && m.gone && !c.follow }

// forgetRemoved has the plan forget nodes that are not wanted any more: they have not vanished.
func (c *Core) forgetRemoved() {
	if c.plan != nil {
		p := *c.plan
		p.Nodes = slices.DeleteFunc(slices.Clone(p.Nodes), func(name string) bool { return c.nodes[name] == nil })
		c.plan = &p
	}
}

func (c *Core) report(e Reported, a *Actions) {
	m := c.nodes[e.Node]
	if m == nil || c.lost(m) {
		return
	}
	if m.gone {
		a.Log = append(a.Log, fmt.Sprintf("node %s answers again", m.Name))
		m.gone, c.planDirty = false, true
		c.touch(m.page, nil)
	}
	m.failing, m.reason, m.answered = 0, "", c.now
	if e.Page == nil {
		return
	}
	c.compareEpoch(m, e.Page.Epoch, a)
	c.touch(m.page, e.Page)
	m.page, c.planDirty = e.Page, true
	for i := range e.Page.Models {
		c.learn(m.Name, &e.Page.Models[i])
		if e.Page.Models[i].State == ready {
			delete(m.avoided, e.Page.Models[i].Name)
		}
	}
	maps.DeleteFunc(m.pending, func(_ string, p *pending) bool { return p.carried && p.failed == "" })
}

// touch takes note of the models whose versions or states differ between two pages of a node.
// Rates change no route, and no step before the next plan.
func (c *Core) touch(old, page *node.Page) {
	states := map[[2]string]string{}
	if old != nil {
		for i := range old.Models {
			states[[2]string{old.Models[i].Name, old.Models[i].Version}] = old.Models[i].State
		}
	}
	if page != nil {
		for i := range page.Models {
			at := [2]string{page.Models[i].Name, page.Models[i].Version}
			if old != nil && old.Draining == page.Draining && states[at] == page.Models[i].State {
				delete(states, at)
			} else {
				states[at] = ""
			}
		}
	}
	for at := range states {
		c.routeDirty[at[0]] = struct{}{}
	}
	if len(states) > 0 || old == nil || page == nil || old.Draining != page.Draining {
		c.routeDirty[""], c.stepDirty = struct{}{}, true
	}
}

// compareEpoch considers the highest epoch that a node has seen. If it rises above that of this
// cell's orders, another cell sends orders. What a node had before its first page to this process
// may be of a cell that it once belonged to: then this one goes on with a higher epoch, as a cell
// does that has sent nothing yet.
func (c *Core) compareEpoch(m *member, seen uint64, a *Actions) {
	first := m.page == nil
	switch {
	case c.follow || c.superseded != "":
	case c.fenced != 0 && !first && seen > c.fenced && seen > m.page.Epoch:
		c.supersede(fmt.Sprintf("node %s has orders of epoch %d, and this cell has epoch %d", m.Name, seen, c.epoch), a)
	case seen >= c.epoch && (first || c.fenced == 0):
		c.epoch = seen + 1
		if c.fenced != 0 {
			a.Log = append(a.Log, fmt.Sprintf("node %s has orders of epoch %d, of another cell or an earlier one; this one goes on with epoch %d", m.Name, seen, c.epoch))
		}
	}
}

func (c *Core) supersede(reason string, a *Actions) {
	if c.superseded != "" {
		return
	}
	c.superseded = reason
	c.leave(nil)
	a.Log = append(a.Log, "another cell has taken over: "+reason+"; this one sends no orders until it is started again")
	for _, model := range slices.Sorted(maps.Keys(c.rollouts)) { // this one does not compare versions any more
		if r := c.rollouts[model]; r.State == RolloutWaiting || r.State == RolloutRunning {
			c.stopRollout(r, "another cell has taken over", a)
		}
	}
}

// learn takes note of what a node reports about a model. If its home loads it, a client has asked
// for it: that request counts when it is answered.
func (c *Core) learn(at string, m *node.Model) {
	l, p := c.learned[m.Name], c.plan.Find(m.Name)
	l.Asked = l.Asked || m.Requests > 0 || m.State == loading && p != nil && p.Home == at
	if m.State == ready {
		l.Digest = cmp.Or(m.Digest, l.Digest)
		l.Objective, l.Efficient = cmp.Or(m.Objective, l.Objective), cmp.Or(m.Efficient, l.Efficient)
		if len(m.Curve) > 0 {
			l.Curve.Table = nil
			for _, p := range m.Curve {
				l.Curve.Table = append(l.Curve.Table, device.Point(p))
			}
		}
	}
	c.learned[m.Name] = l
}

func (c *Core) carry(e Carried, a *Actions) {
	m, model := c.nodes[e.Order.Node.Name], e.Order.Model
	if e.Outdated && e.Order.Epoch == c.fenced { // it was not this cell with a later order
		c.supersede(fmt.Sprintf("node %s refused an order of epoch %d", e.Order.Node.Name, e.Order.Epoch), a)
	}
	tried := !e.Outdated && !e.Untried // otherwise it says nothing of the node
	if r := c.rollouts[model]; r != nil && tried && !e.Order.Unload {
		r.loaded[e.Order.Node.Name] = c.now
	}
	if m == nil || m.pending[model] == nil || m.pending[model].number != e.Order.Number {
		return // the order was forgotten when its node was gone, and there may be a new one
	}
	p := m.pending[model]
	p.carried, p.failed, p.until = true, e.Failed, c.now+reflectFor
	c.routeDirty[model], c.stepDirty = struct{}{}, true
	switch {
	case e.Failed != "":
		p.until = c.now + retryAfter
		c.failures++
		if tried && !p.unload {
			m.avoided[model], c.planDirty = c.now+avoidFor, true
		}
		a.Log = append(a.Log, fmt.Sprintf("%s %s on %s failed: %s", e.Order.Verb(), model, m.Name, e.Failed))
	case m.page != nil && holds(m.page, model) != e.Order.Unload:
		delete(m.pending, model) // the page came first
	}
}

// expire forgets orders and nodes whose time has passed.
func (c *Core) expire(a *Actions) {
	for _, m := range c.nodes {
		for model, p := range m.pending {
			if p.carried && p.until <= c.now {
				delete(m.pending, model)
				c.routeDirty[model], c.stepDirty = struct{}{}, true
				c.planDirty = c.planDirty || p.failed != "" // before it is repeated, another node may have the turn
			}
		}
		maps.DeleteFunc(m.avoided, func(_ string, until Time) bool { return until <= c.now })
		if m.failing != 0 && !m.gone && m.failing+goneAfter <= c.now {
			m.gone, c.planDirty = true, true
			c.touch(m.page, nil)
			clear(m.pending)
			clear(m.avoided)
			a.Poll = c.polled()
			a.Log = append(a.Log, fmt.Sprintf("node %s is gone: %s", m.Name, m.reason))
		}
	}
	slices.Sort(a.Log)
}

// settle decides when the first plan and the first routes can be made: without them Envoys keep
// what they have, and with too few nodes they would lose it.
func (c *Core) settle() {
	waits, answered := false, len(c.nodes) == 0
	for _, m := range c.nodes {
		waits, answered = waits || m.page == nil && (!m.gone || c.now < c.configured+goneAfter), answered || m.page != nil
	}
	if c.configured != 0 && !answered {
		c.configured = c.now // the others are waited for from the first answer on
	}
	c.settled = c.settled || c.configured != 0 && answered && (!waits || c.configured+settleFor <= c.now)
}

// planDue returns when the next plan is due.
func (c *Core) planDue() Time {
	switch {
	case c.follow || !c.settled:
		return never
	case c.planned == 0:
		return c.now
	case c.planDirty:
		return c.planned + planEvery
	}
	return c.planned + replanEvery
}

func (c *Core) replan(a *Actions) {
	if c.plan == nil {
		c.keepUntil = c.now + keepFor
		c.keepHeld()
	}
	c.forgetUnused()
	previous, first := c.plan, c.planned == 0
	c.planFor = c.models()
	c.plan = placement.Config{Quotas: c.wanted.Quotas}.Plan(previous, c.placed(false, nil), c.planFor, c.now)
	c.planned, c.planDirty, c.stepDirty = c.now, false, true
	if c.plan.Frozen != "" && (previous == nil || previous.Frozen == "") {
		a.Log = append(a.Log, c.plan.Frozen)
	}
	if c.moved(previous) {
		c.version++
		first = true
	}
	if first {
		a.Save = c.state()
	}
}

// keepHeld counts models that nodes hold as asked for: without a plan nothing says that they
// are not.
func (c *Core) keepHeld() {
	for _, m := range c.nodes {
		for i := range m.models() {
			l := c.learned[m.page.Models[i].Name]
			l.Asked = l.Asked || m.page.Models[i].State == ready
			c.learned[m.page.Models[i].Name] = l
		}
	}
}

// forgetUnused forgets models whose names are not used any more: those of a cell may change each day.
// A file may lack models for a while.
func (c *Core) forgetUnused() {
	if len(c.learned) <= len(c.wanted.Models) {
		c.unused = nil
		return
	}
	unused := map[string]Time{}
	for name := range c.learned {
		unused[name] = cmp.Or(c.unused[name], c.now)
	}
	for i := range c.wanted.Models {
		delete(unused, c.wanted.Models[i].Name)
	}
	for _, m := range c.nodes {
		for i := range m.models() {
			delete(unused, m.page.Models[i].Name)
		}
	}
	for name, since := range unused {
		if since+forgetAfter <= c.now {
			delete(c.learned, name)
		}
	}
	c.unused = unused
}

// moved notes the models that have other places than before, and reports whether anything has.
func (c *Core) moved(previous *placement.Plan) bool {
	same := func(x, y placement.Placement) bool { return x.Model == y.Model }
	moved := previous == nil || previous.Frozen != c.plan.Frozen || !slices.Equal(previous.Nodes, c.plan.Nodes) || !slices.EqualFunc(previous.Models, c.plan.Models, same)
	c.routeAll = c.routeAll || moved
	for i := range c.plan.Models {
		p := &c.plan.Models[i]
		if old := previous.Find(p.Model); old == nil || old.Home != p.Home || old.Active != p.Active || !slices.Equal(old.Copies, p.Copies) {
			c.routeDirty[p.Model] = struct{}{}
			moved = true
		}
	}
	return moved
}

func (c *Core) state() *State {
	s := &State{Epoch: c.epoch, Version: c.version, Plan: c.plan, Learned: maps.Clone(c.learned)}
	for _, name := range slices.Sorted(maps.Keys(c.rollouts)) {
		s.Rollouts = append(s.Rollouts, *c.rollouts[name])
	}
	return s
}

// orders reports whether the core may send orders.
func (c *Core) orders() bool { return !c.follow && c.superseded == "" && c.planned != 0 }

// order sends the next orders of the plan. A copy leaves the routes before it is unloaded: a request
// that is on its way to it would load it again.
func (c *Core) order(a *Actions) {
	moves := placement.Moves(min(c.now-c.stepped, planEvery))
	c.stepped, c.stepDirty = c.now, false
	leaving := map[target]Time{}
	for _, s := range placement.Steps(c.plan, c.placed(false, nil), c.planFor) {
		at := target{s.Node, s.Model}
		since, left := c.leaving[at]
		switch {
		case s.Unload && c.now < c.keepUntil:
			c.stepDirty = true
		case s.Unload && left && since+leaveFor <= c.now:
			c.send(at, true, a)
		case s.Unload && left:
			leaving[at] = since
		case c.nodes[s.Node].pending[s.Model] != nil: // it waits for the end of that order, and is no move yet
		case moves == 0:
			c.stepDirty = true
		case s.Unload:
			moves--
			leaving[at] = c.now
		default:
			moves--
			c.send(at, false, a)
		}
	}
	c.leave(leaving)
	for _, at := range c.lacking() {
		c.send(at, false, a)
	}
}

// leave sets the copies that get no requests because they will be unloaded.
func (c *Core) leave(leaving map[target]Time) {
	for _, all := range []map[target]Time{c.leaving, leaving} {
		for at := range all {
			if c.leaving[at] != leaving[at] {
				c.routeDirty[at.model] = struct{}{}
			}
		}
	}
	c.leaving, c.stepDirty = leaving, c.stepDirty || len(leaving) > 0
}

// send orders something, unless there is an order that the node's page does not show yet.
func (c *Core) send(at target, unload bool, a *Actions) {
	m := c.nodes[at.node]
	if m.pending[at.model] != nil {
		return
	}
	if c.fenced != c.epoch {
		c.fenced, a.Fence, a.Save = c.epoch, true, c.state()
	}
	c.numbered++
	m.pending[at.model] = &pending{number: c.numbered, unload: unload}
	c.routeDirty[at.model] = struct{}{} // what is being unloaded gets no requests
	o := Order{Number: c.numbered, Node: m.Node, Model: at.model, Unload: unload, Epoch: c.epoch}
	c.sent[o.Verb()]++
	a.Orders = append(a.Orders, o)
	a.Log = append(a.Log, fmt.Sprintf("%s %s on %s", o.Verb(), at.model, at.node))
}

// next returns when the core must be stepped again.
func (c *Core) next() Time {
	at := min(c.planDue(), c.routesDue())
	for _, due := range []Time{c.configured + goneAfter, c.configured + settleFor} {
		if !c.settled && due > c.now {
			at = min(at, due)
		}
	}
	if c.stepDirty && c.orders() {
		at = min(at, c.stepped+stepEvery)
	}
	for _, m := range c.nodes {
		for _, p := range m.pending {
			if p.carried {
				at = min(at, p.until)
			}
		}
		if m.failing != 0 && !m.gone {
			at = min(at, m.failing+goneAfter)
		}
	}
	for _, r := range c.rollouts {
		if r.State == RolloutRunning && c.orders() {
			at = min(at, r.measured+measureEvery)
		}
		for _, loaded := range r.loaded {
			for _, due := range []Time{loaded + stepEvery, loaded + reflectFor} {
				if r.State == RolloutWaiting && due > c.now {
					at = min(at, due)
				}
			}
		}
	}
	if at == never {
		return 0
	}
	return max(at, c.now+1)
}

// routesDue returns when the next change of routes is due.
func (c *Core) routesDue() Time {
	if c.plan == nil || !c.settled || !c.routeAll && len(c.routeDirty) == 0 {
		return never
	}
	return c.routed + routeEvery
}

// reroute finds the routes that have changed, of all models or of those that were noted.
func (c *Core) reroute(a *Actions) {
	only, cutOff := c.routeDirty, c.isCutOff()
	if c.routeAll || cutOff != c.cutOff {
		only, c.cutOff = nil, cutOff
	}
	next := c.currentRoutes(only)
	for _, model := range slices.Sorted(maps.Keys(next)) {
		r := next[model]
		if old, known := c.routes[model]; !known || !old.equal(&r) {
			a.Routes = append(a.Routes, r)
		}
	}
	for model := range c.routes {
		_, concerned := only[model]
		if _, kept := next[model]; !kept && (concerned || only == nil) {
			a.Removed = append(a.Removed, model)
			delete(c.routes, model)
		}
	}
	slices.Sort(a.Removed)
	maps.Copy(c.routes, next)
	c.routed, c.routeAll = c.now, false
	clear(c.routeDirty)
}
