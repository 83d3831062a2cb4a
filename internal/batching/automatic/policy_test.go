package automatic_test

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/batching/automatic"
	"github.com/shoal-serving/shoal/internal/device"
	"github.com/shoal-serving/shoal/internal/explain"
	"github.com/shoal-serving/shoal/internal/simulate"
)

const (
	us = time.Microsecond
	ms = time.Millisecond
)

// A trial is a simulation of one model in virtual time, and its results.
type trial struct {
	policy batching.Policy
	curve  device.Curve
	slower float64 // how many times longer batches take after half of the requests; 0 means 1
	scale  int     // microseconds of a unit; 0 means 1

	requests int
	gap      func(*rand.Rand) float64 // units from one request to the next; nil for a closed loop
	clients  int
	think    [2]int // units, from and to

	sizes   []int
	latency time.Duration // mean
	held    time.Duration // total time for which requests waited while no batch ran
}

func (t *trial) run() {
	unit := us * batching.Time(max(1, t.scale))
	w := simulate.NewWorld(nil, 1)
	chance := rand.New(rand.NewPCG(1, 2))
	sent, answered := 0, 0
	m := w.Add("m", batching.Config{Policy: t.policy, MaxRows: 8}, func(items []*batching.Item) time.Duration {
		takes := t.curve.Takes(len(items))
		if t.slower > 0 && sent > t.requests/2 {
			takes = time.Duration(t.slower * float64(takes))
		}
		return takes
	})
	m.Up(1)
	waiting, running, since, sum := 0, false, batching.Time(0), time.Duration(0)
	passed := func() {
		if waiting > 0 && !running {
			t.held += w.Now() - since
		}
		since = w.Now()
	}
	send := func() {
		if sent == t.requests {
			return
		}
		sent++
		passed()
		waiting++
		at := w.Now()
		m.Arrive(&batching.Item{Rows: 1, Owner: at})
	}
	w.Trace = func(o simulate.Occurrence) {
		switch {
		case o.Ended:
			running = false
			since = o.At
		case o.Action.Kind == batching.Run:
			passed()
			running = true
			waiting -= len(o.Action.Items)
			t.sizes = append(t.sizes, len(o.Action.Items))
		case o.Action.Kind == batching.Deliver:
			sum += o.At - o.Action.Item.Owner.(batching.Time)
			answered++
			if t.gap == nil {
				w.At(o.At+batching.Time(t.think[0]+chance.IntN(t.think[1]-t.think[0]+1))*unit, send)
			}
		}
	}
	for range t.clients {
		w.At(0, send)
	}
	var tick func()
	at := 0.0
	tick = func() {
		send()
		if sent < t.requests {
			at += t.gap(chance)
			w.At(batching.Time(at)*unit, tick)
		}
	}
	if t.gap != nil {
		w.At(0, tick)
	}
	w.Run(batching.Never)
	t.latency = sum / time.Duration(answered)
}

func poisson(mean float64) func(*rand.Rand) float64 {
	return func(r *rand.Rand) float64 { return r.ExpFloat64() * mean }
}

func calibrated(curve device.Curve) *automatic.Policy {
	return automatic.New(automatic.Options{MaxRows: 8, Profile: simulate.Calibrated(curve, nil, 8, 1)})
}

func TestNobodyWaitsWhereBatchingSavesNothing(t *testing.T) {
	curve := device.Curve{PerRow: ms}
	for name, traffic := range map[string]trial{
		"clients":   {clients: 4, think: [2]int{100, 300}},
		"by chance": {gap: poisson(1500)},
		"bursts": {gap: func(r *rand.Rand) float64 {
			if r.IntN(8) > 0 {
				return 10
			}
			return 10_000
		}},
	} {
		traffic.policy, traffic.curve, traffic.requests = calibrated(curve), curve, 2_000
		traffic.run()
		if traffic.held != 0 {
			t.Errorf("%s: requests waited for %v while nothing ran", name, traffic.held)
		}
		larger := 0
		for _, rows := range traffic.sizes {
			if rows > 1 {
				larger++
			}
		}
		if most := slices.Max(traffic.sizes); most > 2 || larger > len(traffic.sizes)/50 {
			t.Errorf("%s: %d of %d batches have more rows than one, up to %d; want only some that test whether two are still not faster", name, larger, len(traffic.sizes), most)
		}
	}
}

