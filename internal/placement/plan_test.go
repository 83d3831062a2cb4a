package placement

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/device"
)

// curve is that of a model with a fixed cost of 5 ms and 0.5 ms per row.
var curve = device.Curve{Fixed: 5 * time.Millisecond, PerRow: 500 * time.Microsecond}

func model(name string, rate float64) Model {
	return Model{Name: name, Digest: "sha256:" + name, Bytes: 10, Curve: curve, Efficient: 31, Objective: 50 * time.Millisecond, Rate: rate, Asked: true}
}

// nodes returns nodes a0, b0, c0, a1, … in zones a, b, c.
func nodes(n int, bytes int64) (all []Node) {
	for i := range n {
		zone := string(rune('a' + i%3))
		all = append(all, Node{Name: fmt.Sprintf("%s%d", zone, i/3), Zone: zone, Bytes: bytes})
	}
	return all
}

// hold returns the nodes with all planned copies ready, of 10 bytes each.
func hold(all []Node, plan *Plan) []Node {
	all = slices.Clone(all)
	for i := range all {
		all[i].Copies = nil
		for _, p := range plan.Models {
			if find(p.Copies, all[i].Name, func(c *Copy) string { return c.Node }) != nil {
				all[i].Copies = append(all[i].Copies, Loaded{Model: p.Model, Bytes: 10, Ready: true})
			}
		}
	}
	return all
}

// withRates returns the nodes with the rates of models divided between their active copies.
func withRates(all []Node, plan *Plan, models []Model) []Node {
	all = slices.Clone(all)
	for i := range all {
		all[i].Copies = slices.Clone(all[i].Copies)
		for j := range all[i].Copies {
			c := &all[i].Copies[j]
			p := plan.Find(c.Model)
			if p == nil {
				continue
			}
			if at := find(p.Copies, all[i].Name, func(c *Copy) string { return c.Node }); at != nil && at.Active {
				c.Rate = find(models, c.Model, func(m *Model) string { return m.Name }).Rate / float64(p.Active)
			}
		}
	}
	return all
}

// text describes copies as "a0* b0* c0", with a star for active ones.
func text(p *Placement) string {
	words := []string{}
	for _, c := range p.Copies {
		words = append(words, c.Node+strings.Repeat("*", btoi(c.Active)))
	}
	if p.Home != "" {
		words = append(words, "home "+p.Home)
	}
	return strings.Join(words, " ")
}

func zonesOf(p *Placement, active bool) map[byte]int {
	zones := map[byte]int{}
	for _, c := range p.Copies {
		if c.Active || !active {
			zones[c.Node[0]]++
		}
	}
	return zones
}

func TestTheBatchTakesAtMostAQuarterOfTheObjective(t *testing.T) {
	for _, c := range []struct {
		efficient int
		objective time.Duration
		perRow    time.Duration
		want      int
	}{
		{31, 50 * time.Millisecond, 500 * time.Microsecond, 15},
		{31, 50 * time.Millisecond, 2500 * time.Microsecond, 3},
		{8, 50 * time.Millisecond, 500 * time.Microsecond, 8},
		{31, 0, 500 * time.Microsecond, 31},
		{31, 4 * time.Millisecond, 500 * time.Microsecond, 1},
		{0, 0, 0, 1},
	} {
		m := Model{Efficient: c.efficient, Objective: c.objective, Curve: device.Curve{Fixed: 5 * time.Millisecond, PerRow: c.perRow}}
		if got := m.PlannedBatch(); got != c.want {
			t.Errorf("efficient %d, objective %v, %v per row: batch %d, want %d", c.efficient, c.objective, c.perRow, got, c.want)
		}
	}
}

