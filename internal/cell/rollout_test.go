package cell

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/node"
)

const ms = time.Millisecond

// rolling returns a cell with model m on nodes a and b, whose version 1 gets all requests, and
// version 2 is loaded if the test says so.
func rolling(t *testing.T, loaded bool) *world {
	t.Helper()
	w := newWorld(t, Options{}, "a", "b")
	w.pages["a"].Zone, w.pages["b"].Zone = "", "" // one zone: no spares
	for _, name := range []string{"a", "b"} {
		w.hold(name, "m", 1)
		if loaded {
			w.holdVersion(name, ready, "")
		}
	}
	w.configure(Model{Name: "m", Copies: 2, Split: []Share{{"1", 100}}})
	w.reportAll()
	w.settle()
	return w
}

func (w *world) holdVersion(name, state, reason string) {
	w.pages[name].Models = append(w.pages[name].Models, node.Model{Name: "m", Version: "2", State: state, Reason: reason, Bytes: 10})
}

// begin starts a rollout of version 2.
func (w *world) begin(r Rollout) {
	w.t.Helper()
	r.Model, r.To = "m", "2"
	prepared, err := w.core.PrepareRollout(r)
	if err != nil {
		w.t.Fatal(err)
	}
	w.step(Started{prepared})
	w.pass(routeEvery)
}

// A does is what a version has done on a node.
type does struct {
	requests, failures uint64
	took               time.Duration
}

// measure answers what the core asks nodes for: both do the same.
func (w *world) measure(old, fresh does) (asked int) {
	figures := func(version string, d does) node.Figures {
		return node.Figures{Version: version, Requests: d.requests, Failures: d.failures, Times: []node.Bucket{{Most: d.took, Count: d.requests - d.failures}}}
	}
	w.pass(measureEvery)
	measures := w.measures
	w.measures = nil
	for _, m := range measures {
		w.step(Measured{m.Node.Name, m.Model, []node.Figures{figures("1", old), figures("2", fresh)}})
	}
	w.pass(routeEvery)
	return len(measures)
}

func (w *world) rollout() RolloutDescription {
	w.t.Helper()
	all := w.core.Describe().Rollouts
	if len(all) != 1 {
		w.t.Fatalf("%d rollouts", len(all))
	}
	return all[0]
}

func TestABadVersionIsRolledBackAtOnce(t *testing.T) {
	for name, c := range map[string]struct {
		old, fresh does
		stopped    bool
		reason     string
	}{
		"fails":                            {does{1000, 0, 5 * ms}, does{1, 1, 5 * ms}, true, "1 of 1 requests of version 2 failed, and 0 of 1000 of version 1"},
		"fails as often as the old one":    {does{10_000, 100, 5 * ms}, does{300, 3, 5 * ms}, false, ""},
		"fails much more often":            {does{10_000, 100, 5 * ms}, does{300, 9, 5 * ms}, true, "18 of 600"},
		"slow":                             {does{1000, 0, 5 * ms}, does{6, 0, 50 * ms}, true, "12 of 12 requests of version 2 took longer than 6ms"},
		"slow, but few of them":            {does{1000, 0, 5 * ms}, does{5, 0, 50 * ms}, false, ""},
		"a tenth slower":                   {does{1000, 0, 50 * ms}, does{200, 0, 55 * ms}, false, ""},
		"slow, and the old one is unknown": {does{10, 0, 5 * ms}, does{100, 0, 50 * ms}, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := rolling(t, true)
			w.begin(Rollout{Hold: time.Hour})
			if got := w.routes["m"].Split; !slices.Equal(got, []Share{{"1", 99}, {"2", 1}}) {
				t.Fatalf("split %v at the start", got)
			}
			if n := w.measure(does{took: 5 * ms}, does{took: 5 * ms}); n != 2 {
				t.Fatalf("%d nodes were asked", n)
			}
			w.measure(c.old, c.fresh)
			r := w.rollout()
			if c.stopped != (r.State == RolloutStopped) || !strings.Contains(r.Reason, c.reason) {
				t.Errorf("it is %s: %s", r.State, r.Reason)
			}
			want := []Share{{"1", 99}, {"2", 1}}
			if c.stopped {
				want = []Share{{"1", 100}}
			}
			if got := w.routes["m"].Split; !slices.Equal(got, want) {
				t.Errorf("split %v, want %v", got, want)
			}
		})
	}
}