// All times are multiplied by a power of two, so that rounding is the same.
func TestDecisionsDoNotDependOnTheSpeedOfTheModel(t *testing.T) {
	for name, traffic := range map[string]trial{
		"clients":   {clients: 5, think: [2]int{100, 900}},
		"by chance": {gap: poisson(900)},
	} {
		var want []int
		for _, scale := range []int{1, 64, 4096} {
			curve := device.Curve{Fixed: time.Duration(3_000*scale) * us, PerRow: time.Duration(500*scale) * us}
			tr := traffic
			tr.policy, tr.curve, tr.scale, tr.requests = calibrated(curve), curve, scale, 3_000
			tr.run()
			if want == nil {
				want = tr.sizes
			}
			if !slices.Equal(tr.sizes, want) {
				t.Errorf("%s: with all times multiplied by %d the batches are others", name, scale)
			}
		}
	}
}

// expected returns what the policy says that a batch takes; 0 if it says nothing.
func expected(p *automatic.Policy, rows int) time.Duration {
	for _, size := range p.Explain().Curve {
		if size.Rows == rows {
			return size.Expected
		}
	}
	return 0
}

func TestModelThatChangesItsSpeedIsFollowed(t *testing.T) {
	for _, slower := range []float64{2, 0.5} {
		curve := device.Curve{Fixed: 4 * ms, PerRow: ms / 2}
		p := calibrated(curve)
		tr := trial{policy: p, curve: curve, slower: slower, requests: 4_000, clients: 4, think: [2]int{100, 300}}
		tr.run()
		if got, want := expected(p, 4).Seconds(), slower*curve.Takes(4).Seconds(); got < 0.95*want || got > 1.05*want {
			t.Errorf("a batch of 4 is said to take %vs, want %vs", got, want)
		}
		if n := p.Explain().Drifts; n != 1 {
			t.Errorf("the speed is said to have changed %d times, want 1", n)
		}
		// This also applies to a size that was not run since.
		if got, want := expected(p, 8).Seconds(), slower*curve.Takes(8).Seconds(); got < 0.9*want || got > 1.1*want {
			t.Errorf("a batch of 8 is said to take %vs, want %vs", got, want)
		}
		if last := tr.sizes[len(tr.sizes)-20]; last != 4 {
			t.Errorf("at the end a batch has %d rows, want all 4 clients", last)
		}
	}
}

// The gaps have only a few values, so that requests seem to follow answers, and half of
// the apparent bursts are none.
func TestRuleThatCostsIsSwitchedOff(t *testing.T) {
	curve := device.Curve{Fixed: 4 * ms, PerRow: ms}
	burst := func(r *rand.Rand) float64 {
		// Pairs of requests close together, in half of which the second comes just too late.
		switch r.IntN(4) {
		case 0:
			return 100
		case 1:
			return 2_500
		}
		return 20_000
	}
	greedy := trial{policy: batching.Triton{MaxRows: 8}, curve: curve, requests: 20_000, gap: burst}
	greedy.run()
	p := calibrated(curve)
	auto := trial{policy: p, curve: curve, requests: 20_000, gap: burst}
	auto.run()
	if auto.latency > greedy.latency*102/100 {
		t.Errorf("requests take %v, and %v with the greedy rule: more than 2 %% longer\n%+v", auto.latency, greedy.latency, p.Explain().Rules)
	}
}

func TestWhatIsKnownIsTold(t *testing.T) {
	curve := device.Curve{Fixed: 4 * ms, PerRow: ms / 2}
	p := calibrated(curve)
	tr := trial{policy: p, curve: curve, requests: 1_000, clients: 4, think: [2]int{100, 300}}
	tr.run()
	e := p.Explain()
	if len(e.Curve) != 7 || e.Curve[3].Rows != 4 || e.Curve[3].Samples < 50 || !e.Curve[3].Calibrated {
		t.Errorf("the curve is %+v", e.Curve)
	}
	if e.FixedCost < 39*ms/10 || e.FixedCost > 41*ms/10 || e.TargetRows != 8 || e.UsefulInstances != 1 {
		t.Errorf("fixed %v, efficient %d, useful %d; want 4ms, 8 and 1", e.FixedCost, e.TargetRows, e.UsefulInstances)
	}
	if e.ReturnShare < 0.9 {
		t.Errorf("%v of the clients come back, want nearly all", e.ReturnShare)
	}
	if want := (explain.ClosedLoop{Clients: 4, Rows: 4, Batches: 1}); e.ClosedLoop.Clients < 3.5 || e.ClosedLoop.Clients > 4.1 || e.ClosedLoop.Rows != want.Rows || e.ClosedLoop.Batches != want.Batches {
		t.Errorf("the loop is %+v, want %+v", e.ClosedLoop, want)
	}
	if e.Batches != uint64(len(tr.sizes)) || e.Closed[batching.Gathered] < e.Batches*8/10 {
		t.Errorf("%d batches of %d were gathered", e.Closed[batching.Gathered], e.Batches)
	}
	gather := e.Rules[0]
	if gather.Name != "gather" || !gather.Enabled || gather.HeldBatches < e.Batches*8/10 || gather.Gain <= gather.Cost {
		t.Errorf("the rule is %+v", gather)
	}
}