func TestCopiesFollowFromRateAndCurve(t *testing.T) {
	// A batch of 15 takes 12.5 ms, so a copy that is busy for 0.6 of the time serves 720 requests/s.
	for _, c := range []struct {
		rate                 float64
		asked                bool
		zones, active, spare int
	}{
		{0, false, 3, 0, 0},
		{0, true, 3, 1, 0},
		{0.1, true, 3, 2, 1},
		{1440, true, 3, 2, 1},
		{1441, true, 3, 3, 2},
		{7200, true, 3, 10, 5},
		{7200, true, 2, 10, 10},
		{7200, true, 1, 10, 0},
	} {
		m := model("m", c.rate)
		m.Asked = c.asked
		got := m.need(nil, c.zones)
		if got.Active != c.active || got.Spare != c.spare {
			t.Errorf("%v req/s, %d zones: %d active and %d spare copies, want %d and %d", c.rate, c.zones, got.Active, got.Spare, c.active, c.spare)
		}
	}
}

func TestAModelInUseIsActiveInTwoZonesWithASpareInTheThird(t *testing.T) {
	plan := Config{}.Plan(nil, nodes(9, 100), []Model{model("m", 10)}, 0)
	p := plan.Find("m")
	if got := zonesOf(p, false); !reflect.DeepEqual(got, map[byte]int{'a': 1, 'b': 1, 'c': 1}) {
		t.Errorf("copies at %s, want one in each zone", text(p))
	}
	if got := zonesOf(p, true); len(got) != 2 {
		t.Errorf("active copies at %s, want two zones", text(p))
	}
}

// Models of a node may have grown, so that it has less memory than usual: one that fits by itself is
// still loaded there, and the refusal of one that does not says why.
func TestAModelThatFitsNoNodeHasAHome(t *testing.T) {
	nodes := []Node{{Name: "a", Bytes: 10, Draining: true}, {Name: "b", Bytes: 4}}
	if home := (Config{}).Plan(nil, nodes, []Model{{Name: "m", Bytes: 5}}, 0).Find("m").Home; home != "b" {
		t.Errorf("its home is %q, want b", home)
	}
	nodes = append(nodes, Node{Name: "c", Bytes: 5})
	if home := (Config{}).Plan(nil, nodes, []Model{{Name: "m", Bytes: 5}}, 0).Find("m").Home; home != "c" {
		t.Errorf("its home is %q, want c, where it fits", home)
	}
}

func TestAModelThatWasNeverAskedForHasOnlyAHome(t *testing.T) {
	cold := model("cold", 0)
	cold.Asked = false
	plan := Config{}.Plan(nil, nodes(9, 100), []Model{cold, model("idle", 0)}, 0)
	if p := plan.Find("cold"); len(p.Copies) != 0 || p.Home == "" {
		t.Errorf("the model that was never asked for is at %q, want a home only", text(p))
	}
	if p := plan.Find("idle"); len(p.Copies) != 1 || p.Home != "" {
		t.Errorf("the idle model is at %q, want one copy", text(p))
	}
}

func TestACopyThatWasLoadedOnDemandStays(t *testing.T) {
	cold := model("cold", 0)
	cold.Asked = false
	all := nodes(9, 100)
	plan := Config{}.Plan(nil, all, []Model{cold}, 0)
	home := plan.Find("cold").Home
	for i := range all {
		if all[i].Name == home {
			all[i].Copies = []Loaded{{Model: "cold", Bytes: 10, Ready: false}}
		}
	}
	cold.Asked, cold.Rate, cold.Reported = true, 1, time.Second
	plan = Config{}.Plan(plan, all, []Model{cold}, time.Second)
	if p := plan.Find("cold"); !strings.Contains(text(p), home+"*") {
		t.Errorf("the model is at %q, want an active copy at its home %s", text(p), home)
	}
	for _, s := range Steps(plan, all, []Model{cold}) {
		if s.Unload {
			t.Errorf("%v: the node has just loaded it", s)
		}
	}
	if r := Routes(plan, all)[0]; r.Home == "" || len(r.Active) > 0 {
		t.Errorf("while the copy loads, the route is %+v, want a home", r)
	}
}

func TestANodeWithTheFilesIsPreferred(t *testing.T) {
	all := nodes(9, 100)
	for i := range all {
		if all[i].Name[1] == '2' {
			all[i].Cached = []string{"sha256:m"}
		}
	}
	if got := text(Config{}.Plan(nil, all, []Model{model("m", 10)}, 0).Find("m")); strings.ReplaceAll(got, "*", "") != "a2 b2 c2" {
		t.Errorf("copies at %s, want those that have the files", got)
	}
}

