package cell

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/node"
)

// start is when the tests begin, in 2026.
const start = 1_800_000_000 * time.Second

// frozen is how long a plan stays if many nodes vanish.
const frozen = 10 * time.Minute

// A world is a core with nodes that carry out its orders when the test says so.
type world struct {
	t        *testing.T
	core     *Core
	now      Time
	next     Time
	pages    map[string]*node.Page
	orders   []Order
	measures []Measure
	polled   []Node
	routes   map[string]Route
	saved    *State
	log      []string
}

func newWorld(t *testing.T, opts Options, nodes ...string) *world {
	w := &world{t: t, core: NewCore(opts), now: start, pages: map[string]*node.Page{}, routes: map[string]Route{}}
	for i, name := range nodes {
		w.pages[name] = &node.Page{ID: name, Zone: fmt.Sprint("zone-", i%3), Memory: 100, Ready: true}
	}
	return w
}

// settledWorld returns a cell of nodes a, b and c that have two copies of model m.
func settledWorld(t *testing.T) *world {
	w := newWorld(t, Options{}, "a", "b", "c")
	w.configure(Model{Name: "m", Copies: 2})
	w.reportAll()
	w.settle()
	return w
}

func (w *world) step(e Event) {
	a := w.core.Step(w.now, e)
	w.orders = append(w.orders, a.Orders...)
	w.measures = append(w.measures, a.Measure...)
	if a.Poll != nil {
		w.polled = a.Poll
	}
	for _, r := range a.Routes {
		w.routes[r.Model] = r
	}
	for _, m := range a.Removed {
		delete(w.routes, m)
	}
	if a.Save != nil {
		w.saved = a.Save
	}
	w.log = append(w.log, a.Log...)
	w.next = a.Next
	w.checkRoutes()
}

// checkRoutes checks that routes that were not found again are as if they had been.
func (w *world) checkRoutes() {
	if w.core.routesDue() != never || w.core.plan == nil || !w.core.settled {
		return
	}
	all := w.core.currentRoutes(nil)
	for model, want := range all {
		if got := w.core.routes[model]; !got.equal(&want) {
			w.t.Errorf("the route of %q is %+v, want %+v", model, got, want)
		}
	}
	for model := range w.core.routes {
		if _, wanted := all[model]; !wanted {
			w.t.Errorf("%q has a route, and should have none", model)
		}
	}
}

// pass lets time pass, and steps the core whenever it asked for it.
func (w *world) pass(d time.Duration) {
	for until := w.now + d; ; {
		if w.next == 0 || w.next > until {
			w.now = until
			return
		}
		w.now = w.next
		w.step(Tick{})
	}
}

func (w *world) configure(models ...Model) {
	wanted := Wanted{Models: models}
	for name := range w.pages {
		wanted.Nodes = append(wanted.Nodes, Node{Name: name, HTTP: name + ":8000", GRPC: name + ":8001"})
	}
	w.step(Configured{wanted})
}

func (w *world) report(name string) {
	page := *w.pages[name]
	page.Models = slices.Clone(page.Models)
	w.step(Reported{name, &page})
}

func (w *world) reportAll() {
	for name := range w.pages {
		w.report(name)
	}
}

func (w *world) hold(name, model string, rate float64) {
	p := w.pages[name]
	p.Models = append(p.Models, node.Model{Name: model, Version: "1", State: ready, Bytes: 10, Rate: rate, Requests: uint64(rate)})
	slices.SortFunc(p.Models, func(a, b node.Model) int { return strings.Compare(a.Name, b.Name) })
}

// obey carries out all orders.
func (w *world) obey() {
	orders := w.orders
	w.orders = nil
	for _, o := range orders {
		p := w.pages[o.Node.Name]
		p.Epoch = max(p.Epoch, o.Epoch)
		if o.Unload {
			p.Models = slices.DeleteFunc(p.Models, func(m node.Model) bool { return m.Name == o.Model })
		} else {
			w.hold(o.Node.Name, o.Model, 0)
		}
		w.report(o.Node.Name)
		w.step(Carried{Order: o})
	}
}

// settle lets the core and its nodes work until nothing is ordered for some seconds.
func (w *world) settle() {
	for range 20 {
		w.pass(2 * time.Second)
		if len(w.orders) == 0 {
			return
		}
		w.obey()
	}
	w.t.Fatalf("the cell does not come to rest: %v", w.log)
}

func (w *world) active(model string) (names []string) {
	for _, n := range w.routes[model].Active {
		names = append(names, n.Name)
	}
	return names
}

func (w *world) ordered() (all []string) {
	for _, o := range w.orders {
		all = append(all, fmt.Sprintf("%s %s on %s", o.Verb(), o.Model, o.Node.Name))
	}
	slices.Sort(all)
	return all
}

func TestWantedCopiesAreLoadedAndRouted(t *testing.T) {
	w := newWorld(t, Options{}, "a", "b", "c")
	w.configure(Model{Name: "m", Copies: 2}, Model{Name: "cold"})
	w.reportAll()
	w.settle()
	if r := w.routes["m"]; len(r.Active) != 2 || len(r.Spare) != 1 || r.Home {
		t.Errorf("m: %+v", r)
	}
	if r := w.routes["cold"]; len(r.Active) != 1 || !r.Home {
		t.Errorf("cold: %+v", r)
	}
	if r := w.routes[""]; len(r.Active) != 3 {
		t.Errorf("requests for no model: %+v", r)
	}
}

func TestTheFirstPlanWaitsForNodes(t *testing.T) {
	w := newWorld(t, Options{}, "a", "b")
	w.configure(Model{Name: "m", Copies: 1})
	w.report("a")
	w.pass(settleFor - 1)
	if len(w.orders) != 0 {
		t.Fatalf("orders before node b had time to answer: %v", w.ordered())
	}
	w.pass(1)
	if got := w.ordered(); !slices.Equal(got, []string{"load m on a"}) {
		t.Errorf("ordered %v", got)
	}
}

func TestALostNodeLeavesRoutesAfterThreeSeconds(t *testing.T) {
	w := settledWorld(t)
	lost := w.active("m")[0]
	w.step(Unreachable{lost, "connection refused"})
	w.pass(goneAfter - 1)
	if !slices.Contains(w.active("m"), lost) {
		t.Error("the node left before its time")
	}
	w.pass(1)
	w.pass(routeEvery)
	if got := w.active("m"); slices.Contains(got, lost) || len(got) != 2 {
		t.Errorf("m is active on %v, and %s is lost", got, lost)
	}
	w.report(lost)
	w.pass(time.Second)
	if !slices.ContainsFunc(w.log, func(l string) bool { return strings.Contains(l, "answers again") }) {
		t.Errorf("log: %v", w.log)
	}
}

