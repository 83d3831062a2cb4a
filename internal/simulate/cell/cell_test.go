package cell

import (
	"flag"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/device"
)

// standard returns the cell of docs/lab/cell.md: models with rates by Zipf's law, and a load
// relative to what the devices could do without batches.
func standard(nodes, models int, ratio, load float64, balancer Balancer, seed uint64) Config {
	const fixed = 5 * time.Millisecond
	return Config{
		Nodes: Nodes(nodes, 3, 0),
		Models: Distribution{
			Models: models, Zipf: 1, Fixed: fixed, Spread: 0.3, RowShare: ratio, MaxRows: 32, Objective: 50 * time.Millisecond,
			LoadTime: 2 * time.Second, Bytes: 1 << 30, Seed: seed,
			Rate: load * float64(nodes) / (fixed.Seconds() * (1 + ratio)),
		}.Draw(),
		Proxies: max(2, nodes/20), Balancer: balancer, Network: 500 * time.Microsecond, ReportEvery: 5 * time.Second,
		WarmUp: 10 * time.Second, Duration: 30 * time.Second, Seed: seed,
	}
}

// small returns a cell of nine nodes and a few models that runs quickly.
func small(load float64) Config {
	cfg := standard(9, 20, 0.1, load, ActiveSet, 1)
	cfg.WarmUp, cfg.Duration, cfg.ReportEvery = time.Second, 6*time.Second, time.Second
	return cfg
}