func TestAGoodVersionGetsMoreAndMore(t *testing.T) {
	w := rolling(t, true)
	w.begin(Rollout{Hold: 10 * time.Second})
	n := uint64(0)
	for _, percent := range []uint32{1, 10, 50} {
		if got := w.routes["m"].Split; !slices.Equal(got, []Share{{"1", 100 - percent}, {"2", percent}}) {
			t.Fatalf("split %v, want %d %%", got, percent)
		}
		for range 2 { // the first step has no figures before
			n += 250
			w.measure(does{n, 0, 5 * ms}, does{n, 0, 5 * ms})
		}
		if r := w.rollout(); r.Steps[r.Step] != percent {
			t.Errorf("it went on before its time")
		}
		w.pass(10 * time.Second)
	}
	if got := w.routes["m"].Split; !slices.Equal(got, []Share{{"1", 0}, {"2", 100}}) || w.rollout().State != RolloutDone {
		t.Errorf("split %v, %s", got, w.rollout().State)
	}
	// It survives a restart, until the file says something else.
	again := newWorld(t, Options{State: w.saved})
	again.pages, again.now = w.pages, w.now
	again.configure(Model{Name: "m", Copies: 2, Split: []Share{{"1", 100}}})
	again.reportAll()
	again.pass(time.Second)
	if got := again.routes["m"].Split; !slices.Equal(got, []Share{{"1", 0}, {"2", 100}}) {
		t.Errorf("split %v after a restart", got)
	}
	again.configure(Model{Name: "m", Copies: 2, Split: []Share{{"2", 100}}})
	again.pass(time.Second)
	if got := again.routes["m"].Split; !slices.Equal(got, []Share{{"2", 100}}) || len(again.core.Describe().Rollouts) != 0 {
		t.Errorf("split %v after the file was changed", got)
	}
}

func TestAMirroredVersionAnswersNobody(t *testing.T) {
	w := rolling(t, true)
	w.begin(Rollout{Mirror: true, Steps: []uint32{20}})
	r := w.routes["m"]
	if !slices.Equal(r.Split, []Share{{"1", 100}}) || r.Mirror != (Share{"2", 20}) {
		t.Fatalf("%+v", r)
	}
	w.measure(does{}, does{})
	w.measure(does{1000, 0, ms}, does{400, 0, ms})
	w.pass(time.Second)
	if r := w.routes["m"]; !slices.Equal(r.Split, []Share{{"1", 100}}) || r.Mirror != (Share{}) || w.rollout().State != RolloutDone {
		t.Errorf("%+v, %s", r, w.rollout().State)
	}
}

func TestARolloutWaitsForNodesThatLoadTheVersion(t *testing.T) {
	w := rolling(t, false)
	w.begin(Rollout{})
	w.pass(stepEvery)
	if got := w.ordered(); !slices.Equal(got, []string{"load m on a", "load m on b"}) {
		t.Fatalf("ordered %v", got)
	}
	orders := w.orders
	w.orders = nil
	for _, o := range orders {
		w.step(Carried{Order: o})
	}
	w.pass(time.Second)
	if len(w.orders) != 0 || w.rollout().State != RolloutWaiting {
		t.Errorf("ordered %v, %s", w.ordered(), w.rollout().State)
	}
	for _, name := range []string{"a", "b"} {
		w.holdVersion(name, ready, "")
		w.report(name)
	}
	w.pass(time.Second)
	if got := w.routes["m"].Split; w.rollout().State != RolloutRunning || !slices.Equal(got, []Share{{"1", 99}, {"2", 1}}) {
		t.Errorf("%s, split %v", w.rollout().State, got)
	}
	// A node that loses the version, for example because it is started again, gets the old one.
	w.pages["a"].Models = w.pages["a"].Models[:1]
	w.report("a")
	w.pass(time.Second)
	if got := w.routes["m"].Split; !slices.Equal(got, []Share{{"1", 100}}) {
		t.Errorf("split %v", got)
	}
}