func TestANodeThatAnswersAgainInTimeStays(t *testing.T) {
	w := settledWorld(t)
	before := w.active("m")
	w.step(Unreachable{before[0], "timeout"})
	w.pass(goneAfter - 1)
	w.step(Reported{before[0], nil})
	w.pass(10 * time.Second)
	if got := w.active("m"); !slices.Equal(got, before) {
		t.Errorf("active on %v, want %v", got, before)
	}
}

func TestWhenMostNodesVanishRoutesStay(t *testing.T) {
	w := newWorld(t, Options{}, "a", "b", "c", "d")
	w.configure(Model{Name: "m", Copies: 3})
	w.reportAll()
	w.settle()
	before := w.active("m")
	for _, name := range before {
		w.step(Unreachable{name, "timeout"})
	}
	w.pass(time.Minute)
	if got := w.active("m"); !slices.Equal(got, before) {
		t.Errorf("active on %v, want %v", got, before)
	}
	if len(w.orders) != 0 {
		t.Errorf("ordered %v while the plan is frozen", w.ordered())
	}
	if d := w.core.Describe(); d.Frozen == "" {
		t.Error("the description does not say that the plan is frozen")
	}
}

func TestADrainingNodeGetsRequestsOnlyForItsLastCopies(t *testing.T) {
	w := newWorld(t, Options{}, "a", "b")
	w.pages["a"].Zone, w.pages["b"].Zone = "", "" // one zone: no spares
	w.configure(Model{Name: "m", Copies: 2}, Model{Name: "only", Copies: 1})
	w.reportAll()
	w.settle()
	leaving := w.active("only")[0]
	w.pages[leaving].Draining = true
	w.report(leaving)
	w.pass(routeEvery)
	if got := w.active("m"); len(got) != 1 || got[0] == leaving {
		t.Errorf("m is active on %v", got)
	}
	if got := w.active("only"); !slices.Equal(got, []string{leaving}) {
		t.Errorf("only is active on %v", got)
	}
	w.settle()
	if got := w.active("only"); len(got) != 1 || got[0] == leaving {
		t.Errorf("only is active on %v after it moved", got)
	}
}

func TestWithoutAPlanNothingIsUnloaded(t *testing.T) {
	w := newWorld(t, Options{}, "a", "b", "c")
	w.hold("a", "m", 5)
	w.hold("b", "m", 5)
	w.hold("c", "idle", 0)
	w.pages["a"].Epoch = 7
	w.configure(Model{Name: "m"}, Model{Name: "idle"})
	w.reportAll()
	w.pass(2 * time.Second)
	if got := w.active("m"); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("m is active on %v", got)
	}
	if got := w.active("idle"); !slices.Equal(got, []string{"c"}) {
		t.Errorf("idle is active on %v", got)
	}
	for range 60 {
		w.pass(time.Second)
		for _, o := range w.orders {
			if o.Unload {
				t.Fatalf("ordered %v", w.ordered())
			}
		}
		w.obey()
	}
	if w.core.epoch != 8 {
		t.Errorf("epoch %d, want one above that of the nodes, 8", w.core.epoch)
	}
}

func TestACellThatLostItsPlanHasTheSameOneAgain(t *testing.T) {
	models := []Model{{Name: "busy"}, {Name: "configured", Copies: 2}, {Name: "cold"}}
	w := newWorld(t, Options{}, "a", "b", "c", "d", "e", "f")
	w.hold("a", "busy", 10)
	w.configure(models...)
	w.reportAll()
	w.pass(30 * time.Second) // a second active copy needs two reports
	w.settle()
	lost := w.active("busy")[0] // its copy moves, and comes back as another one's spare
	page := w.pages[lost]
	w.step(Unreachable{lost, "timeout"})
	w.pass(goneAfter)
	w.settle()
	w.pages[lost] = &node.Page{ID: lost, Zone: page.Zone, Memory: page.Memory, Ready: true}
	w.report(lost)
	w.settle()
	for name, p := range w.pages { // requests go where the routes say
		for i := range p.Models {
			p.Models[i].Rate = 0
			if p.Models[i].Name == "busy" && slices.Contains(w.active("busy"), name) {
				p.Models[i].Rate = 5
			}
		}
	}
	w.reportAll()
	w.settle()

	again := newWorld(t, Options{})
	again.pages, again.now = w.pages, w.now+time.Minute
	again.configure(models...)
	again.reportAll()
	again.pass(30 * time.Second)
	if len(again.orders) != 0 {
		t.Errorf("ordered %v", again.ordered())
	}
	for _, m := range models {
		if got, want := again.routes[m.Name], w.routes[m.Name]; !got.equal(&want) {
			t.Errorf("%s: route %+v, and before %+v", m.Name, got, want)
		}
	}
}

func TestWithoutAPlanTheCopiesThatGetRequestsAreActive(t *testing.T) {
	for _, active := range [][]string{{"a", "b"}, {"a", "c"}, {"b", "c"}} {
		w := newWorld(t, Options{}, "a", "b", "c")
		for name := range w.pages {
			w.hold(name, "m", 0)
			if slices.Contains(active, name) {
				w.pages[name].Models[0].Rate = 5
			}
		}
		w.configure(Model{Name: "m"})
		w.reportAll()
		w.pass(30 * time.Second)
		if got := w.active("m"); !slices.Equal(got, active) {
			t.Errorf("m is active on %v, and requests went to %v", got, active)
		}
	}
}