func TestAnotherShapeTakesThePlaceOfWhatWasLearnt(t *testing.T) {
	for _, instances := range []int{1, 2} {
		another := profile(2*fixed, 50*perRow, 8, instances)
		policy := automatic.New(automatic.Options{MaxRows: 8, Instances: instances, Profile: profile(fixed, perRow, 8, instances)})
		m := millOf(policy, 16, 8, instances)
		for range 1_000 {
			m.turn()
		}
		m.takes = func(rows int) time.Duration { return 2*fixed + time.Duration(rows)*50*perRow }
		for range 1_000 {
			m.turn() // the speed has changed, and much of it is seen
		}
		policy.Recalibrated(another)
		got, want := policy.Explain(), automatic.New(automatic.Options{MaxRows: 8, Instances: instances, Profile: another}).Explain()
		if !reflect.DeepEqual(got.Curve, want.Curve) || got.TargetRows != want.TargetRows || !slices.Equal(got.Slowdown, want.Slowdown) || got.UsefulInstances != want.UsefulInstances || got.BacklogInstances != want.BacklogInstances {
			t.Errorf("%d instances: knows %+v, want %+v", instances, got, want)
		}
		if got.Batches == 0 || got.Arrived == 0 || got.Drifts == 0 || got.Waiting+got.Running == 0 {
			t.Errorf("%d instances: forgot what happened: %+v", instances, got)
		}
		before := m.arrived
		for range 1_000 {
			m.turn()
		}
		if got := policy.Explain(); m.arrived < before+1_000 || got.ClosedLoop.Clients == 0 {
			t.Errorf("%d instances: after it %d requests came, and it knows %+v", instances, m.arrived-before, got)
		}
	}
}

func TestPreferredSizesLeaveAtOnce(t *testing.T) {
	curve := device.Curve{Fixed: 4 * ms, PerRow: ms / 2}
	p := automatic.New(automatic.Options{MaxRows: 8, Preferred: []int{2, 4}, Profile: simulate.Calibrated(curve, nil, 8, 1)})
	tr := trial{policy: p, curve: curve, requests: 2_000, clients: 12, think: [2]int{100, 300}}
	tr.run()
	if most := slices.Max(tr.sizes); most != 4 {
		t.Errorf("batches have up to %d rows, want 4", most)
	}
	if e := p.Explain(); e.Closed[batching.Preferred] < e.Batches*9/10 {
		t.Errorf("%d batches of %d have a preferred size", e.Closed[batching.Preferred], e.Batches)
	}
}

// Bursts end, and one client remains that sends a request from time to time. Gaps of
// bursts are remembered, but after some missed holds the policy must not wait for them
// any more.
func TestWhoStaysBehindWhenBurstsEndDoesNotWaitForThem(t *testing.T) {
	held := func(alone int) time.Duration {
		n, curve := 0, device.Curve{Fixed: 4 * ms, PerRow: 50 * us}
		one := trial{policy: calibrated(curve), curve: curve, requests: 2000 + alone, gap: func(*rand.Rand) float64 {
			switch n++; {
			case n > 2000:
				return 15_000
			case n%4 == 0:
				return 30_000
			}
			return 300
		}}
		one.run()
		return one.held
	}
	bursts := held(0)
	if bursts < 100*ms {
		t.Errorf("during bursts requests waited for %v in all, so that this test shows nothing", bursts)
	}
	if waited := held(200) - bursts; waited > 8*ms {
		t.Errorf("after them 200 requests waited for %v in all", waited)
	}
}

// TestBatchesAreAsLargeAsRequestsAllow runs every maximum batch size with every number of
// rows per request, whether or not that divides it, on a model that is not calibrated.
// Clients that cannot fill batches of the maximum size may share fewer, equal ones.
func TestBatchesAreAsLargeAsRequestsAllow(t *testing.T) {
	for most := 1; most <= 16; most += slower {
		for rows := 1; rows <= min(5, most); rows++ {
			for _, clients := range []int{8, 16, 4 * (most / rows)} {
				batches := (clients + most/rows - 1) / (most / rows)
				possible := float64(clients) / float64(batches)
				got := requestsPerBatch(most, rows, clients, nil)
				if got < 0.98*possible {
					t.Errorf("max_batch_size %d, %d clients of %d rows: %.2f requests per batch, want %.2f", most, clients, rows, got, possible)
				}
			}
		}
	}
}