func TestARolloutOfAVersionThatCannotBeLoadedStops(t *testing.T) {
	for name, c := range map[string]struct {
		change func(w *world)
		reason string
	}{
		"damaged": {func(w *world) {
			w.holdVersion("a", "UNAVAILABLE", "model.onnx is damaged")
			w.report("a")
			for _, o := range w.orders {
				w.step(Carried{Order: o, Failed: "cannot be loaded"})
			}
			w.pass(stepEvery)
		}, "node a has no version 2: model.onnx is damaged"},
		"missing": {func(w *world) {
			for _, o := range w.orders {
				w.step(Carried{Order: o})
			}
			w.pass(reflectFor)
		}, "it does not exist"},
	} {
		t.Run(name, func(t *testing.T) {
			w := rolling(t, false)
			w.begin(Rollout{})
			w.pass(stepEvery)
			c.change(w)
			if r := w.rollout(); r.State != RolloutStopped || !strings.Contains(r.Reason, c.reason) {
				t.Errorf("%s: %s", r.State, r.Reason)
			}
		})
	}
}

// begunDamaged begins a rollout whose version could not be loaded before, as the pages say.
func begunDamaged(t *testing.T) *world {
	t.Helper()
	w := rolling(t, false)
	for _, name := range []string{"a", "b"} {
		w.holdVersion(name, "UNAVAILABLE", "model.onnx was damaged")
	}
	w.reportAll()
	w.begin(Rollout{})
	w.pass(stepEvery)
	return w
}

// Nodes keep saying why a version could not be loaded, until it is loaded again.
func TestARolloutCanBeRepeatedWhenItsFilesAreRepaired(t *testing.T) {
	w := begunDamaged(t)
	if got := len(w.orders); got != 2 || w.rollout().State != RolloutWaiting {
		t.Fatalf("%d orders, and the rollout is %s: %s", got, w.rollout().State, w.rollout().Reason)
	}
	for _, o := range w.orders {
		models := w.pages[o.Node.Name].Models
		models[len(models)-1].State, models[len(models)-1].Reason = ready, ""
		w.report(o.Node.Name)
		w.step(Carried{Order: o})
	}
	w.pass(time.Second)
	if r := w.rollout(); r.State != RolloutRunning {
		t.Errorf("%s: %s", r.State, r.Reason)
	}
}

// The answer to a load may be there long before the page that shows what it changed.
func TestARolloutWaitsForThePagesOfItsLoads(t *testing.T) {
	repaired := func(w *world, name string) {
		models := w.pages[name].Models
		models[len(models)-1].State, models[len(models)-1].Reason = ready, ""
		w.report(name)
	}
	unchanged := func(w *world, name string) { w.step(Reported{Node: name}) }
	for what, c := range map[string]struct {
		report func(w *world, name string)
		want   RolloutState
	}{"repaired": {repaired, RolloutRunning}, "still damaged": {unchanged, RolloutStopped}} {
		w := begunDamaged(t)
		for _, o := range w.orders {
			w.step(Carried{Order: o})
		}
		w.pass(stepEvery)
		if r := w.rollout(); len(w.orders) != 2 || r.State != RolloutWaiting {
			t.Errorf("%s, before the pages: %d orders, %s: %s", what, len(w.orders), r.State, r.Reason)
		}
		for _, o := range w.orders {
			c.report(w, o.Node.Name)
		}
		w.pass(time.Second)
		if r := w.rollout(); r.State != c.want {
			t.Errorf("%s: %s: %s, want %s", what, r.State, r.Reason, c.want)
		}
	}
}