func TestAPlanSurvivesARestart(t *testing.T) {
	w := newWorld(t, Options{}, "a", "b", "c")
	w.configure(Model{Name: "m", Copies: 2}, Model{Name: "n", Copies: 1})
	w.reportAll()
	w.settle()
	text, err := w.saved.Encode()
	if err != nil {
		t.Fatal(err)
	}
	state, err := DecodeState(text)
	if err != nil {
		t.Fatal(err)
	}
	again := newWorld(t, Options{State: state})
	again.pages, again.now = w.pages, w.now+time.Minute
	again.configure(Model{Name: "m", Copies: 2}, Model{Name: "n", Copies: 1})
	again.reportAll()
	again.pass(5 * time.Minute)
	if len(again.orders) != 0 {
		t.Errorf("ordered %v", again.ordered())
	}
	for _, model := range []string{"m", "n"} {
		if got, want := again.active(model), w.active(model); !slices.Equal(got, want) {
			t.Errorf("%s is active on %v, and was on %v", model, got, want)
		}
	}
	if before, now := w.saved.Epoch, again.saved.Epoch; now != before+1 {
		t.Errorf("epoch %d after %d", now, before)
	}
}

func TestADamagedStateIsNotRead(t *testing.T) {
	text, err := (&State{Epoch: 3}).Encode()
	if err != nil {
		t.Fatal(err)
	}
	damaged := strings.Replace(string(text), `"epoch":3`, `"epoch":4`, 1)
	if _, err := DecodeState([]byte(damaged)); err == nil || !strings.Contains(err.Error(), "damaged") {
		t.Errorf("error %v", err)
	}
	if _, err := DecodeState([]byte(`{"format":2}`)); err == nil || !strings.Contains(err.Error(), "format 2") {
		t.Errorf("error %v", err)
	}
}

func TestACellThatWasReplacedSendsNoOrders(t *testing.T) {
	for name, learn := range map[string]func(w *world){
		"by a refusal": func(w *world) {
			w.step(Carried{Order: w.orders[0], Outdated: true, Failed: "409"})
		},
		"by a page": func(w *world) {
			w.pages["a"].Epoch = 9
			w.report("a")
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, Options{}, "a", "b")
			w.configure(Model{Name: "m", Copies: 1})
			w.reportAll()
			w.pass(time.Second)
			if len(w.orders) == 0 {
				t.Fatal("nothing was ordered")
			}
			learn(w)
			w.orders = nil
			w.configure(Model{Name: "m", Copies: 2}, Model{Name: "n", Copies: 2})
			w.pass(time.Hour)
			if len(w.orders) != 0 {
				t.Errorf("ordered %v", w.ordered())
			}
			if w.core.Describe().Superseded == "" {
				t.Error("the description does not say so")
			}
		})
	}
}

func TestAFailedLoadIsTriedAgainLater(t *testing.T) {
	w := newWorld(t, Options{}, "a")
	w.configure(Model{Name: "m", Copies: 1})
	w.reportAll()
	w.pass(time.Second)
	first := w.orders[0]
	w.orders = nil
	w.step(Carried{Order: first, Failed: "out of memory"})
	w.pass(retryAfter - 1)
	if len(w.orders) != 0 {
		t.Fatalf("ordered %v too early", w.ordered())
	}
	if why := strings.Join(w.core.Describe().Models[0].Why, "\n"); !strings.Contains(why, "out of memory") {
		t.Errorf("why: %s", why)
	}
	w.pass(stepEvery + 1)
	if got := w.ordered(); !slices.Equal(got, []string{"load m on a"}) {
		t.Errorf("ordered %v", got)
	}
}

func TestTheAnswerToAnOrderFromBeforeItsNodeWasGoneSaysNothingOfTheNextOne(t *testing.T) {
	for what, late := range map[string]Carried{"it was carried out": {}, "it failed": {Failed: "connection reset by peer", Untried: true}} {
		w := newWorld(t, Options{}, "a")
		w.configure(Model{Name: "m", Copies: 1})
		w.reportAll()
		w.pass(time.Second)
		w.step(Unreachable{"a", "connection refused"})
		w.pass(goneAfter)
		w.report("a")
		w.pass(2 * time.Second)
		if got := w.ordered(); !slices.Equal(got, []string{"load m on a", "load m on a"}) {
			t.Fatalf("%s: ordered %v, want the load once more after the node was gone", what, got)
		}
		late.Order = w.orders[0]
		w.step(late)
		w.pass(2 * retryAfter)
		if got := w.ordered(); len(got) != 2 {
			t.Errorf("%s: ordered %v while the second load is under way", what, got)
		}
		if failures := w.core.failures; failures != 0 {
			t.Errorf("%s: %d orders failed, want none", what, failures)
		}
		w.orders = w.orders[1:]
		w.obey()
		w.pass(routeEvery)
		if got := w.active("m"); !slices.Equal(got, []string{"a"}) {
			t.Errorf("%s: m is active on %v", what, got)
		}
	}
}

func TestAModelThatIsNotWantedIsUnloadedAndLosesItsRoute(t *testing.T) {
	w := newWorld(t, Options{}, "a", "b")
	w.configure(Model{Name: "m", Copies: 1}, Model{Name: "n", Copies: 1})
	w.reportAll()
	w.settle()
	w.pass(keepFor)
	w.configure(Model{Name: "m", Copies: 1})
	w.pass(2 * time.Second)
	if got := w.ordered(); !slices.Equal(got, []string{"unload n on a", "unload n on b"}) { // the active copy and its spare
		t.Errorf("ordered %v", got)
	}
	if _, routed := w.routes["n"]; routed {
		t.Error("n has a route")
	}
}

// A file may lack models for a while, and nodes may have what no file has.
func TestModelsThatAreNotUsedForADayAreForgotten(t *testing.T) {
	w := newWorld(t, Options{}, "a", "b")
	m, back := Model{Name: "m", Copies: 1}, Model{Name: "back", Copies: 1}
	w.configure(m, back, Model{Name: "old", Copies: 1}, Model{Name: "held", Copies: 1})
	w.reportAll()
	w.settle()
	learned := func() []string { return slices.Sorted(maps.Keys(w.core.learned)) }
	all := []string{"back", "held", "m", "old"}
	w.configure(m)
	w.pass(keepFor + planEvery)
	for _, name := range []string{"a", "b"} {
		p := w.pages[name]
		p.Models = slices.DeleteFunc(p.Models, func(x node.Model) bool { return x.Name == "back" || x.Name == "old" })
		w.report(name)
	}
	w.pass(forgetAfter - time.Minute)
	if got := learned(); !slices.Equal(got, all) {
		t.Fatalf("before a day has passed: %v", got)
	}
	w.configure(m, back)
	w.pass(planEvery)
	w.configure(m)
	w.pass(time.Hour)
	if got := learned(); !slices.Equal(got, []string{"back", "held", "m"}) {
		t.Errorf("after a day: %v", got)
	}
	w.pass(forgetAfter)
	if got := learned(); !slices.Equal(got, []string{"held", "m"}) {
		t.Errorf("a day after another one was last wanted: %v", got)
	}
}

