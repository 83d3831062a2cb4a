package placement

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"
)

var cells = flag.Int("cells", 1000, "random cells in TestRandomCells")

// randomCell returns a small cell whose memory may be scarce.
func randomCell(chance *rand.Rand) (all []Node, models []Model) {
	for i := range 2 + chance.IntN(10) {
		all = append(all, Node{Name: fmt.Sprintf("n%02d", i), Zone: fmt.Sprint(chance.IntN(3)), Bytes: 20 + chance.Int64N(100), Speed: 1 + float64(chance.IntN(2))})
	}
	for i := range 1 + chance.IntN(12) {
		m := model(fmt.Sprintf("m%02d", i), 0)
		m.Bytes, m.Tenant = 1+chance.Int64N(30), fmt.Sprint(chance.IntN(3))
		m.Rate, m.Asked = randomRate(chance), chance.IntN(4) > 0
		models = append(models, m)
	}
	return all, models
}

func randomRate(chance *rand.Rand) float64 {
	switch chance.IntN(4) {
	case 0:
		return 0
	case 1:
		return chance.Float64() * 10
	}
	return chance.Float64() * 3000
}

// TestRandomCells runs cells with random loads, lost and draining nodes, slow loads and full
// memory, and checks after every step what must never happen.
func TestRandomCells(t *testing.T) {
	const parts = 2
	var seen [parts]struct{ events }
	t.Run("parts", func(t *testing.T) {
		for part := range parts {
			t.Run("", func(t *testing.T) {
				t.Parallel()
				for seed := part; seed < *cells; seed += parts {
					w := newRandomWorld(t, rand.New(rand.NewPCG(uint64(seed), 1)))
					for range 12 {
						w.change()
						w.round()
					}
					if t.Failed() {
						t.Fatalf("seed %d", seed)
					}
					seen[part].events.add(&w.events)
				}
			})
		}
	})
	all := seen[0].events
	all.add(&seen[1].events)
	t.Logf("%+v", all)
	if all.unloads == 0 || all.frozen == 0 || all.short == 0 || all.waits == 0 || all.rebuilt == 0 {
		t.Errorf("not everything happened: %+v", all)
	}
}

// events counts what happened, so that no check passes because nothing did.
type events struct{ steps, unloads, frozen, short, waits, rebuilt int }

func (e *events) add(o *events) {
	e.steps += o.steps
	e.unloads += o.unloads
	e.frozen += o.frozen
	e.short += o.short
	e.waits += o.waits
	e.rebuilt += o.rebuilt
}

type randomWorld struct {
	t      *testing.T
	chance *rand.Rand
	cfg    Config
	all    []Node
	lost   []Node
	models []Model
	plan   *Plan
	now    time.Duration

	events
}

func newRandomWorld(t *testing.T, chance *rand.Rand) *randomWorld {
	w := &randomWorld{t: t, chance: chance}
	w.all, w.models = randomCell(chance)
	if chance.IntN(3) == 0 {
		w.cfg.Quotas = map[string]Quota{"1": {Copies: 1 + chance.IntN(10), Bytes: chance.Int64N(200)}}
	}
	return w
}

// change changes rates and nodes at random.
func (w *randomWorld) change() {
	w.now += time.Duration(w.chance.Int64N(int64(4 * time.Minute)))
	for i := range w.models {
		if w.chance.IntN(3) == 0 {
			w.models[i].Rate = randomRate(w.chance)
			w.models[i].Asked = w.models[i].Asked || w.models[i].Rate > 0
		}
		if w.chance.IntN(12) == 0 {
			w.models[i].Bytes = 1 + w.chance.Int64N(30) // it was measured, or has another version
		}
		w.models[i].Reported = w.now
	}
	if w.chance.IntN(4) == 0 {
		w.all[w.chance.IntN(len(w.all))].Bytes = 20 + w.chance.Int64N(100)
	}
	w.fail()
	switch w.chance.IntN(8) {
	case 0:
		lose := 1 + w.chance.IntN(len(w.all))
		for range min(lose, len(w.all)-1) {
			i := w.chance.IntN(len(w.all))
			w.lost = append(w.lost, w.all[i])
			w.all = append(w.all[:i:i], w.all[i+1:]...)
		}
	case 1:
		for i := range w.lost {
			if w.chance.IntN(2) == 0 {
				w.lost[i].Copies = nil // it was restarted
			}
		}
		w.all, w.lost = byName(append(w.all, w.lost...), func(n *Node) string { return n.Name }), nil
	case 2:
		i := w.chance.IntN(len(w.all))
		w.all[i].Draining = !w.all[i].Draining
	}
}