func TestCopiesAreRaisedAfterTwoReportsAndLoweredAfterTenMinutes(t *testing.T) {
	all := nodes(30, 100)
	m := model("m", 1440)
	plan := Config{}.Plan(nil, all, []Model{m}, 0)
	report := func(at time.Duration, rate float64, want int, why string) {
		t.Helper()
		m.Rate, m.Reported = rate, at
		plan = Config{}.Plan(plan, all, []Model{m}, at)
		if got := plan.Find("m").Active; got != want {
			t.Errorf("at %v: %d active copies, want %d: %s", at, got, want, why)
		}
	}
	report(1*time.Second, 7200, 2, "the first report")
	report(1*time.Second, 7200, 2, "the same report again")
	report(2*time.Second, 7200, 10, "the second report")
	report(3*time.Second, 6500, 10, "within the hysteresis")
	report(4*time.Second, 1440, 10, "low")
	report(5*time.Second, 7200, 10, "high again: the ten minutes begin anew")
	report(10*time.Second, 1440, 10, "low since now")
	report(60*time.Second, 3000, 10, "the highest rate of the ten minutes")
	report(609*time.Second, 1440, 10, "less than ten minutes")
	report(610*time.Second, 1440, 5, "ten minutes: 3000 requests/s need 4.2 copies, and a fifth more")
	plan = Config{}.Plan(plan, all, []Model{m}, time.Hour)
	if got := plan.Find("m").Active; got != 5 {
		t.Errorf("an hour without reports: %d active copies, want 5 as before", got)
	}
}

func TestAThirdOfTheNodesVanishingFreezesThePlan(t *testing.T) {
	all, models := nodes(9, 100), []Model{model("m", 10), model("n", 5000)}
	first := Config{}.Plan(nil, all, models, 0)
	without := func(lost int) []Node { return hold(all, first)[lost:] }

	if p := (Config{}).Plan(first, without(2), models, time.Second); p.Frozen != "" {
		t.Errorf("two of nine nodes vanished: %q, want a new plan", p.Frozen)
	}
	p := Config{}.Plan(first, without(3), models, time.Second)
	if want := "3 of 9 nodes vanished at once: the plan is frozen until they return, or for 10m0s"; p.Frozen != want {
		t.Errorf("three of nine nodes vanished: %q, want %q", p.Frozen, want)
	}
	if !reflect.DeepEqual(p.Models, first.Models) || len(Steps(p, without(3), models)) != 0 {
		t.Error("a frozen plan moves models")
	}
	if p := (Config{}).Plan(p, hold(all, first), models, time.Minute); p.Frozen != "" {
		t.Errorf("the nodes returned: %q, want a new plan", p.Frozen)
	}
	if p := (Config{}).Plan(p, without(3), models, 10*time.Minute); p.Frozen == "" {
		t.Error("the plan acts less than ten minutes after the nodes vanished")
	}
	if p := (Config{}).Plan(p, without(3), models, 10*time.Minute+time.Second); p.Frozen != "" || len(p.Nodes) != 6 {
		t.Errorf("ten minutes later: %q with %d nodes, want a plan for those that are left", p.Frozen, len(p.Nodes))
	}
}

// Nodes behind a broken switch are noticed one by one, because their polls end at different times.
func TestNodesThatVanishOneByOneFreezeThePlan(t *testing.T) {
	all, models := nodes(4, 100), []Model{model("m", 10)}
	plan, now := Config{}.Plan(nil, all, models, 0), time.Second
	for lost := 1; lost < 4; lost, now = lost+1, now+3*time.Second/2 {
		if plan = (Config{}).Plan(plan, all[lost:], models, now); (plan.Frozen != "") != (lost > 1) {
			t.Errorf("%d nodes lost: %q", lost, plan.Frozen)
		}
	}
	plan = Config{}.Plan(nil, all, models, 0)
	for lost := 1; lost < 4; lost++ { // over time they are lost one by one
		if plan = (Config{}).Plan(plan, all[lost:], models, Time(lost)*time.Minute); plan.Frozen != "" && lost < 3 {
			t.Errorf("%d nodes lost, a minute after the last: %q", lost, plan.Frozen)
		}
		plan = Config{}.Plan(plan, all[lost:], models, Time(lost)*time.Minute+30*time.Second)
		if len(plan.Nodes) != 4-lost {
			t.Errorf("half a minute later the plan has %v", plan.Nodes)
		}
	}
}