// No copy is unloaded, and nothing else changes, just after a plan was made.
func TestAModelWithoutCopiesLosesItsRouteWhenItIsNotWanted(t *testing.T) {
	w := settledWorld(t)
	m, cold := Model{Name: "m", Copies: 2}, Model{Name: "cold"}
	w.configure(m, cold)
	w.settle()
	if _, routed := w.routes["cold"]; !routed {
		t.Fatalf("%v", w.routes)
	}
	w.configure(m, cold, Model{Name: "other"})
	w.pass(0)
	w.configure(m, Model{Name: "other"})
	w.settle()
	if r, routed := w.routes["cold"]; routed {
		t.Errorf("%+v", r)
	}
}

func TestACopyThatIsBeingUnloadedGetsNoRequestsUnlessTheNodeRefuses(t *testing.T) {
	w := newWorld(t, Options{}, "a", "b")
	w.pages["a"].Zone, w.pages["b"].Zone = "", "" // one zone: no spares
	w.configure(Model{Name: "m", Copies: 2})
	w.reportAll()
	w.settle()
	w.configure(Model{Name: "m", Copies: 1})
	for len(w.orders) == 0 { // the second copy is lowered
		w.pass(time.Minute)
	}
	w.pass(routeEvery)
	o := w.orders[0]
	if r := w.routes["m"]; !o.Unload || len(r.Active) != 1 || len(r.Spare) != 0 || r.Active[0] == o.Node {
		t.Errorf("while %v is carried out, the route is %+v", w.ordered(), r)
	}
	w.step(Carried{Order: o, Failed: "it is busy"})
	w.pass(routeEvery)
	if r := w.routes["m"]; len(r.Active)+len(r.Spare) != 2 {
		t.Errorf("after a refusal the route is %+v", r)
	}
}

func TestAFollowerRoutesAndOrdersNothing(t *testing.T) {
	w := settledWorld(t)
	f := newWorld(t, Options{Follow: true})
	f.pages, f.now = w.pages, w.now
	f.configure(Model{Name: "m", Copies: 2}, Model{Name: "more", Copies: 3})
	f.reportAll()
	f.step(Followed{*w.saved})
	f.pass(time.Hour)
	if got, want := f.active("m"), w.active("m"); !slices.Equal(got, want) {
		t.Errorf("the follower has m on %v, and the cell on %v", got, want)
	}
	if len(f.orders) != 0 {
		t.Errorf("a follower ordered %v", f.ordered())
	}
}

func TestManyReportsMakeFewPlans(t *testing.T) {
	w := settledWorld(t)
	plans, last := 0, w.core.planned
	for i := range 1000 {
		w.pages["a"].Models[0].Rate = float64(i)
		w.report("a")
		w.pass(10 * time.Millisecond)
		if w.core.planned != last {
			plans, last = plans+1, w.core.planned
		}
	}
	if plans < 9 || plans > 11 {
		t.Errorf("%d plans in ten seconds", plans)
	}
}

func TestAPreviewChangesNothing(t *testing.T) {
	w := settledWorld(t)
	wanted := w.core.wanted
	wanted.Models = []Model{{Name: "n", Copies: 1}}
	got := w.core.Preview(wanted)
	loads, unloads := 0, 0
	for _, c := range got {
		switch {
		case c.Model == "n" && c.Change == "load":
			loads++
		case c.Model == "m" && c.Change == "unload":
			unloads++
		default:
			t.Errorf("unexpected %v", c)
		}
	}
	if loads < 1 || unloads != 3 {
		t.Errorf("%v", got)
	}
	w.pass(time.Minute)
	if len(w.orders) != 0 || len(w.active("m")) != 2 {
		t.Errorf("the preview had an effect: %v", w.ordered())
	}
}

// A model that cannot be loaded must not take the place of others.
func TestModelsThatCannotBeLoadedDoNotHoldUpOthers(t *testing.T) {
	w := newWorld(t, Options{}, "a")
	w.configure(Model{Name: "bad1", Copies: 1}, Model{Name: "bad2", Copies: 1}, Model{Name: "good", Copies: 1})
	w.reportAll()
	for range 10 {
		w.pass(time.Second)
		orders := w.orders
		w.orders = nil
		for _, o := range orders {
			if o.Model == "good" {
				return
			}
			w.step(Carried{Order: o, Failed: "no such model"})
		}
	}
	t.Errorf("the good model was not loaded in ten seconds: %v", w.log)
}

// A network that comes up late must not make the cell plan without nodes.
func TestNothingIsPlannedBeforeANodeHasAnswered(t *testing.T) {
	w := newWorld(t, Options{}, "a", "b")
	w.hold("a", "m", 10)
	w.hold("b", "m", 10)
	w.configure(Model{Name: "m"})
	for name := range w.pages {
		w.step(Unreachable{name, "no route to host"})
	}
	w.pass(time.Minute)
	if len(w.routes) > 0 || w.saved != nil {
		t.Fatalf("routes %v without nodes", w.routes)
	}
	w.reportAll()
	w.pass(2 * time.Second)
	if got := w.active("m"); len(got) != 2 {
		t.Errorf("m is active on %v, want both nodes that hold it", got)
	}
}

func TestANodeThatMissesTheFirstPollIsWaitedFor(t *testing.T) {
	w := newWorld(t, Options{}, "a", "b")
	w.hold("a", "m", 10)
	w.hold("b", "m", 10)
	w.configure(Model{Name: "m"})
	w.step(Unreachable{"b", "timeout"})
	w.report("a")
	w.pass(time.Second)
	if len(w.routes) > 0 {
		t.Errorf("routes %v before b is gone", w.routes)
	}
	w.report("b")
	w.pass(time.Second)
	if got := w.active("m"); len(got) != 2 {
		t.Errorf("m is active on %v, want both", got)
	}
}

func TestFollowersLearnThatAPlanIsFrozen(t *testing.T) {
	w := settledWorld(t)
	before := w.saved.Version
	for _, name := range []string{"a", "b"} {
		w.step(Unreachable{name, "timeout"})
	}
	w.pass(10 * time.Second)
	if w.saved.Version == before || w.saved.Plan.Frozen == "" {
		t.Errorf("plan %d after %d, frozen %q", w.saved.Version, before, w.saved.Plan.Frozen)
	}
}