// fail has nodes fail to load models at random, and forget that they did.
func (w *randomWorld) fail() {
	for i := range w.all {
		n := &w.all[i]
		if n.Failed = nil; w.chance.IntN(4) == 0 {
			n.Avoided = nil
		}
		if w.chance.IntN(4) > 0 {
			continue
		}
		for _, m := range w.models {
			if find(n.Copies, m.Name, func(l *Loaded) string { return l.Model }) == nil && !slices.Contains(n.Avoided, m.Name) && w.chance.IntN(4) == 0 {
				n.Avoided, n.Failed = append(n.Avoided, m.Name), append(n.Failed, m.Name)
			}
		}
	}
}

// round plans, and carries out the steps.
func (w *randomWorld) round() {
	known := 0
	if w.plan != nil {
		known = len(w.plan.Nodes)
	}
	before := w.plan
	w.plan = w.cfg.Plan(w.plan, w.all, w.models, w.now)
	again := w.cfg.Plan(w.plan, w.all, w.models, w.now)
	if !reflect.DeepEqual(again.Models, w.plan.Models) {
		w.t.Errorf("planning again moves models:\n%v\n%v", w.plan.Models, again.Models)
	}
	if w.plan.Frozen != "" {
		w.frozen++
		if !reflect.DeepEqual(before.Models, w.plan.Models) {
			w.t.Error("a frozen plan differs from the one before")
		}
	} else if known > 0 {
		w.checkVanished(known, before)
	}
	w.checkPlan()
	for range 6 {
		steps := Steps(w.plan, w.all, w.models)
		if w.plan.Frozen != "" && len(steps) > 0 {
			w.t.Error("a frozen plan has steps")
		}
		for _, s := range steps {
			w.apply(s)
		}
		for i := range w.all {
			for j := range w.all[i].Copies {
				c := &w.all[i].Copies[j]
				c.Ready = c.Ready || w.chance.IntN(3) > 0
			}
		}
	}
	if w.plan.Frozen == "" {
		w.checkLostPlan()
	}
}

// checkLostPlan checks that a plan that was lost is rebuilt from the nodes, if they hold what it
// has, and it has a place for everything.
func (w *randomWorld) checkLostPlan() {
	held := withRates(w.all, w.plan, w.models)
	for _, n := range held {
		for _, c := range n.Copies {
			if p := w.plan.Find(c.Model); p == nil || find(p.Copies, n.Name, func(c *Copy) string { return c.Node }) == nil {
				return // a copy is still to be unloaded
			}
		}
		if n.Draining {
			return
		}
	}
	for _, p := range w.plan.Models {
		if len(p.Copies) < p.Active+p.Spare || !w.holds(&p) {
			return
		}
	}
	w.rebuilt++
	next, again := w.cfg.Plan(w.plan, held, w.models, w.now), w.cfg.Plan(nil, held, w.models, w.now)
	for i := range again.Models {
		if got, want := text(&again.Models[i]), text(&next.Models[i]); got != want {
			w.t.Errorf("%s is at %q in the rebuilt plan, and at %q in the next one", again.Models[i].Model, got, want)
		}
	}
}

