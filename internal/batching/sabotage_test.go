package batching_test

import (
	"regexp"
	"slices"
	"testing"

	"github.com/shoal-serving/shoal/internal/batching"
)

// A saboteur violates a guarantee of the core by changing its actions. Its spoil reports
// whether there was an opportunity.
type saboteur struct {
	name  string
	spoil func(g *game, ev batching.Event) bool
	want  string // the expected report of the referee, as a regular expression
}

// TestTheRefereeSeesEachBreach runs each saboteur in ten games. The referee must detect
// each violation, and report the right one.
func TestTheRefereeSeesEachBreach(t *testing.T) {
	for _, s := range slices.Concat(inBatches, inAnswers, inInstances, inTurns, inWakes) {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			want := regexp.MustCompile(`^at \S+, on [A-Z][a-z]+: ` + s.want + `$`)
			strikes := 0
			for seed := uint64(0); strikes < 10; seed++ {
				if seed == 20_000 {
					t.Fatalf("in %d games there was opportunity for %d strikes; want 10", seed, strikes)
				}
				struck := false
				g := game{chance: chance(seed), plain: true}
				g.spoil = func(g *game, ev batching.Event) { struck = struck || s.spoil(g, ev) }
				err := g.play()
				switch {
				case !struck && err != nil:
					t.Fatalf("seed %d: nobody struck, but the referee says: %v", seed, err)
				case struck && (err == nil || !want.MatchString(err.Error())):
					t.Fatalf("seed %d: the referee says: %v\nwant: %v", seed, err, want)
				case struck:
					strikes++
				}
			}
		})
	}
}

// TestTheRefereeSeesUnfairShares plays games against a core that is not told which tenant a
// request is from, and so serves them in the order of arrival.
func TestTheRefereeSeesUnfairShares(t *testing.T) {
	want := regexp.MustCompile(`which is to run first|was rejected without cause: queue full|was let in although|should have been given|rejected without cause: would be late|passed over those|are due|is due|requests wait, but the core says`)
	found := 0
	for seed := range uint64(2_000 / slower) {
		g := game{chance: chance(seed), plain: true, forgetful: true}
		err := g.play()
		if err == nil {
			continue
		}
		if !want.MatchString(err.Error()) || g.tenants == 1 {
			t.Fatalf("seed %d: the referee says: %v", seed, err)
		}
		found++
	}
	if found < 200/slower {
		t.Errorf("%d of %d games were found to be unfair; want at least a tenth", found, 2_000/slower)
	}
}