// What Envoys have is better than what a cell can say that reaches no node.
func TestARestartDuringAPartitionChangesNoRoutes(t *testing.T) {
	w := settledWorld(t)
	again := newWorld(t, Options{State: w.saved})
	again.pages, again.now = w.pages, w.now+time.Minute
	again.configure(Model{Name: "m", Copies: 2})
	for name := range again.pages {
		again.step(Unreachable{name, "no route to host"})
	}
	again.pass(time.Minute)
	if len(again.routes) > 0 {
		t.Errorf("routes %v without an answer", again.routes)
	}
	again.reportAll()
	again.settle()
	if got, want := again.active("m"), w.active("m"); !slices.Equal(got, want) {
		t.Errorf("m is active on %v, and was on %v", got, want)
	}
}

// A page shows the load before the first request is answered.
func TestALoadOnDemandIsNotCancelled(t *testing.T) {
	for name, states := range map[string][]string{"slow": {loading, ready}, "fast": {ready}} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, Options{}, "a", "b", "c")
			w.configure(Model{Name: "cold"})
			w.reportAll()
			w.pass(keepFor)
			home := w.active("cold")[0]
			for _, state := range states {
				w.pages[home].Models = []node.Model{{Name: "cold", Version: "1", State: state}}
				w.report(home)
				w.pass(time.Minute)
				if len(w.orders) > 0 {
					t.Fatalf("while it is %s: %v", state, w.ordered())
				}
			}
			w.pages[home].Models[0].Requests = 1
			w.report(home)
			w.pass(time.Minute)
			if r := w.routes["cold"]; len(w.orders) > 0 || r.Home || !slices.Equal(w.active("cold"), []string{home}) {
				t.Errorf("ordered %v, and the route is %+v", w.ordered(), r)
			}
		})
	}
}

// Another node may become the home while a client waits.
func TestALoadOnDemandStaysWhereItBegan(t *testing.T) {
	w := newWorld(t, Options{}, "b", "c", "d", "e")
	w.configure(Model{Name: "cold"})
	w.reportAll()
	w.pass(keepFor)
	home := w.active("cold")[0]
	w.pages[home].Models = []node.Model{{Name: "cold", Version: "1", State: loading}}
	w.report(home)
	w.pass(time.Minute)
	for _, name := range []string{"f", "g", "h", "i", "j", "k"} {
		w.pages[name] = &node.Page{ID: name, Memory: 100, Ready: true}
	}
	w.configure(Model{Name: "cold"})
	w.reportAll()
	w.pass(time.Minute)
	if got := w.active("cold"); len(w.orders) > 0 || !slices.Equal(got, []string{home}) {
		t.Errorf("ordered %v, and the route is to %v, and was to %s", w.ordered(), got, home)
	}
}

func TestACopyIsAsLargeAsItsVersionsWhereItIsLargest(t *testing.T) {
	for _, last := range []string{"a", "b"} {
		w := newWorld(t, Options{}, "a", "b")
		w.hold("a", "m", 1)
		w.hold("b", "m", 1)
		w.holdVersion("b", ready, "")
		w.configure(Model{Name: "m", Copies: 2})
		w.reportAll()
		w.pass(2 * time.Second)
		w.report(last)
		w.pass(2 * time.Second)
		if got := w.core.planFor[0].Bytes; got != 20 || w.core.learned["m"].Bytes != 20 {
			t.Errorf("%s reports last: %d bytes are planned, %d are learned, want 20", last, got, w.core.learned["m"].Bytes)
		}
	}
}

// The nodes answer the cell, which therefore does not freeze its plan.
// Otherwise further models would be loaded into the same memory.
func TestACopyThatLoadsIsAsLargeAsOthers(t *testing.T) {
	w := settledWorld(t)
	w.pages["a"].Models = []node.Model{{Name: "m", Version: "1", State: loading}} // it was restarted
	w.report("a")
	for _, n := range w.core.placed(false, nil) {
		if len(n.Copies) != 1 || n.Copies[0].Bytes != 10 {
			t.Errorf("%s has %+v", n.Name, n.Copies)
		}
	}
}

func TestAFollowerThatLosesItsWayToTheNodesKeepsTheirRoutes(t *testing.T) {
	w := settledWorld(t)
	f := newWorld(t, Options{Follow: true})
	f.pages, f.now = w.pages, w.now
	f.configure(Model{Name: "m", Copies: 2})
	f.reportAll()
	f.step(Followed{*w.saved})
	f.pass(time.Second)
	for _, name := range []string{"a", "b"} {
		f.step(Unreachable{name, "no route to host"})
		f.pass(5 * time.Second) // polls notice them one by one
	}
	f.pass(time.Hour)
	for _, model := range []string{"", "m"} {
		if got, want := f.routes[model], w.routes[model]; !got.equal(&want) {
			t.Errorf("%q: route %+v, want %+v", model, got, want)
		}
	}
	f.reportAll()
	f.step(Unreachable{"a", "connection refused"})
	f.pass(5 * time.Second)
	if got := f.active("m"); slices.Contains(got, "a") {
		t.Errorf("m is active on %v, and a is lost", got)
	}
}

func TestARestartWhileAThirdOfTheNodesIsUnreachableKeepsTheirRoutes(t *testing.T) {
	w := newWorld(t, Options{}, "a", "b", "c", "d", "e", "f")
	models := []Model{{Name: "m", Copies: 3, Split: []Share{{"1", 100}}}, {Name: "n", Copies: 2}, {Name: "cold"}}
	w.configure(models...)
	w.reportAll()
	w.settle()
	again := newWorld(t, Options{State: w.saved})
	again.pages, again.now = w.pages, w.now+time.Minute
	again.configure(models...)
	lost := w.active("m")[:2]
	for name := range w.pages {
		if slices.Contains(lost, name) {
			again.step(Unreachable{name, "no route to host"})
		} else {
			again.report(name)
		}
	}
	again.pass(frozen / 2)
	for model, want := range w.routes {
		if got := again.routes[model]; !got.equal(&want) {
			t.Errorf("%q: route %+v, and before %+v", model, got, want)
		}
	}
	again.pass(frozen)
	if got := again.active("m"); slices.Contains(got, lost[0]) {
		t.Errorf("after ten minutes m is active on %v, and %v are lost", got, lost)
	}
}