// holds reports whether all copies of a plan are ready.
func (w *randomWorld) holds(p *Placement) bool {
	for _, c := range p.Copies {
		if !slices.ContainsFunc(w.node(c.Node).Copies, func(l Loaded) bool { return l.Model == p.Model && l.Ready }) {
			return false
		}
	}
	return true
}

// checkVanished checks that a plan after the loss of a third of the nodes is frozen, unless
// they have been lost for long.
func (w *randomWorld) checkVanished(known int, before *Plan) {
	vanished := 0
	for _, name := range before.Nodes {
		if w.node(name) == nil {
			vanished++
		}
	}
	if vanished >= 2 && vanished*3 >= known && before.Frozen == "" {
		w.t.Errorf("%d of %d nodes vanished, and the plan is not frozen", vanished, known)
	}
}

func (w *randomWorld) node(name string) *Node {
	for i := range w.all {
		if w.all[i].Name == name {
			return &w.all[i]
		}
	}
	return nil
}

// checkPlan checks that no node is planned beyond its memory, and that no model has two
// copies on one node.
func (w *randomWorld) checkPlan() {
	if w.plan.Frozen != "" {
		return
	}
	used := map[string]int64{}
	for i, p := range w.plan.Models {
		m := &w.models[i]
		active := 0
		if n := w.node(p.Home); n != nil && slices.Contains(n.Avoided, p.Model) && slices.ContainsFunc(w.all, func(o Node) bool {
			return !o.Draining && o.Bytes >= m.Bytes && !slices.Contains(o.Avoided, p.Model)
		}) {
			w.t.Errorf("the home of %s is %s, which could not load it", p.Model, p.Home)
		}
		for j, c := range p.Copies {
			used[c.Node] += m.Bytes
			active += btoi(c.Active)
			if j > 0 && p.Copies[j-1].Node >= c.Node {
				w.t.Errorf("%s has two copies at one node: %s", p.Model, text(&w.plan.Models[i]))
			}
		}
		if active > p.Active || active < min(p.Active, len(p.Copies)) {
			w.t.Errorf("%s needs %d active copies: %s", p.Model, p.Active, text(&w.plan.Models[i]))
		}
		if len(p.Copies) < p.Active+p.Spare && !p.OverQuota {
			w.short++
		}
		if p.OverQuota && len(p.Copies) > 0 {
			w.t.Errorf("%s is over its tenant's quota, and has copies", p.Model)
		}
	}
	for name, bytes := range used {
		if n := w.node(name); n == nil || bytes > n.Bytes {
			w.t.Errorf("%d bytes are planned on node %s: %+v", bytes, name, n)
		}
	}
}

// apply carries out one step, and checks that it was allowed.
func (w *randomWorld) apply(s Step) {
	w.steps++
	n := w.node(s.Node)
	if !s.Unload {
		m := find(w.models, s.Model, func(m *Model) string { return m.Name })
		n.Avoided = slices.DeleteFunc(n.Avoided, func(name string) bool { return name == s.Model })
		n.Copies = append(n.Copies, Loaded{Model: s.Model, Bytes: m.Bytes})
		used, loading := int64(0), 0
		for _, c := range n.Copies {
			used += c.Bytes
			loading += btoi(!c.Ready)
		}
		if used > n.Bytes || loading > loadsPerNode {
			w.t.Errorf("%v: %d of %d bytes are used, %d models are loading", s, used, n.Bytes, loading)
		}
		return
	}
	w.unloads++
	wasReady := false
	for j, c := range n.Copies {
		if c.Model == s.Model {
			wasReady = c.Ready
			n.Copies = append(n.Copies[:j:j], n.Copies[j+1:]...)
			break
		}
	}
	p := w.plan.Find(s.Model)
	if p == nil || !p.InUse || p.OverQuota || !wasReady {
		return
	}
	for _, n := range w.all {
		for _, c := range n.Copies {
			if c.Model == s.Model && c.Ready {
				w.waits++
				return
			}
		}
	}
	w.t.Errorf("%v: it was the last ready copy of a model in use", s)
}