// TestAPolicyThatTheRefereeDoesNotKnow shows that the referee then checks only what holds
// for all policies.
func TestAPolicyThatTheRefereeDoesNotKnow(t *testing.T) {
	for seed := range uint64(1_000) {
		g := game{chance: chance(seed), masked: true}
		if err := g.play(); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}

var inBatches = []saboteur{
	{"gives an empty batch", onRun(func(_ *game, a *batching.Action) bool {
		a.Items = nil
		return true
	}), `instance \d was given an empty batch`},
	{"overfills", onRun(func(g *game, a *batching.Action) bool {
		rows := 0
		for _, it := range a.Items {
			rows += it.Rows
		}
		for _, it := range g.waiting() {
			if it.Shape == a.Items[0].Shape && it.Instance == a.Items[0].Instance {
				a.Items = append(a.Items, it)
				rows += it.Rows
			}
		}
		return g.cfg.MaxRows > 0 && rows > g.cfg.MaxRows
	}), `instance \d was given \d+ rows, and may be given \d`},
	{"mixes shapes", addToRun(func(a *batching.Action, it *batching.Item) bool {
		return it.Shape != a.Items[0].Shape && it.Instance == a.Items[0].Instance
	}), `request \d+ shares a batch with request \d+, which has another shape`},
	{"mixes bound and unbound", addToRun(func(a *batching.Action, it *batching.Item) bool {
		return it.Shape == a.Items[0].Shape && it.Instance != a.Items[0].Instance && (it.Instance == 0 || it.Instance == a.Instance)
	}), `request \d+ shares a batch with request \d+, and only one of them is bound`},
	{"runs what is bound elsewhere", addToRun(func(a *batching.Action, it *batching.Item) bool {
		return it.Instance != 0 && it.Instance != a.Instance
	}), `request \d+ was given to instance \d although it is bound to instance \d`},
	{"runs what does not wait", onRun(func(g *game, a *batching.Action) bool {
		n := g.oneThatIs(running)
		if n > 0 {
			a.Items = append(a.Items, g.instances[n-1].batch[0])
		}
		return n > 0
	}), `request \d+ was put into a batch although it does not wait`},
	{"runs a request twice", onRun(func(_ *game, a *batching.Action) bool {
		a.Items = append(a.Items, a.Items[0])
		return true
	}), `request \d+ was put into a batch twice`},
	{"runs one whose time is over", runsOneThat(func(v batching.Verdict) bool { return v != batching.Late }), `request \d+ was put into a batch although its time was over`},
	{"runs one that would be late", runsOneThat(func(v batching.Verdict) bool { return v == batching.Late }), `(request \d+ was put into a batch that answers it too late|instance \d was given \[.+\], and should have been given \[.+\])`}, // only the whole batch was too late
	{"takes the second first", onRun(func(_ *game, a *batching.Action) bool {
		if len(a.Items) > 1 {
			a.Items[0], a.Items[1] = a.Items[1], a.Items[0]
		}
		return len(a.Items) > 1
	}), `request \d+ was put into a batch before request \d+, which is to run first`},
	{"passes over the first", onRun(func(_ *game, a *batching.Action) bool {
		a.Items = a.Items[1:]
		return len(a.Items) > 0
	}), `request \d+ was put into a batch before request \d+, which is to run first`},
	{"takes another shape first", onRun(func(g *game, a *batching.Action) bool {
		for _, it := range g.waiting() {
			if it.Shape != a.Items[0].Shape && it.Instance == 0 {
				a.Items = []*batching.Item{it}
				return !g.cfg.OvertakeOtherShapes
			}
		}
		return false
	}), `request \d+ was put into a batch before request \d+, which is to run first`},
	{"passes over another shape", onRun(func(g *game, a *batching.Action) bool {
		queue := g.waiting() // in order, if there are no levels and no bound items
		i := slices.IndexFunc(queue, func(it *batching.Item) bool { return it.Shape == a.Items[0].Shape })
		if len(g.cfg.Levels) > 0 || g.cfg.OvertakeOtherShapes || g.spice&bound != 0 || g.tenants > 1 || i < 1 || g.cfg.MaxRows > 0 {
			return false
		}
		a.Items = append(a.Items, queue[i])
		return true
	}), `request \d+ was put into a batch(, and passed over those that stand between| that answers it too late)`},
	{"takes fewer than it should", onRun(func(_ *game, a *batching.Action) bool {
		a.Items = a.Items[:len(a.Items)-1]
		return len(a.Items) > 0
	}), `instance \d was given \[.+\], and should have been given \[.+\]`},
	{"numbers two batches alike", onRun(func(_ *game, a *batching.Action) bool {
		a.Batch--
		return true
	}), `the batches \d+ and \d+ are numbered out of order`},
	{"changes a batch while it runs", func(g *game, ev batching.Event) bool {
		if ev.Kind != batching.Done {
			return false
		}
		g.instances[ev.Instance-1].lent[0] = &batching.Item{}
		return true
	}, `the batch of instance \d was changed while it ran`},
	{"asks for what does not exist", func(g *game, _ batching.Event) bool {
		return g.add(batching.Action{Kind: 99})
	}, `the core asked for 99, which is no action`},
}

var inAnswers = []saboteur{
	{"loses an outcome", func(g *game, _ batching.Event) bool {
		return !g.cfg.KeepOrder && g.drop(g.findLast(batching.Deliver))
	}, `request \d+ was not delivered although nothing holds it up`},
	{"holds an outcome back", func(g *game, _ batching.Event) bool {
		return g.cfg.KeepOrder && g.drop(g.findLast(batching.Deliver))
	}, `request \d+ was not delivered although nothing holds it up`},
	{"delivers out of order", func(g *game, _ batching.Event) bool {
		first, last := g.find(batching.Deliver), g.findLast(batching.Deliver)
		if !g.cfg.KeepOrder || first == last {
			return false
		}
		g.out.List[first], g.out.List[last] = g.out.List[last], g.out.List[first]
		return true
	}, `request \d+ was delivered before request \d+, which arrived first`},
	{"delivers twice", afterEach(batching.Deliver, batching.Action{Kind: batching.Deliver}), `request \d+ was delivered twice`},
	{"delivers to one that was rejected", afterEach(batching.Reject, batching.Action{Kind: batching.Deliver}), `request \d+ was delivered although it was rejected`},
	{"delivers without running", onWaiting(batching.Action{Kind: batching.Deliver}), `request \d+ was delivered without having run`},
	{"delivers too early", onRun(func(g *game, a *batching.Action) bool {
		return g.add(batching.Action{Kind: batching.Deliver, Item: a.Items[0]})
	}), `request \d+ was delivered before its batch had ended`},
	{"delivers to nobody", func(g *game, _ batching.Event) bool {
		return g.add(batching.Action{Kind: batching.Deliver, Item: &batching.Item{}})
	}, `an outcome was delivered to nobody`},
	{"forgets a deadline", forgets(batching.Expired), `request \d+ was not answered at its deadline`},
	{"forgets a timeout", forgets(batching.TimedOut), `request \d+ was not rejected when its time in the queue was over`},
	{"forgets a client that left", forgets(batching.Cancelled), `the client of request \d+ left, but it was not answered`},
	{"forgets those that were bound", forgets(batching.Unbound), `request \d+ waits for instance \d, which has left`},
	{"forgets those that no instance will run", forgets(batching.NoInstance), `request \d+ waits although no instance serves and one cannot be started`},
	{"lets in what it should refuse", func(g *game, ev batching.Event) bool {
		i := g.findLast(batching.Reject)
		return ev.Kind == batching.Arrive && i >= 0 && g.out.List[i].Item == ev.Item && g.drop(i)
	}, `request \d+ was let in although it was to be rejected: \[.+\]`},
	{"rejects twice", afterEach(batching.Reject, batching.Action{Kind: batching.Reject}), `request \d+ was rejected twice`},
	{"rejects what it delivered", afterEach(batching.Deliver, batching.Action{Kind: batching.Reject}), `request \d+ was rejected after it had been delivered`},
	{"gives the wrong reason", func(g *game, ev batching.Event) bool {
		i := g.find(batching.Reject)
		if i < 0 || ev.Kind == batching.Arrive {
			return false
		}
		g.out.List[i].Verdict = batching.QueueFull
		return true
	}, `request \d+ was rejected without cause: queue full`},
	{"gives a newcomer the wrong reason", func(g *game, ev batching.Event) bool {
		i := g.findLast(batching.Reject)
		if ev.Kind != batching.Arrive || i < 0 || g.out.List[i].Item != ev.Item {
			return false
		}
		g.out.List[i].Verdict = batching.Cancelled
		return true
	}, `request \d+ was rejected without cause: cancelled`},
	{"rejects before the time", onWaiting(batching.Action{Kind: batching.Reject, Verdict: batching.TimedOut}), `request \d+ was rejected without cause: timed out`},
	{"rejects before the deadline", onWaiting(batching.Action{Kind: batching.Reject, Verdict: batching.Expired}), `request \d+ was rejected without cause: expired`},
	{"rejects who would not be late", func(g *game, ev batching.Event) bool {
		return g.cfg.Predictor == nil && onWaiting(batching.Action{Kind: batching.Reject, Verdict: batching.Late})(g, ev)
	}, `request \d+ was rejected without cause: would be late`},
	{"turns nobody away", func(g *game, _ batching.Event) bool {
		return g.add(batching.Action{Kind: batching.Reject, Item: &batching.Item{}})
	}, `an unknown request was rejected`},
}

var inInstances = []saboteur{
	{"runs on one that does not take", onRun(func(g *game, a *batching.Action) bool {
		a.Instance = g.oneThatIs(parked)
		return a.Instance > 0
	}), `instance \d was given a batch although it does not take`},
	{"runs two batches on one", onRun(func(g *game, a *batching.Action) bool {
		a.Instance = g.oneThatIs(running)
		return a.Instance > 0
	}), `instance \d was given a batch while it still runs another`},
	{"forgets to run", func(g *game, ev batching.Event) bool {
		return g.nobodyElseComes(ev) && g.find(batching.Unpark) < 0 && g.drop(g.find(batching.Run))
	}, `request \d+ is due and instance \d is parked, but was not called`},
	{"forgets to call", func(g *game, ev batching.Event) bool {
		return g.nobodyElseComes(ev) && g.find(batching.Run) < 0 && g.find(batching.Unpark) == g.findLast(batching.Unpark) && g.drop(g.find(batching.Unpark))
	}, `request \d+ is due and instance \d is parked, but was not called`},
	{"calls one that runs", func(g *game, ev batching.Event) bool {
		n := g.oneThatIs(running)
		return n > 0 && ev.Kind != batching.Done && g.add(batching.Action{Kind: batching.Unpark, Instance: n})
	}, `instance \d was called although it is not parked`},
	{"calls for nothing", func(g *game, ev batching.Event) bool {
		n := g.oneThatIs(parked)
		return n > 0 && ev.Kind != batching.Down && g.core.Waiting() == 0 && !g.cfg.TakeTurns && g.add(batching.Action{Kind: batching.Unpark, Instance: n})
	}, `instance \d was called although nothing is due`},
	{"calls one that is to leave", func(g *game, ev batching.Event) bool {
		i := g.find(batching.Leave)
		if i < 0 || ev.Kind != batching.Down {
			return false
		}
		g.out.List[i].Kind = batching.Unpark
		return true
	}, `instance \d was called although it is to leave`},
	{"does not let it leave", func(g *game, _ batching.Event) bool {
		return g.drop(g.find(batching.Leave))
	}, `instance \d was to leave, and did not`},
	{"sends one away", func(g *game, ev batching.Event) bool {
		n := g.oneThatIs(parked)
		return n > 0 && ev.Kind != batching.Down && g.add(batching.Action{Kind: batching.Leave, Instance: n})
	}, `instance \d left although it was not to leave`},
	{"sends one away that runs", func(g *game, ev batching.Event) bool {
		return ev.Kind == batching.Down && g.instances[ev.Instance-1].state == running && g.add(batching.Action{Kind: batching.Leave, Instance: ev.Instance})
	}, `instance \d left while its batch runs`},
	{"does not stop a batch", func(g *game, ev batching.Event) bool {
		return ev.Kind != batching.Done && g.drop(g.find(batching.Stop))
	}, `the batch of instance \d was not stopped although everybody in it has left`},
	{"stops a batch", func(g *game, ev batching.Event) bool {
		for i, p := range g.instances {
			if p.state == running && slices.Contains(g.open, p.batch[0]) {
				return ev.Kind != batching.Done && g.find(batching.Reject) < 0 && g.add(batching.Action{Kind: batching.Stop, Instance: i + 1, Batch: p.serial})
			}
		}
		return false
	}, `the batch of instance \d was stopped although somebody waits for it`},
	{"stops twice", afterEach(batching.Stop, batching.Action{Kind: batching.Stop}), `batch \d+ of instance \d was stopped twice`},
	{"stops another batch", func(g *game, _ batching.Event) bool {
		i := g.find(batching.Stop)
		if i >= 0 {
			g.out.List[i].Batch++
		}
		return i >= 0
	}, `batch \d+ of instance \d was stopped, which does not run`},
}

var inTurns = []saboteur{
	{"forgets to ask", func(g *game, ev batching.Event) bool {
		return g.nobodyElseComes(ev) && g.drop(g.find(batching.Ask))
	}, `request \d+ is due, but no turn was asked for`},
	{"asks twice", afterEach(batching.Ask, batching.Action{Kind: batching.Ask}), `the core asked for a turn although one is on its way`},
	{"asks for no reason", func(g *game, _ batching.Event) bool {
		return !g.cfg.TakeTurns && g.add(batching.Action{Kind: batching.Ask})
	}, `the core asked for a turn although the model takes none`},
	{"runs without a turn", onRun(func(g *game, _ *batching.Action) bool {
		if g.turns != 1 {
			return false
		}
		g.out.List = slices.Insert(g.out.List, 0, batching.Action{Kind: batching.Yield})
		return true
	}), `instance \d was given a batch without a turn`},
	{"calls without a turn", func(g *game, _ batching.Event) bool {
		n, i := g.oneThatIs(parked), g.find(batching.Ask)
		if n == 0 || i < 0 || g.turns > 0 {
			return false
		}
		g.out.List[i] = batching.Action{Kind: batching.Unpark, Instance: n}
		return true
	}, `instance \d was called without a turn`},
	{"keeps the turn of a batch", func(g *game, ev batching.Event) bool {
		return ev.Kind == batching.Done && g.find(batching.Yield) == g.findLast(batching.Yield) && g.drop(g.find(batching.Yield))
	}, `the batch of instance \d has ended, but its turn was kept`},
	{"keeps a turn for nothing", func(g *game, ev batching.Event) bool {
		return ev.Kind != batching.Done && g.drop(g.find(batching.Yield))
	}, `a turn was kept that nobody will use`},
	{"charges too much", func(g *game, ev batching.Event) bool {
		i := g.find(batching.Yield)
		if ev.Kind == batching.Done && i >= 0 {
			g.out.List[i].Ran++
		}
		return ev.Kind == batching.Done && i >= 0
	}, `a turn was charged for \S+, and was used for \S+`},
	{"charges for nothing", func(g *game, ev batching.Event) bool {
		i := g.find(batching.Yield)
		if ev.Kind != batching.Done && i >= 0 {
			g.out.List[i].Ran++
		}
		return ev.Kind != batching.Done && i >= 0
	}, `a turn was charged for 1ns, and was not used`},
	{"gives back what it does not have", func(g *game, ev batching.Event) bool {
		return g.turns == 0 && ev.Kind != batching.Done && ev.Kind != batching.Turn && g.add(batching.Action{Kind: batching.Yield})
	}, `a turn was given back that was not there`},
}

var inWakes = []saboteur{
	{"does not wake for a deadline", func(g *game, _ batching.Event) bool {
		if !slices.ContainsFunc(g.waiting(), func(it *batching.Item) bool { return it.Deadline == g.out.Wake }) {
			return false
		}
		g.out.Wake = batching.Never
		return true
	}, `the core wants to be woken at .+, but is needed at \S+`},
	{"wakes too late for a timeout", func(g *game, ev batching.Event) bool {
		if g.spice&deadlines != 0 || ev.Kind != batching.Arrive || !ev.Item.Queued() || g.oneThatIs(parked) > 0 || g.out.Wake == batching.Never {
			return false
		}
		g.out.Wake++
		return true
	}, `the core wants to be woken at \S+, but is needed at \S+`},
	{"does not wake for the delay", func(g *game, ev batching.Event) bool {
		if len(g.cfg.Levels) > 0 || g.spice&deadlines != 0 || !g.nobodyElseComes(ev) || g.find(batching.Unpark) >= 0 || g.out.Wake == batching.Never {
			return false
		}
		g.out.Wake = batching.Never
		return true
	}, `the core wants to be woken at .+, but is needed at \S+`},
	{"wakes in the past", func(g *game, _ batching.Event) bool {
		g.out.Wake = g.now
		return true
	}, `the core wants to be woken at \S+, which has passed`},
	{"wakes for nothing", func(g *game, _ batching.Event) bool {
		if g.out.Wake <= g.now+1 {
			return false
		}
		g.out.Wake = g.now + 1
		return true
	}, `the core wants to be woken at \S+, but has nothing to do before \S+`},
}

// onRun returns a saboteur that changes a batch.
func onRun(change func(g *game, a *batching.Action) bool) func(*game, batching.Event) bool {
	return func(g *game, _ batching.Event) bool {
		i := g.find(batching.Run)
		if i < 0 {
			return false
		}
		a := g.out.List[i]
		a.Items = slices.Clone(a.Items) // the core's memory
		if !change(g, &a) {
			return false
		}
		g.out.List[g.find(batching.Run)] = a
		return true
	}
}

// addToRun returns a saboteur that adds a request to a batch.
func addToRun(fits func(a *batching.Action, it *batching.Item) bool) func(*game, batching.Event) bool {
	return onRun(func(g *game, a *batching.Action) bool {
		for _, it := range g.waiting() {
			if fits(a, it) {
				a.Items = append(a.Items, it)
				return true
			}
		}
		return false
	})
}

// onWaiting returns a saboteur that applies a to a waiting request.
func onWaiting(a batching.Action) func(*game, batching.Event) bool {
	return func(g *game, _ batching.Event) bool {
		queue := g.waiting()
		if len(queue) == 0 {
			return false
		}
		a.Item = queue[0]
		return g.add(a)
	}
}

// afterEach returns a saboteur that adds a after each action do, for the same request.
func afterEach(do batching.ActionKind, a batching.Action) func(*game, batching.Event) bool {
	return func(g *game, _ batching.Event) bool {
		i := g.find(do)
		if i < 0 {
			return false
		}
		extra := g.out.List[i]
		extra.Kind = a.Kind
		return g.add(extra)
	}
}

// forgets returns a saboteur that drops answers with the verdict. It skips steps in which
// that would violate another guarantee first.
func forgets(v batching.Verdict) func(*game, batching.Event) bool {
	return func(g *game, ev batching.Event) bool {
		i := slices.IndexFunc(g.out.List, func(a batching.Action) bool { return a.Kind == batching.Reject && a.Verdict == v })
		if i < 0 || g.cfg.KeepOrder || g.find(batching.Run) >= 0 || g.find(batching.Unpark) >= 0 {
			return false
		}
		if leaver := ev.Kind == batching.Cancel && ev.Item == g.out.List[i].Item; leaver && v != batching.Cancelled {
			return false
		}
		return ev.Kind != batching.Arrive && g.drop(i)
	}
}

func (g *game) find(do batching.ActionKind) int {
	return slices.IndexFunc(g.out.List, func(a batching.Action) bool { return a.Kind == do })
}

func (g *game) findLast(do batching.ActionKind) int {
	for i, a := range slices.Backward(g.out.List) {
		if a.Kind == do {
			return i
		}
	}
	return -1
}

func (g *game) drop(i int) bool {
	if i >= 0 {
		g.out.List = slices.Delete(g.out.List, i, i+1)
	}
	return i >= 0
}

func (g *game) add(a batching.Action) bool {
	g.out.List = append(g.out.List, a)
	return true
}

// waiting returns the waiting items, by arrival.
func (g *game) waiting() []*batching.Item {
	return slices.DeleteFunc(slices.Clone(g.open), func(it *batching.Item) bool { return !it.Queued() })
}

// oneThatIs returns the number of an instance that was in the given state before the
// step, or 0.
func (g *game) oneThatIs(s placeState) int {
	return 1 + slices.IndexFunc(g.instances[:], func(p place) bool { return p.state == s })
}

// holds reports whether the item is in a running batch.
func (g *game) holds(it *batching.Item) bool {
	return slices.ContainsFunc(g.instances[:], func(p place) bool {
		return p.state == running && slices.Contains(p.batch, it)
	})
}

// nobodyElseComes reports whether no instance is awake after the step, apart from the one
// that took a batch in it.
func (g *game) nobodyElseComes(ev batching.Event) bool {
	for i, p := range g.instances {
		if p.state == awake && (ev.Kind != batching.Take || ev.Instance != i+1) {
			return false
		}
	}
	return ev.Kind != batching.Up && ev.Kind != batching.Done
}

// runsOneThat adds a request that was answered with the verdict to a batch.
func runsOneThat(why func(batching.Verdict) bool) func(*game, batching.Event) bool {
	return onRun(func(g *game, a *batching.Action) bool {
		i := g.find(batching.Reject)
		if i < 0 || !why(g.out.List[i].Verdict) || g.holds(g.out.List[i].Item) {
			return false
		}
		a.Items = []*batching.Item{g.out.List[i].Item}
		return (a.Items[0].Instance == 0 || a.Items[0].Instance == a.Instance) && g.drop(i)
	})
}