// fail answers all orders with an error, and returns the nodes that they were for.
func (w *world) fail() (nodes []string) {
	orders := w.orders
	w.orders = nil
	for _, o := range orders {
		nodes = append(nodes, o.Node.Name)
		w.step(Carried{Order: o, Failed: "no space left on device"})
	}
	return nodes
}

func TestACopyMovesAwayFromANodeThatCannotLoadIt(t *testing.T) {
	w := newWorld(t, Options{}, "a", "b")
	w.pages["a"].Zone, w.pages["b"].Zone = "", ""
	w.configure(Model{Name: "m", Copies: 1})
	w.reportAll()
	w.pass(time.Second)
	full := w.fail()[0]
	w.pass(2 * time.Second)
	if got := w.ordered(); len(got) != 1 || strings.HasSuffix(got[0], full) {
		t.Fatalf("after the load failed on %s: %v, want a load on the other node", full, got)
	}
	w.obey()
	w.pass(routeEvery)
	before := w.active("m")
	w.pass(2 * avoidFor)
	if got := w.active("m"); len(w.orders) != 0 || len(got) != 1 || got[0] == full || !slices.Equal(got, before) {
		t.Errorf("it comes back: %v, and m is active on %v", w.ordered(), got)
	}
}

// It is the model, and not the nodes: it must not visit them all the time.
func TestAModelThatNoNodeCanLoadIsTriedAsSlowlyAsBefore(t *testing.T) {
	names := []string{"a", "b", "c", "d", "e", "f", "g", "h"}
	w := newWorld(t, Options{}, names...)
	w.configure(Model{Name: "m", Copies: 1})
	w.reportAll()
	tries := map[string]int{}
	try := func(d time.Duration) (all int) {
		for range d / time.Second {
			w.pass(time.Second)
			for _, name := range w.fail() {
				tries[name]++
				all++
			}
		}
		return all
	}
	try(5 * time.Minute)
	if len(tries) != len(names) {
		t.Errorf("it was tried on %v, want all nodes", tries)
	}
	version := w.core.version
	if n := try(10 * time.Minute); n > 60 {
		t.Errorf("it was tried %d times in ten minutes", n)
	}
	if n := w.core.version - version; n > 20 {
		t.Errorf("%d plans in ten minutes", n)
	}
}

func TestTheHomeOfAModelIsANodeThatCanLoadIt(t *testing.T) {
	w := newWorld(t, Options{}, "a", "b")
	w.configure(Model{Name: "cold"})
	w.reportAll()
	w.pass(time.Second)
	home := w.active("cold")[0]
	w.pages[home].Models = []node.Model{{Name: "cold", Version: "1", State: unavailable, Reason: "no space left on device"}}
	w.report(home)
	w.pass(2 * time.Second)
	other := w.active("cold")[0]
	if other == home || !w.routes["cold"].Home {
		t.Fatalf("the home is %s, which cannot load it", other)
	}
	w.pages[other].Models = []node.Model{{Name: "cold", Version: "1", State: unavailable, Reason: "it is damaged"}}
	w.report(other)
	w.pass(2 * time.Second)
	if got := w.active("cold")[0]; got != home {
		t.Errorf("no node can load it, and its home is %s, want the first by rank, %s", got, home)
	}
}

// found configures nodes that a name has.
func (w *world) found(dns string, nodes []string, models ...Model) {
	wanted := Wanted{Models: models}
	for _, name := range nodes {
		wanted.Nodes = append(wanted.Nodes, Node{Name: name, HTTP: name + ":8000", DNS: dns})
	}
	w.step(Configured{wanted})
}

func (w *world) polls() (names []string) {
	for _, n := range w.polled {
		names = append(names, n.Name)
	}
	return names
}

// foundWorld returns a cell of four nodes that were found by a name, of which only one is left in it.
func foundWorld(t *testing.T) (w *world, m Model) {
	w, m = newWorld(t, Options{}, "a", "b", "c", "d"), Model{Name: "m", Copies: 3}
	w.found("nodes.example.org", []string{"a", "b", "c", "d"}, m)
	w.reportAll()
	w.settle()
	before := w.routes["m"]
	w.found("nodes.example.org", []string{"d"}, m)
	w.pass(time.Minute)
	if got := w.routes["m"]; !got.equal(&before) || len(w.orders) != 0 {
		t.Fatalf("route %+v, and before %+v; ordered %v", got, before, w.ordered())
	}
	if got := w.polls(); len(got) != 4 {
		t.Fatalf("%v are polled", got)
	}
	return w, m
}

func TestNodesThatLeaveDNSAndAnswerKeepTheirRoutes(t *testing.T) {
	w, m := foundWorld(t)
	w.step(Unreachable{"a", "connection refused"})
	w.pass(time.Minute)
	if got := w.polls(); !slices.Equal(got, []string{"b", "c", "d"}) || slices.Contains(w.core.plan.Nodes, "a") {
		t.Errorf("%v are polled after a does not answer either", got)
	}
	w.found("nodes.example.org", []string{"a", "b", "c", "d"}, m)
	w.report("a")
	w.pass(time.Second)
	if got := w.polls(); len(got) != 4 || w.core.nodes["b"].hidden {
		t.Errorf("%v are polled after the name has all nodes again", got)
	}
}

func TestNodesThatLeaveDNSAndVanishTogetherFreezeThePlan(t *testing.T) {
	w, _ := foundWorld(t)
	before := w.routes["m"]
	for _, name := range []string{"a", "b", "c"} {
		w.step(Unreachable{name, "timeout"})
	}
	w.pass(time.Minute)
	if got := w.routes["m"]; !got.equal(&before) || w.core.plan.Frozen == "" || len(w.orders) != 0 {
		t.Errorf("route %+v, and before %+v; ordered %v", got, before, w.ordered())
	}
	w.pass(frozen)
	if got := len(w.core.nodes); got != 1 {
		t.Errorf("after ten minutes the cell has %d nodes, want d", got)
	}
}