func mustRun(t *testing.T, cfg Config) *Result {
	t.Helper()
	r, err := Run(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestOneRequestTakesItsBatchAndTheNetwork(t *testing.T) {
	r := mustRun(t, Config{
		Nodes:    Nodes(1, 1, 0),
		Models:   []Model{{Name: "m", Curve: device.Curve{Fixed: 5 * time.Millisecond}, Objective: 50 * time.Millisecond, Rate: 1}},
		Network:  time.Millisecond,
		Duration: 10 * time.Second,
		Recorded: []Arrival{{At: time.Second}, {At: 2 * time.Second}},
	})
	if r.Sent != 2 || r.InObjective != 1 || r.Batches != 2 || r.MeanBatch != 1 || r.DeviceTime != 0.001 {
		t.Errorf("%+v", r)
	}
	if off := r.P50 - 7*time.Millisecond; off.Abs() > 70*time.Microsecond {
		t.Errorf("p50 is %v, want 7 ms", r.P50)
	}
}

func TestRequestsThatTheRunEndsBeforeAreNotCounted(t *testing.T) {
	cfg := Config{
		Nodes:    Nodes(2, 1, 0),
		Models:   []Model{{Name: "m", Curve: device.Curve{Fixed: 800 * time.Millisecond}, Objective: 3 * time.Second, Rate: 1}},
		Duration: 10 * time.Second,
	}
	for at := 400 * time.Millisecond; at < cfg.Duration; at += time.Second {
		cfg.Recorded = append(cfg.Recorded, Arrival{At: at})
	}
	r := mustRun(t, cfg)
	if r.Sent != 7 || r.InObjective != 1 {
		t.Errorf("%d requests, %v of them in the objective, want all 7 of the first seven seconds", r.Sent, r.InObjective)
	}
	for n, s := range r.Seconds {
		if s.InObjective != s.Sent {
			t.Errorf("second %d: %d of %d requests in the objective, although no request misses it", n, s.InObjective, s.Sent)
		}
	}
}

func TestTheSameSeedGivesTheSameResult(t *testing.T) {
	for _, b := range Balancers {
		cfg := small(1.5)
		cfg.Balancer = b
		cfg.Events = []Event{{Kind: NodeLost, At: 2 * time.Second, Name: "node-0004"}}
		first := mustRun(t, cfg)
		if again := mustRun(t, cfg); !reflect.DeepEqual(first, again) {
			t.Errorf("%s: two runs differ:\n%+v\n%+v", b, first, again)
		}
		cfg.Seed++
		if other := mustRun(t, cfg); other.Hash == first.Hash {
			t.Errorf("%s: another seed gives the same hash", b)
		}
	}
}

func TestFewActiveCopiesMakeLargerBatches(t *testing.T) {
	cfg := standard(30, 300, 0.1, 0.8, ActiveSet, 1)
	cfg.WarmUp, cfg.Duration = time.Second, 4*time.Second
	active := mustRun(t, cfg)
	cfg.Balancer = LeastRequest
	all := mustRun(t, cfg)
	if active.MeanBatch < 1.05*all.MeanBatch || active.DeviceTime > 0.95*all.DeviceTime {
		t.Errorf("batches of %.2f and device time %.3f with few active copies, %.2f and %.3f with all", active.MeanBatch, active.DeviceTime, all.MeanBatch, all.DeviceTime)
	}
}

// TestEventsHappen checks that each event changes what it should, beside a run without it.
func TestEventsHappen(t *testing.T) {
	at := 2 * time.Second
	control := mustRun(t, small(0.5))
	if control.Lost > 0 || control.InObjective < 0.99 || control.Loads > 0 {
		t.Fatalf("without an event: %+v", control)
	}
	for _, c := range []struct {
		event   Event
		happens func(*Result) bool
	}{
		{Event{Kind: NodeLost, Name: "node-0004"}, func(r *Result) bool { return r.Retried > control.Retried && r.Loads > 0 }},
		{Event{Kind: ZoneLost, Name: "zone-1"}, func(r *Result) bool {
			return r.Retried > control.Retried && strings.Contains(r.Rounds[2].Frozen, "3 of 9 nodes vanished") && r.Loads == 0
		}},
		{Event{Kind: ProxyLost, Number: 1}, func(r *Result) bool { return r.Hash != control.Hash && r.Lost == 0 }},
		{Event{Kind: FlashCrowd, First: 0, Last: 1, Times: 4}, func(r *Result) bool { return r.Sent > control.Sent*3/2 && r.Loads > 0 }},
		{Event{Kind: Upgrade, Number: 1}, func(r *Result) bool { return r.Loads > 0 && r.Unloads > 0 && r.Lost == 0 }},
		{Event{Kind: ReportsStop}, func(r *Result) bool {
			return r.Loads == 0 && r.Hash == control.Hash && strings.Contains(r.Rounds[4].Frozen, "no node reports")
		}},
		{Event{Kind: SlowNode, Name: "node-0004", Times: 3}, func(r *Result) bool {
			return r.DeviceTime > 1.05*control.DeviceTime && r.InObjective < control.InObjective
		}},
	} {
		cfg := small(0.5)
		c.event.At = at
		cfg.Events = []Event{c.event}
		r := mustRun(t, cfg)
		if !c.happens(r) {
			t.Errorf("%s: %+v", c.event.Kind, r)
		}
		if r.InObjective < 0.9 {
			t.Errorf("%s: only %.1f %% in the objective", c.event.Kind, 100*r.InObjective)
		}
	}
}

func TestWrongEventsAreRefused(t *testing.T) {
	for want, e := range map[string]Event{
		`event "node lost" at 0s: no node is called "x"`:              {Kind: NodeLost, Name: "x"},
		`event "zone lost" at 0s: no node is in zone "x"`:             {Kind: ZoneLost, Name: "x"},
		`event "proxy lost" at 0s: proxy 2 of 2 does not exist`:       {Kind: ProxyLost, Number: 2},
		`event "flash crowd" at 0s: models 3 to 2 of 20 do not exist`: {Kind: FlashCrowd, First: 3, Last: 2},
		`event "flash crowd" at 0s: times is 0, and must be positive`: {Kind: FlashCrowd},
		`event "sunspots" at 0s: the kind of event is unknown`:        {Kind: "sunspots"},
	} {
		cfg := small(1)
		cfg.Events = []Event{e}
		if _, err := Run(cfg); err == nil || err.Error() != want {
			t.Errorf("%+v: %v, want %q", e, err, want)
		}
	}
}

func TestAllProxiesCannotBeLost(t *testing.T) {
	cfg := small(1)
	cfg.Events = []Event{{Kind: ProxyLost, Number: 0}, {Kind: ProxyLost, Number: 1, At: time.Second}}
	if _, err := Run(cfg); err == nil || !strings.Contains(err.Error(), "all 2 proxies would be lost") {
		t.Error(err)
	}
}

// A balancer without a plan finds the models that a node had before its upgrade.
func TestNodesReturnFromAnUpgradeWithEachBalancer(t *testing.T) {
	for _, b := range Balancers {
		cfg := small(0.1)
		cfg.Balancer, cfg.Duration = b, 220*time.Second
		cfg.Events = []Event{{Kind: Upgrade, At: 2 * time.Second, Number: 1}}
		r := mustRun(t, cfg)
		if last := r.Seconds[len(r.Seconds)-2]; r.Lost > r.Sent/1000 || last.Lost > 0 || last.Sent == 0 {
			t.Errorf("%s: %d of %d requests were lost, %d of %d in the last second", b, r.Lost, r.Sent, last.Lost, last.Sent)
		}
	}
}

// Placement counts rows, as nodes report them.
func TestRequestsOfSeveralRowsNeedMoreCopies(t *testing.T) {
	copies := func(rows int) (n int) {
		cfg := small(0.1)
		for at := time.Duration(0); at < cfg.Duration; at += time.Millisecond {
			cfg.Recorded = append(cfg.Recorded, Arrival{At: at, Model: 0, Rows: rows})
		}
		return mustRun(t, cfg).Rounds[3].Active
	}
	if one, eight := copies(1), copies(8); eight <= one {
		t.Errorf("%d active copies for requests of eight rows, %d for one row", eight, one)
	}
}

func TestAModelWithoutCopiesIsLoadedOnDemand(t *testing.T) {
	cfg := small(0.1)
	cfg.Models[19].Rate = 0
	cfg.Recorded = []Arrival{{At: 2 * time.Second, Model: 19}, {At: 4500 * time.Millisecond, Model: 19}}
	r := mustRun(t, cfg)
	if r.ColdLoads != 1 || r.Sent != 2 || r.InObjective != 0.5 {
		t.Errorf("%d cold loads, %d requests, of which %v in the objective; want 1, 2 and the second", r.ColdLoads, r.Sent, r.InObjective)
	}
}

// An hour of docs/lab/cell.md is `make measure WHAT=cell-hour`.
var largeHour = flag.Bool("hour", false, "the tests that run for an hour have 50 nodes and 500 models")

// hour returns a cell that runs for an hour. Its models are slow unless it is the large one, so
// that few requests make many copies.
func hour() Config {
	cfg := Config{
		Nodes: Nodes(12, 3, 0),
		Models: Distribution{
			Models: 4, Zipf: 1, Fixed: 200 * time.Millisecond, RowShare: 0.5, MaxRows: 4,
			Objective: 2 * time.Second, LoadTime: 2 * time.Second, Rate: 15,
		}.Draw(),
		Proxies: 2, Network: time.Millisecond, ReportEvery: 20 * time.Second, Seed: 1,
	}
	if *largeHour {
		cfg = standard(50, 500, 0.5, 0.9, ActiveSet, 1) // small batches, and so more copies
	}
	cfg.WarmUp, cfg.Duration = time.Minute, time.Hour
	return cfg
}

func TestCopiesFollowADayCurve(t *testing.T) {
	const minute = time.Minute
	cfg := hour()
	cfg.Load = []Change{{0, 0.3}, {15 * minute, 1}, {30 * minute, 0.3}}
	r := mustRun(t, cfg)
	active := func(at time.Duration) int { return r.Rounds[at/cfg.ReportEvery-1].Active }
	low, high := active(14*minute), active(17*minute)
	about := max(1, high/100) // rates vary by chance
	if high <= low {
		t.Fatalf("%d active copies before the rise, %d after it", low, high)
	}
	if got := active(15*minute + 3*cfg.ReportEvery); got < high-about {
		t.Errorf("%d active copies three reports after the rise, want about %d", got, high)
	}
	if got := active(39 * minute); got < active(30*minute)-high/100 {
		t.Errorf("%d active copies nine minutes after the fall, want still %d", got, active(30*minute))
	}
	if got := active(42 * minute); got > low+about {
		t.Errorf("%d active copies twelve minutes after the fall, want about %d", got, low)
	}
	if r.InObjective < 0.99 {
		t.Errorf("%.2f %% in the objective", 100*r.InObjective)
	}
	t.Logf("%d nodes, %d models, %d requests: %.3f %% in the objective; active copies %d before the rise, %d three reports after it, %d after two minutes, %d before and %d twelve minutes after the fall",
		len(cfg.Nodes), len(cfg.Models), r.Sent, 100*r.InObjective, low, active(15*minute+3*cfg.ReportEvery), high, active(30*minute), active(42*minute))
}

func TestWithoutReportsNothingMoves(t *testing.T) {
	cfg := hour()
	cfg.Load = []Change{{0, 0.6}}
	with := mustRun(t, cfg)
	stop := Event{Kind: ReportsStop, At: 10 * time.Minute}
	cfg.Events = []Event{stop}
	r := mustRun(t, cfg)
	moves, frozen := 0, 0
	for _, round := range r.Rounds {
		if round.At > stop.At {
			moves += round.Loads + round.Unload
			frozen += min(1, len(round.Frozen))
		}
	}
	if moves > 0 || frozen == 0 || r.InObjective < with.InObjective-0.001 {
		t.Errorf("without reports: %d moves, %d frozen rounds, %.3f %% in the objective; want no move, frozen rounds, and %.3f %%", moves, frozen, 100*r.InObjective, 100*with.InObjective)
	}
	t.Logf("%d requests: %.3f %% in the objective with reports and %d loads, %.3f %% without reports, no move in %d rounds", r.Sent, 100*with.InObjective, with.Loads, 100*r.InObjective, frozen)
}

// TestTheCellRunsTheCore breaks one rule of batching at a time, and sees it in the cell's figures.
func TestTheCellRunsTheCore(t *testing.T) {
	cfg := small(3)
	cfg.Duration = 3 * time.Second
	whole := mustRun(t, cfg)
	broken := func(change func(*batching.Config)) *Result {
		cfg.Core = func(m *Model) batching.Config {
			core := Untouched(m)
			change(&core)
			return core
		}
		return mustRun(t, cfg)
	}
	if r := broken(func(*batching.Config) {}); r.Hash != whole.Hash {
		t.Error("the figures change without a broken rule")
	}
	if r := broken(func(c *batching.Config) { c.Policy = batching.None{} }); r.MeanBatch != 1 || r.InObjective > whole.InObjective-0.1 {
		t.Errorf("without batches: batches of %.2f, %.1f %% in the objective, and %.1f %% with them", r.MeanBatch, 100*r.InObjective, 100*whole.InObjective)
	}
	if r := broken(func(c *batching.Config) { c.Predictor, c.Objective = nil, 0 }); r.Refused > 0 || r.InObjective > whole.InObjective-0.1 {
		t.Errorf("without admission: %.1f %% refused, %.1f %% in the objective, and %.1f %% with it", 100*r.Refused, 100*r.InObjective, 100*whole.InObjective)
	}
	if r := broken(func(c *batching.Config) { c.Policy = halves{c.Policy} }); r.MeanBatch > 0.9*whole.MeanBatch {
		t.Errorf("with half of each batch: batches of %.2f, and %.2f with all", r.MeanBatch, whole.MeanBatch)
	}
}

// halves takes half of the requests that the policy would take.
type halves struct{ batching.Policy }

func (p halves) Decide(now batching.Time, line batching.Line) batching.Decision {
	d := p.Policy.Decide(now, line)
	d.Take = (d.Take + 1) / 2
	return d
}

// The cell decides in the next round what to do about nodes that died. Until then proxies keep their
// copies, even if another copy becomes ready.
func TestProxiesLearnOfReadyCopiesButNotOfDeadNodes(t *testing.T) {
	for _, dies := range []bool{false, true} {
		c, err := newCell(small(0.5))
		if err != nil {
			t.Fatal(err)
		}
		routed := func(n int32) bool {
			return slices.ContainsFunc(c.routes, func(r route) bool {
				return slices.ContainsFunc(slices.Concat(r.active, r.spare), func(to *copyOf) bool { return to.node == n })
			})
		}
		for m := range c.routes {
			c.routes[m] = route{home: -1}
		}
		if c.look(); routed(0) {
			t.Fatal("proxies learn of copies although none became ready")
		}
		c.control.loading = []Time{0}
		if dies {
			c.kill(1)
		}
		if c.look(); routed(0) == dies {
			t.Errorf("a node died: %v, and proxies learn of copies that are ready: %v", dies, !dies)
		}
		if c.round(); !routed(0) || routed(1) == dies {
			t.Errorf("a node died: %v, and after a round proxies know its copies: %v, and those of another: %v", dies, routed(1), routed(0))
		}
	}
}

// A proxy is an Envoy: it counts the failures of each model by itself.
func TestAProxyEjectsACopyAfterThreeFailuresInARow(t *testing.T) {
	to := &copyOf{inFlight: make([]uint16, 2)}
	now := time.Minute
	observe := func(all ...outcome) (ejects int) {
		for _, o := range all {
			if to.observe((&request{proxy: 1}).with(o), now) {
				ejects++
			}
		}
		return ejects
	}
	if observe(broken, broken, answered, broken, broken, refused) != 0 || to.ejected(1, now) {
		t.Error("ejected after two failures in a row")
	}
	if observe(broken, broken, broken) != 1 || !to.ejected(1, now) || to.ejected(0, now) {
		t.Error("not ejected after three failures, or by a proxy that saw none")
	}
	if now += ejectFor; to.ejected(1, now) {
		t.Error("ejected for longer than Envoy does")
	}
}

func TestARetryGoesToACopyThatWasTriedIfThereIsNoOther(t *testing.T) {
	c := &cell{routes: make([]route, 1), cfg: Config{Balancer: ActiveSet}, chance: rand.New(rand.NewPCG(1, 1))}
	a, b := &copyOf{inFlight: make([]uint16, 1)}, &copyOf{inFlight: make([]uint16, 1)}
	c.routes[0].active = []*copyOf{a, b}
	r := &request{tries: 1, tried: [maxRetries]*copyOf{a}}
	for range 20 {
		if c.pick(r) != b {
			t.Fatal("the copy that was tried is picked again")
		}
	}
	r.tries, r.tried[1] = 2, b
	if c.pick(r) == nil {
		t.Error("no copy is picked, so that a request that was refused counts as lost")
	}
}