func TestWithoutReportsThePlanStaysFrozen(t *testing.T) {
	all, models := nodes(1, 100), []Model{model("m", 10)}
	plan := Config{}.Plan(nil, all, models, 0)
	for _, now := range []Time{time.Second, time.Hour} {
		next := Config{}.Plan(plan, nil, models, now)
		if want := "no node reports: the plan is frozen until some do"; next.Frozen != want || !reflect.DeepEqual(next.Models, plan.Models) {
			t.Errorf("at %v: %q and %v, want %q and no change", now, next.Frozen, next.Models, want)
		}
		plan = next
	}
}

// A node that reports nonsense must not occupy the cell for ever.
func TestAnAbsurdRateNeedsAFiniteNumberOfCopies(t *testing.T) {
	m := model("m", 1e18)
	if p := (Config{}).Plan(nil, nodes(3, 100), []Model{m}, 0); len(p.Models[0].Copies) != 3 || p.Models[0].Active > mostActive {
		t.Errorf("%+v, want a copy on each node", p.Models[0])
	}
}

func TestOneNodeOfThreeDoesNotFreezeThePlan(t *testing.T) {
	all, models := nodes(3, 100), []Model{model("m", 10)}
	first := Config{}.Plan(nil, all, models, 0)
	if p := (Config{}).Plan(first, all[1:], models, time.Second); p.Frozen != "" {
		t.Errorf("one node vanished: %q, want a new plan", p.Frozen)
	}
}

func TestATenantOverItsQuotaLosesItsColdestModels(t *testing.T) {
	models := []Model{model("hot", 100), model("warm", 10), model("cold", 1), model("other", 0.1)}
	for i := range models[:3] {
		models[i].Tenant = "t"
	}
	for name, quota := range map[string]Quota{"copies": {Copies: 6}, "bytes": {Bytes: 69}, "device time": {Device: 0.348}} {
		plan := Config{Quotas: map[string]Quota{"t": quota}}.Plan(nil, nodes(9, 100), models, 0)
		for _, m := range models {
			p := plan.Find(m.Name)
			if over := m.Name == "cold"; p.OverQuota != over || (len(p.Copies) == 0) != over {
				t.Errorf("quota of %s: %s is at %q, over quota %v", name, m.Name, text(p), p.OverQuota)
			}
		}
	}
}

// A model that is asked for more often than its tenant's quota allows keeps the copies it has.
func TestAModelIsNotLostBecauseItsRateRises(t *testing.T) {
	m, c := model("m", 1), Config{Quotas: map[string]Quota{"t": {Copies: 6}}}
	m.Tenant = "t"
	plan := c.Plan(nil, nodes(9, 100), []Model{m}, 0)
	before := text(plan.Find("m"))
	m.Rate = 5000
	for i := range 5 {
		m.Reported = Time(i+1) * 10 * time.Second
		plan = c.Plan(plan, hold(nodes(9, 100), plan), []Model{m}, m.Reported)
		if p := plan.Find("m"); p.OverQuota || text(p) != before {
			t.Errorf("after %d reports it is at %q, over quota %v, and was at %q", i+1, text(p), p.OverQuota, before)
		}
	}
}

// Otherwise the model would have no copy, and its rate would stay 0.
func TestAModelDoesNotLoseItsQuotaInALull(t *testing.T) {
	models, c := []Model{model("busy", 100), model("idle", 0)}, Config{Quotas: map[string]Quota{"t": {Copies: 3}}}
	models[0].Tenant, models[1].Tenant = "t", "t"
	plan := c.Plan(nil, nodes(9, 100), models, 0)
	before := text(plan.Find("busy"))
	models[0].Rate, models[0].Reported, models[1].Reported = 0, 10*time.Second, 10*time.Second
	plan = c.Plan(plan, hold(nodes(9, 100), plan), models, 10*time.Second)
	if p := plan.Find("busy"); p.OverQuota || text(p) != before || !plan.Find("idle").OverQuota {
		t.Errorf("busy is at %q, over quota %v, and was at %q", text(p), p.OverQuota, before)
	}
	models[1].Rate = 1
	if p := c.Plan(plan, hold(nodes(9, 100), plan), models, 20*time.Second).Find("idle"); p.OverQuota {
		t.Error("the model with requests has no place beside one without")
	}
}