func TestAnAddressThatLeftDNSAndDoesNotAnswerMayBeOfAnotherCellLater(t *testing.T) {
	w, m := foundWorld(t)
	before := w.routes["m"]
	for _, name := range []string{"a", "b", "c"} {
		w.step(Unreachable{name, "connection refused"})
	}
	w.pass(5 * time.Second)
	if got := w.polls(); !slices.Equal(got, []string{"d"}) {
		t.Errorf("%v are polled while the plan is frozen", got)
	}
	w.step(Reported{"a", &node.Page{Memory: 100, Ready: true, Epoch: 9, Models: []node.Model{{Name: "theirs", Version: "1", State: ready}}}}) // it was on its way
	w.pass(time.Minute)
	if got := w.routes["m"]; w.core.superseded != "" || !w.core.nodes["a"].gone || !got.equal(&before) || len(w.orders) != 0 {
		t.Errorf("superseded %q, route %+v, and before %+v; ordered %v", w.core.superseded, got, before, w.ordered())
	}
	w.found("nodes.example.org", []string{"a", "b", "c", "d"}, m)
	w.report("a")
	if got := w.polls(); len(got) != 4 || w.core.nodes["a"].gone {
		t.Errorf("%v are polled after the name has all nodes again", got)
	}
}

func TestAFollowerAsksNodesThatLeftDNSAgainIfItsCellHasThem(t *testing.T) {
	w, m := foundWorld(t)
	f := newWorld(t, Options{Follow: true})
	f.pages, f.now = w.pages, w.now
	f.found("nodes.example.org", []string{"a", "b", "c", "d"}, m)
	f.reportAll()
	f.step(Followed{*w.saved})
	f.found("nodes.example.org", []string{"d"}, m)
	f.step(Unreachable{"b", "no route to host"})
	f.pass(5 * time.Second)
	if got := f.polls(); len(got) != 4 {
		t.Errorf("%v are polled", got)
	}
	f.report("b")
	f.pass(time.Second)
	if got, want := f.active("m"), w.active("m"); !slices.Equal(got, want) {
		t.Errorf("m is active on %v, want %v", got, want)
	}
}

// They said that they would leave: as when a service is made smaller.
func TestNodesThatDrainAndLeaveDNSHaveNotVanished(t *testing.T) {
	w, _ := foundWorld(t)
	for _, name := range []string{"a", "b", "c"} {
		w.pages[name].Draining = true
		w.report(name)
		w.step(Unreachable{name, "connection refused"})
	}
	w.pass(5 * time.Second)
	if got := w.polls(); !slices.Equal(got, []string{"d"}) || w.core.plan.Frozen != "" {
		t.Errorf("%v are polled, frozen %q", got, w.core.plan.Frozen)
	}
}

func TestNodesThatAnOperatorRemovesAreRemoved(t *testing.T) {
	w, m := foundWorld(t)
	w.found("others.example.org", []string{"x"}, m)
	if got := w.polls(); !slices.Equal(got, []string{"x"}) {
		t.Errorf("%v are polled after another name took the place of theirs", got)
	}
}

func TestANodeWithAnEpochOfAnotherCellJoins(t *testing.T) {
	for name, c := range map[string]struct {
		epoch, want uint64
	}{"a higher one": {40, 41}, "the same": {1, 2}, "none": {0, 1}} {
		t.Run(name, func(t *testing.T) {
			w := settledWorld(t)
			w.pages["d"] = &node.Page{ID: "d", Zone: "zone-0", Memory: 100, Ready: true, Epoch: c.epoch}
			w.configure(Model{Name: "m", Copies: 4})
			w.report("d")
			w.report("d")
			w.pass(2 * time.Second)
			if len(w.orders) == 0 || w.core.superseded != "" {
				t.Fatalf("ordered %v; superseded: %q", w.ordered(), w.core.superseded)
			}
			if got := w.orders[0].Epoch; got != c.want || w.saved.Epoch != c.want {
				t.Errorf("an order of epoch %d, and %d on disk, want %d", got, w.saved.Epoch, c.want)
			}
			w.settle()
			w.pages["d"].Epoch++
			w.report("d")
			if w.core.superseded == "" {
				t.Error("an epoch that rises later is that of a cell which has taken over")
			}
		})
	}
}

// A node refuses what was on its way when an order with a higher epoch came.
func TestAnOrderOfAnEarlierEpochThatIsRefusedIsNoTakeover(t *testing.T) {
	w := newWorld(t, Options{}, "a", "b")
	w.configure(Model{Name: "m", Copies: 2})
	w.reportAll()
	w.pass(time.Second)
	early := w.orders[0]
	w.orders = nil
	w.pages["c"] = &node.Page{ID: "c", Memory: 100, Ready: true, Epoch: 40}
	w.configure(Model{Name: "m", Copies: 2}, Model{Name: "n", Copies: 3})
	w.report("c")
	w.pass(2 * time.Second)
	late := w.orders[len(w.orders)-1]
	if late.Epoch != 41 {
		t.Fatalf("ordered %v, the last with epoch %d", w.ordered(), late.Epoch)
	}
	w.step(Carried{Order: early, Outdated: true, Failed: "409"})
	if w.core.superseded != "" {
		t.Fatalf("superseded: %s", w.core.superseded)
	}
	w.step(Carried{Order: late, Outdated: true, Failed: "409"})
	if w.core.superseded == "" {
		t.Error("another cell has sent the node an epoch above 41")
	}
}

// A cell that was cut off hears of the other one first from a node that is new to it.
func TestACellThatWasCutOffIsReplacedWhicheverNodeAnswersFirst(t *testing.T) {
	for _, order := range [][]string{{"new", "a", "b"}, {"a", "new", "b"}, {"a", "b", "new"}} {
		w := newWorld(t, Options{}, "a", "b", "new")
		w.configure(Model{Name: "m", Copies: 2})
		w.step(Unreachable{"new", "timeout"})
		w.report("a")
		w.report("b")
		w.pass(settleFor)
		w.settle()
		for _, name := range []string{"a", "b"} {
			w.step(Unreachable{name, "timeout"})
		}
		w.pass(time.Minute)
		for _, name := range order { // the other cell has given orders to all
			w.pages[name].Epoch = 2
			w.report(name)
			w.pass(50 * time.Millisecond)
		}
		w.orders = nil
		w.pass(time.Hour)
		if w.core.superseded == "" || len(w.orders) != 0 {
			t.Errorf("%v: superseded %q, ordered %v", order, w.core.superseded, w.ordered())
		}
	}
}