// requestsPerBatch runs clients without think time against one instance of the seed
// device for 20 s, and returns the mean batch size of the second half. slow returns how
// much longer a batch takes; nil means no longer.
func requestsPerBatch(most, rows, clients int, slow func(now batching.Time, rows int) float64) float64 {
	w := simulate.NewWorld(nil, 1)
	curve := device.Curve{Fixed: 1921 * us, PerRow: 59300 * time.Nanosecond}
	var batches, requests int
	m := w.Add("m", batching.Config{Policy: automatic.New(automatic.Options{MaxRows: most, Instances: 1}), MaxRows: most}, func(items []*batching.Item) time.Duration {
		if w.Now() > 10*time.Second {
			batches++
			requests += len(items)
		}
		takes := curve.Takes(rows * len(items))
		if slow != nil {
			takes = time.Duration(slow(w.Now(), rows*len(items)) * float64(takes))
		}
		return takes
	})
	m.Up(1)
	w.Trace = func(o simulate.Occurrence) {
		if it := o.Action.Item; o.Action.Kind == batching.Deliver && !o.Ended {
			w.At(w.Now()+500*us, func() {
				*it = batching.Item{Rows: rows}
				m.Arrive(it)
			})
		}
	}
	for range clients {
		w.At(0, func() { m.Arrive(&batching.Item{Rows: rows}) })
	}
	w.Run(20 * time.Second)
	return float64(requests) / float64(max(batches, 1))
}

// TestASlowMomentRulesNoSizeOut slows the device down for some hundred milliseconds of
// its first seconds, or slows down the first batches of one size.
func TestASlowMomentRulesNoSizeOut(t *testing.T) {
	const most, clients = 8, 8
	for rows := 1; rows <= 2; rows++ {
		possible := float64(most / rows)
		for size := 1; size <= most; size++ {
			seen := 0
			got := requestsPerBatch(most, rows, clients, func(_ batching.Time, n int) float64 {
				if n != size {
					return 1
				}
				if seen++; seen > 2 {
					return 1
				}
				return 8
			})
			if got < 0.98*possible {
				t.Errorf("%d rows, the first batches of %d rows slow: %.2f requests per batch, want %.2f", rows, size, got, possible)
			}
		}
		for begins := 50 * ms; begins < 1000*ms; begins += slower * 50 * ms {
			for _, slow := range []float64{2.5, 5.4, 15} {
				got := requestsPerBatch(most, rows, clients, func(now batching.Time, _ int) float64 {
					if now > begins && now < begins+217*ms {
						return slow
					}
					return 1
				})
				if got < 0.98*possible {
					t.Errorf("%d rows, %.1f times slower at %v: %.2f requests per batch, want %.2f", rows, slow, begins, got, possible)
				}
			}
		}
	}
}

// TestASizeThatStaysSlowIsSeldomTestedAgain has a device on which batches of more than four
// rows take eight times as long.
func TestASizeThatStaysSlowIsSeldomTestedAgain(t *testing.T) {
	got := requestsPerBatch(8, 1, 16, func(_ batching.Time, n int) float64 {
		if n > 4 {
			return 8
		}
		return 1
	})
	if got < 3.9 || got > 4.1 {
		t.Errorf("%.2f requests per batch, want 4 nearly always", got)
	}
}

// A watched policy is compared with itself before and after each decision.
type watched struct {
	*automatic.Policy
	t       *testing.T
	decided int
}

func (w *watched) Decide(now batching.Time, line batching.Line) batching.Decision {
	before := fmt.Sprintf("%+v", w.Policy)
	d := w.Policy.Decide(now, line)
	if after := fmt.Sprintf("%+v", w.Policy); after != before {
		w.t.Fatalf("decision %d changed the policy from\n%s\nto\n%s", w.decided, before, after)
	}
	w.decided++
	return d
}

func TestDecidingChangesNothing(t *testing.T) {
	curve := device.Curve{Fixed: 4 * ms, PerRow: 50 * us}
	n := 0
	for name, tr := range map[string]trial{
		"closed loop": {clients: 6, think: [2]int{10, 900}},
		"bursts": {gap: func(*rand.Rand) float64 {
			if n++; n%4 == 0 {
				return 15_000
			}
			return 100
		}},
	} {
		t.Run(name, func(t *testing.T) {
			policy := &watched{Policy: calibrated(curve), t: t}
			tr.policy, tr.curve, tr.requests = policy, curve, 600
			tr.run()
			if e := policy.Explain(); e.Rules[0].HeldBatches+e.Rules[1].HeldBatches < 50 {
				t.Errorf("%d batches were held for returns, and %d for a burst; want enough to tell", e.Rules[0].HeldBatches, e.Rules[1].HeldBatches)
			}
		})
	}
}