func TestEqualInputGivesEqualPlansByteForByte(t *testing.T) {
	chance := rand.New(rand.NewPCG(1, 2))
	all, models := randomCell(chance)
	want, _ := json.Marshal(Config{}.Plan(nil, all, models, 0))
	for range 20 {
		chance.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		chance.Shuffle(len(models), func(i, j int) { models[i], models[j] = models[j], models[i] })
		if got, _ := json.Marshal(Config{}.Plan(nil, all, models, 0)); string(got) != string(want) {
			t.Fatal("the order of the arguments changes the plan")
		}
	}
}

func TestALostPlanIsRebuiltFromTheNodes(t *testing.T) {
	all, models := nodes(12, 100), []Model{model("m", 10), model("n", 5000), model("o", 0)}
	plan := Config{}.Plan(nil, all, models, 0)
	check := func(when string) {
		t.Helper()
		again := Config{}.Plan(nil, withRates(hold(all, plan), plan, models), models, time.Second)
		for _, p := range plan.Models {
			if got, want := text(again.Find(p.Model)), text(&p); got != want {
				t.Errorf("%s: %s is at %s, want %s as before", when, p.Model, got, want)
			}
		}
	}
	check("at first")
	// A node that was lost and came back: active copies have moved.
	plan = Config{}.Plan(plan, hold(all, plan)[1:], models, time.Second)
	plan = Config{}.Plan(plan, hold(all, plan), models, 2*time.Second)
	check("after a loss")
	models[1].Rate, models[1].Reported = 100, 3*time.Second // its copies are lowered ten minutes later
	plan = Config{}.Plan(plan, hold(all, plan), models, 3*time.Second)
	check("with more copies than the rate needs")
	models[1].Rate = 0
	plan = Config{}.Plan(plan, hold(all, plan), models, 4*time.Second)
	check("without requests")
}

func TestASpareThatGetsFewRequestsStaysASpare(t *testing.T) {
	all, models := nodes(3, 100), []Model{model("m", 100)}
	plan := Config{}.Plan(nil, all, models, 0)
	held := withRates(hold(all, plan), plan, models)
	for i := range held {
		held[i].Copies[0].Rate++ // Envoys tried it elsewhere before
	}
	if got, want := text(Config{}.Plan(nil, held, models, 0).Find("m")), text(plan.Find("m")); got != want {
		t.Errorf("m is at %s, want %s", got, want)
	}
}

// The first of two active copies does not fit any more: the other one is still counted at its
// node, and the model gets a copy elsewhere.
func TestACopyThatDoesNotFitAnyMoreIsReplaced(t *testing.T) {
	for shrinks := range 2 {
		all := nodes(3, 100)
		for i := range all {
			all[i].Zone = "a"
		}
		m := model("m", 10)
		m.Bytes = 10
		plan := Config{}.Plan(nil, all, []Model{m}, 0)
		before := plan.Models[0].Copies
		if len(before) != 2 {
			t.Fatalf("%s", text(&plan.Models[0]))
		}
		*find(all, before[shrinks].Node, func(n *Node) string { return n.Name }) = Node{Name: before[shrinks].Node, Zone: "a", Bytes: 5}
		next := Config{}.Plan(plan, hold(all, plan), []Model{m}, time.Second)
		at := func(node string) bool {
			return find(next.Models[0].Copies, node, func(c *Copy) string { return c.Node }) != nil
		}
		if len(next.Models[0].Copies) != 2 || at(before[shrinks].Node) || !at(before[1-shrinks].Node) {
			t.Errorf("%s without room at %s", text(&next.Models[0]), before[shrinks].Node)
		}
	}
}