func TestSpareCopiesGetTheVersionOfARollout(t *testing.T) {
	w := newWorld(t, Options{}, "a", "b", "c")
	for name, rate := range map[string]float64{"a": 1, "b": 1, "c": 0} {
		w.hold(name, "m", rate)
	}
	w.configure(Model{Name: "m", Copies: 2, Split: []Share{{"1", 100}}})
	w.reportAll()
	w.settle()
	if spare := w.routes["m"].Spare; len(spare) != 1 {
		t.Fatalf("spare copies on %v, want one", spare)
	}
	w.begin(Rollout{})
	w.pass(stepEvery)
	if got := w.ordered(); len(got) != 3 {
		t.Errorf("ordered %v, want three loads", got)
	}
}

func TestARolloutNeedsAVersionThatServes(t *testing.T) {
	w := rolling(t, true)
	for name, r := range map[string]Rollout{
		"no model":      {Model: "other", To: "2"},
		"same version":  {Model: "m", To: "1"},
		"not a version": {Model: "m", To: "x"},
		"steps":         {Model: "m", To: "2", Steps: []uint32{10, 5}},
	} {
		if _, err := w.core.PrepareRollout(r); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
	w.begin(Rollout{})
	if _, err := w.core.PrepareRollout(Rollout{Model: "m", To: "2"}); err == nil || !strings.Contains(err.Error(), "under way") {
		t.Errorf("a second one: %v", err)
	}
	w.step(Stopped{"m", "an operator stopped it"})
	w.pass(time.Second)
	if got := w.routes["m"].Split; !slices.Equal(got, []Share{{"1", 100}}) || w.rollout().Reason != "an operator stopped it" {
		t.Errorf("split %v", got)
	}
	w.configure(Model{Name: "m", Copies: 2})
	if _, err := w.core.PrepareRollout(Rollout{Model: "m", To: "2"}); err == nil || !strings.Contains(err.Error(), "{1: 100}") {
		t.Errorf("without a version that serves: %v", err)
	}
}

// following returns a follower of a cell, in whose file a version of the model has all requests.
func following(t *testing.T, w *world, version string) *world {
	f := newWorld(t, Options{Follow: true})
	f.pages, f.now = w.pages, w.now
	f.configure(Model{Name: "m", Copies: 2, Split: []Share{{version, 100}}})
	f.reportAll()
	f.step(Followed{*w.saved})
	return f
}

func TestAFollowerRoutesARolloutAsTheCellDoes(t *testing.T) {
	w := rolling(t, true)
	w.begin(Rollout{})
	f := following(t, w, "1")
	f.pass(time.Minute)
	if got := f.routes["m"].Split; !slices.Equal(got, []Share{{"1", 99}, {"2", 1}}) || len(f.measures) != 0 {
		t.Errorf("split %v, %d measures", got, len(f.measures))
	}
	w.step(Stopped{"m", "bad"})
	f.step(Followed{*w.saved})
	f.pass(time.Second)
	if got := f.routes["m"].Split; !slices.Equal(got, []Share{{"1", 100}}) {
		t.Errorf("split %v after it was stopped", got)
	}
}

// Routes may name a node that was removed a moment ago.
func TestANodeMayBeRemovedDuringARollout(t *testing.T) {
	w := rolling(t, false)
	for _, name := range []string{"a", "b"} {
		w.hold(name, "n", 1)
	}
	models := []Model{{Name: "m", Copies: 2, Split: []Share{{"1", 100}}}, {Name: "n", Copies: 2, Split: []Share{{"1", 100}}}}
	w.configure(models...)
	w.reportAll()
	w.settle()
	w.begin(Rollout{})
	other, err := w.core.PrepareRollout(Rollout{Model: "n", To: "2"})
	if err != nil {
		t.Fatal(err)
	}
	w.step(Started{other})
	w.pass(2 * time.Second)
	w.step(Stopped{Model: "n"}) // routes are found again
	delete(w.pages, "b")
	w.configure(models...)
	w.pass(2 * time.Second)
	if got := w.active("m"); !slices.Equal(got, []string{"a"}) {
		t.Errorf("m is active on %v, want the node that is left", got)
	}
}

func TestARolloutThatTheFileHasOvertakenDoesNotComeBack(t *testing.T) {
	w := rolling(t, true)
	w.begin(Rollout{})
	before := w.saved.Version
	w.configure(Model{Name: "m", Copies: 2, Split: []Share{{"2", 100}}})
	if len(w.saved.Rollouts) != 0 || w.saved.Version == before {
		t.Errorf("plan %d after %d has %d rollouts", w.saved.Version, before, len(w.saved.Rollouts))
	}
	again := newWorld(t, Options{State: w.saved})
	again.pages, again.now = w.pages, w.now
	again.configure(Model{Name: "m", Copies: 2, Split: []Share{{"1", 100}}})
	again.reportAll()
	again.pass(time.Second)
	if got := again.routes["m"].Split; !slices.Equal(got, []Share{{"1", 100}}) {
		t.Errorf("split %v after a restart", got)
	}
}

// The files of a cell and its follower do not change at the same time.
func TestAFollowerUsesARolloutOfTheVersionInItsFile(t *testing.T) {
	w := rolling(t, true)
	w.begin(Rollout{})
	f := following(t, w, "2")
	f.pass(time.Second)
	if got := f.routes["m"].Split; !slices.Equal(got, []Share{{"2", 100}}) {
		t.Errorf("split %v, and the file has version 2", got)
	}
	f.configure(Model{Name: "m", Copies: 2, Split: []Share{{"1", 100}}})
	f.pass(time.Second)
	if got := f.routes["m"].Split; !slices.Equal(got, []Share{{"1", 99}, {"2", 1}}) {
		t.Errorf("split %v, and the cell rolls out from version 1", got)
	}
}

func TestARolloutRepeatsALoadThatFailed(t *testing.T) {
	w := rolling(t, false)
	w.begin(Rollout{})
	w.pass(stepEvery)
	orders := w.orders
	w.orders = nil
	for _, o := range orders {
		w.step(Carried{Order: o, Failed: "out of memory"})
	}
	w.pass(retryAfter + stepEvery)
	if r := w.rollout(); r.State != RolloutWaiting || len(w.orders) != 2 {
		t.Errorf("it is %s: %s; ordered %v", r.State, r.Reason, w.ordered())
	}
}

func TestARolloutLoadsNothingOnACopyThatLeaves(t *testing.T) {
	two := func() *world {
		w := newWorld(t, Options{}, "a", "b")
		for _, name := range []string{"a", "b"} {
			w.pages[name].Zone = ""
			w.hold(name, "m", 0)
		}
		w.configure(Model{Name: "m", Copies: 1, Split: []Share{{"1", 100}}})
		w.reportAll()
		return w
	}
	before := two()
	for len(before.core.leaving) == 0 {
		before.pass(time.Second)
	}
	for at, since := range before.core.leaving {
		w := two()
		w.pass(since - 1 - w.now)
		w.now++
		w.begin(Rollout{}) // in the step in which the copy begins to leave
		w.pass(2 * leaveFor)
		stays := w.active("m")[0]
		if got, want := w.ordered(), []string{"load m on " + stays, "unload m on " + at.node}; stays == at.node || !slices.Equal(got, want) {
			t.Errorf("ordered %v, want %v", got, want)
		}
	}
}

func TestARolloutLoadsNothingOnANodeThatDrains(t *testing.T) {
	w := newWorld(t, Options{}, "a", "b")
	w.pages["a"].Zone, w.pages["b"].Zone = "", ""
	w.configure(Model{Name: "m", Copies: 1, Split: []Share{{"1", 100}}})
	w.reportAll()
	w.settle()
	drains := w.active("m")[0]
	w.pages[drains].Draining = true
	w.report(drains)
	w.pass(time.Second)
	w.begin(Rollout{})
	w.pass(time.Second)
	if got := w.ordered(); len(got) != 1 || got[0] == "load m on "+drains {
		t.Errorf("ordered %v, and %s drains", got, drains)
	}
}

// By the figures no node has the memory for the model, but its home serves it.
func TestARolloutLoadsTheVersionAtTheHomeOfAModelWithoutAPlace(t *testing.T) {
	w := newWorld(t, Options{}, "a")
	w.pages["a"].Memory = 5
	w.hold("a", "m", 1)
	w.configure(Model{Name: "m", Copies: 1, Split: []Share{{"1", 100}}})
	w.reportAll()
	w.settle()
	if p := w.core.plan.Find("m"); len(p.Copies) != 0 || p.Home != "a" {
		t.Fatalf("%+v", p)
	}
	w.begin(Rollout{})
	w.pass(time.Second)
	if got := w.ordered(); !slices.Equal(got, []string{"load m on a"}) {
		t.Errorf("ordered %v", got)
	}
}

// The reason on the nodes' pages is that of an earlier load.
func TestALoadThatNoNodeAnsweredStopsNoRollout(t *testing.T) {
	w := rolling(t, false)
	for _, name := range []string{"a", "b"} {
		w.holdVersion(name, unavailable, "model.onnx was damaged")
	}
	w.reportAll()
	w.begin(Rollout{})
	w.pass(stepEvery)
	orders := w.orders
	w.orders = nil
	for _, o := range orders {
		w.step(Carried{Order: o, Failed: "connection reset by peer", Untried: true})
	}
	w.pass(retryAfter + stepEvery)
	if r := w.rollout(); r.State != RolloutWaiting || len(orders) != 2 || len(w.orders) != 2 {
		t.Errorf("it is %s: %s; ordered %d times, and then %v", r.State, r.Reason, len(orders), w.ordered())
	}
}

func TestAVersionGetsAShareWhenAllActiveNodesHaveIt(t *testing.T) {
	w := rolling(t, false)
	w.configure(Model{Name: "m", Copies: 2, Split: []Share{{"1", 90}, {"2", 10}}})
	check := func(when string, want ...Share) {
		t.Helper()
		w.pass(time.Second)
		if got := w.routes["m"].Split; !slices.Equal(got, want) {
			t.Errorf("%s: split %v, want %v", when, got, want)
		}
	}
	check("no node has version 2", Share{"1", 90})
	w.holdVersion("a", ready, "")
	w.report("a")
	check("one has", Share{"1", 90})
	w.holdVersion("b", ready, "")
	w.report("b")
	check("both have", Share{"1", 90}, Share{"2", 10})
	w.configure(Model{Name: "m", Copies: 2, Split: []Share{{"1", 0}, {"3", 100}}})
	check("no node has version 3") // proxies refuse parts that are all 0
}

// The other cell may have stopped it. Envoys may be connected to this one, and reach no other.
func TestACellThatWasReplacedGivesNothingToANewVersion(t *testing.T) {
	w := rolling(t, true)
	w.begin(Rollout{Hold: time.Hour})
	if got := w.routes["m"].Split; !slices.Equal(got, []Share{{"1", 99}, {"2", 1}}) {
		t.Fatalf("split %v at the start", got)
	}
	f := newWorld(t, Options{Follow: true})
	f.pages, f.now = w.pages, w.now
	f.configure(Model{Name: "m", Copies: 2, Split: []Share{{"1", 100}}})
	f.reportAll()
	f.step(Followed{*w.saved})
	w.core.fenced = 1 // as if it had sent orders
	w.pages["a"].Epoch = 9
	w.report("a")
	w.pass(routeEvery)
	f.step(Followed{*w.saved})
	f.pass(routeEvery)
	for name, x := range map[string]*world{"the cell": w, "its follower": f} {
		if got := x.routes["m"].Split; !slices.Equal(got, []Share{{"1", 100}}) {
			t.Errorf("%s: split %v", name, got)
		}
	}
	if r := w.rollout(); r.State != RolloutStopped || !strings.Contains(r.Reason, "another cell") {
		t.Errorf("it is %s: %s", r.State, r.Reason)
	}
}