// It was not sent, or its connection broke, or a later order of this cell overtook it.
func TestAnOrderThatTheNodeDidNotTryToCarryOutSaysNothingOfTheNode(t *testing.T) {
	for what, result := range map[string]Carried{
		"not answered": {Failed: "connection reset by peer", Untried: true},
		"overtaken":    {Failed: "409", Outdated: true},
	} {
		w := newWorld(t, Options{}, "a", "b")
		w.pages["a"].Zone, w.pages["b"].Zone = "", "" // one zone: no spares, and the other node has room
		w.configure(Model{Name: "m", Copies: 1})
		w.reportAll()
		w.pass(time.Second)
		first := w.orders[0]
		w.orders = nil
		w.core.fenced, w.core.epoch = 41, 41 // as if a node had joined that needs a higher epoch
		result.Order = first
		w.step(result)
		w.pass(retryAfter - 1)
		if len(w.orders) != 0 {
			t.Fatalf("%s: ordered %v", what, w.ordered())
		}
		w.pass(stepEvery)
		if len(w.orders) != 1 || w.orders[0].Node != first.Node {
			t.Errorf("%s: ordered %v, want the same as before", what, w.ordered())
		}
	}
}

// leavingWorld returns a cell with two copies of m, of which one has just left the routes.
func leavingWorld(t *testing.T) (w *world, leaves string) {
	w = newWorld(t, Options{}, "a", "b")
	for _, name := range []string{"a", "b"} {
		w.pages[name].Zone = ""
		w.hold(name, "m", 0)
	}
	w.configure(Model{Name: "m", Copies: 1})
	w.reportAll()
	for range 20 * 60 * 20 {
		w.pass(routeEvery)
		if r := w.routes["m"]; len(r.Active)+len(r.Spare) == 1 && len(w.orders) == 0 {
			if r.Active[0].Name == "a" {
				return w, "b"
			}
			return w, "a"
		}
	}
	t.Fatalf("after twenty minutes the route is %+v, and ordered %v", w.routes["m"], w.ordered())
	return nil, ""
}

func TestACopyLeavesTheRoutesBeforeItIsUnloaded(t *testing.T) {
	w, leaves := leavingWorld(t)
	w.pass(leaveFor - 2*routeEvery)
	if len(w.orders) != 0 {
		t.Errorf("ordered %v while requests may be on their way", w.ordered())
	}
	w.pass(2 * routeEvery)
	if got := w.ordered(); !slices.Equal(got, []string{"unload m on " + leaves}) {
		t.Errorf("ordered %v", got)
	}
}

func TestACopyThatIsNeededAgainReturnsToTheRoutes(t *testing.T) {
	w, leaves := leavingWorld(t)
	other := w.active("m")[0]
	w.pages[other].Models = nil // its process was restarted
	w.report(other)
	w.pass(5 * time.Second)
	if got := w.active("m"); !slices.Equal(got, []string{leaves}) || slices.Contains(w.ordered(), "unload m on "+leaves) {
		t.Errorf("m is active on %v, and ordered %v", got, w.ordered())
	}
}

func TestTwoHundredMovesBeginInASecond(t *testing.T) {
	w := newWorld(t, Options{})
	for i := range 250 {
		w.pages[fmt.Sprint("n", i)] = &node.Page{Memory: 100, Ready: true}
	}
	w.configure(Model{Name: "l", Copies: 250}, Model{Name: "m", Copies: 250}, Model{Name: "n", Copies: 250}) // a node loads two at a time
	w.reportAll()
	for _, sent := range []int{200, 250, 300} {
		if left := len(w.core.Describe().Pending); len(w.orders) != sent || left != 500-sent {
			t.Errorf("%d orders were sent, and %d are left, want %d and %d", len(w.orders), left, sent, 500-sent)
		}
		w.pass(stepEvery)
	}
}

func TestALoadThatWaitsForAnUnloadTakesNoMoveFromOthers(t *testing.T) {
	w := newWorld(t, Options{})
	for i := range 250 {
		w.pages[fmt.Sprint("n", i)] = &node.Page{Memory: 100, Ready: true}
	}
	w.configure(Model{Name: "l", Copies: 250})
	w.reportAll()
	w.settle()
	w.pass(keepFor)
	w.configure()
	w.pass(5 * time.Second)
	if got := w.ordered(); len(got) != 250 || got[0] != "unload l on n0" {
		t.Fatalf("%d orders, want that all copies of l are unloaded: %v", len(got), got)
	}
	w.orders = nil
	w.configure(Model{Name: "l", Copies: 250}, Model{Name: "m", Copies: 250})
	if got := w.ordered(); len(got) != 200 || got[0] != "load m on n0" {
		t.Errorf("%d orders %v, want 200 loads of m while the unloads of l are under way", len(got), got)
	}
}

func TestFiguresOfACellThatReachesNoNode(t *testing.T) {
	w := settledWorld(t)
	for _, follow := range []bool{false, true} {
		again := newWorld(t, Options{State: w.saved, Follow: follow})
		again.pages, again.now = w.pages, w.now+time.Minute
		if f := again.core.Figures(again.now); f.PlanAge != 0 {
			t.Errorf("before the first step its plan is %v old", f.PlanAge)
		}
		again.configure(Model{Name: "m", Copies: 2})
		for name := range again.pages {
			again.step(Unreachable{name, "no route to host"})
		}
		again.pass(time.Minute)
		age := time.Minute
		if follow {
			age = 0
		}
		if f := again.core.Figures(again.now); f.Routed || f.PlanAge != age {
			t.Errorf("follower %v: ready %v, and its plan is %v old, want %v", follow, f.Routed, f.PlanAge, age)
		}
		again.reportAll()
		again.pass(2 * time.Second)
		if f := again.core.Figures(again.now); !f.Routed || f.PlanAge > 2*time.Second {
			t.Errorf("follower %v: with its nodes: %+v", follow, f)
		}
	}
}

func TestCopiesWithoutAPlaceAreCounted(t *testing.T) {
	w := newWorld(t, Options{}, "a", "b")
	for _, name := range []string{"a", "b"} {
		w.pages[name].Zone = ""
	}
	w.configure(Model{Name: "m", Copies: 3}, Model{Name: "cold"})
	w.reportAll()
	w.settle()
	if f := w.core.Figures(w.now); f.Copies != 2 || f.Missing != 0 || f.Unplaced != 1 {
		t.Errorf("%d copies, %d missing, %d without a place; want 2, 0 and 1", f.Copies, f.Missing, f.Unplaced)
	}
}