func TestADrainingNodeGetsNoCopies(t *testing.T) {
	all, models := nodes(9, 100), []Model{model("m", 10), model("n", 5000)}
	first := Config{}.Plan(nil, all, models, 0)
	for i := range all {
		all := hold(all, first)
		all[i].Draining = true
		for _, p := range (Config{}).Plan(first, all, models, time.Second).Models {
			if strings.Contains(text(&p), all[i].Name) {
				t.Errorf("%s drains, and %s is at %s", all[i].Name, p.Model, text(&p))
			}
		}
	}
}

func TestCopiesThatMatterMoreDisplaceOthers(t *testing.T) {
	all := nodes(3, 20) // two copies each
	idle := []Model{model("i0", 0), model("i1", 0), model("i2", 0), model("i3", 0), model("i4", 0), model("i5", 0)}
	first := Config{}.Plan(nil, all, idle, 0)
	models := append(idle, model("used", 10))
	plan := Config{}.Plan(first, hold(all, first), models, time.Second)
	if got := text(plan.Find("used")); len(plan.Find("used").Copies) != 3 {
		t.Errorf("the model in use is at %q, want three copies in full memory", got)
	}
	left := 0
	for _, m := range idle {
		left += len(plan.Find(m.Name).Copies)
	}
	if left != 3 {
		t.Errorf("%d idle models have a copy, want the 3 that there is room for", left)
	}
}

func TestACopyLeavesANodeThatCouldNotLoadIt(t *testing.T) {
	m := model("m", 0)
	m.Copies = 1
	cold := model("cold", 0)
	for name, c := range map[string]struct {
		bytes          []int64    // of the nodes
		avoided        [][]string // of the nodes
		failed         [][]string
		from, to       string
		coldAt, coldTo string
	}{
		"to another one":                     {[]int64{10, 10}, [][]string{{"m"}, nil}, nil, "a0", "b0", "", ""},
		"but not if the others have no room": {[]int64{10, 5}, [][]string{{"m"}, nil}, nil, "a0", "a0", "", ""},
		"but not if they could not either":   {[]int64{10, 10}, [][]string{{"m"}, {"m"}}, nil, "a0", "a0", "", ""},
		"in place of one that is not in use": {[]int64{10, 10}, [][]string{{"m"}, nil}, nil, "a0", "b0", "b0", "a0"},
		"unless many could not a moment ago": {[]int64{10, 10, 10, 10}, [][]string{{"m"}, {"m"}, {"m"}, nil}, [][]string{{"m"}, {"m"}, {"m"}, nil}, "a0", "a0", "", ""},
		"but stays where no copy has failed": {[]int64{10, 10}, [][]string{{"other"}, {"m"}}, nil, "a0", "a0", "", ""},
		"of four, to the one that is left":   {[]int64{10, 10, 10, 10}, [][]string{{"m"}, {"m"}, {"m"}, nil}, [][]string{{"m"}, nil, nil, nil}, "a0", "a1", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			all := nodes(len(c.bytes), 0)
			for i := range all {
				all[i].Zone, all[i].Bytes, all[i].Avoided = "", c.bytes[i], c.avoided[i]
				if c.failed != nil {
					all[i].Failed = c.failed[i]
				}
			}
			previous := &Plan{Models: []Placement{{Model: "m", Active: 1, InUse: true, Copies: []Copy{{c.from, true}}}}}
			models := []Model{m}
			if c.coldAt != "" {
				previous.Models = append([]Placement{{Model: "cold", Active: 1, Copies: []Copy{{c.coldAt, true}}}}, previous.Models...)
				models = []Model{cold, m}
			}
			p := Config{}.Plan(previous, all, models, 0)
			if got := p.Find("m").Copies; !slices.Equal(got, []Copy{{c.to, true}}) {
				t.Errorf("its copies are %v, want one on %s", got, c.to)
			}
			if c.coldAt != "" && !slices.Equal(p.Find("cold").Copies, []Copy{{c.coldTo, true}}) {
				t.Errorf("the model that is not in use is at %v, want %s", p.Find("cold").Copies, c.coldTo)
			}
		})
	}
}
