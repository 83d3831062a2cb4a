package batching_test

import (
	"errors"
	"fmt"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/batching/automatic"
	"github.com/shoal-serving/shoal/internal/batching/batchingtest"
)

// A sequenceGame plays events against sequences, as a game does against a core. One referee
// checks the sequences, and another one the core behind them.
type sequenceGame struct {
	chance []byte
	spoil  func(*sequenceGame) bool // changes the actions before the referee sees them

	sequences *batching.Sequences
	referee   *batchingtest.SequenceReferee
	inner     *batchingtest.Referee
	innerErr  error
	bound     int
	iterative bool

	now       batching.Time
	out       batching.Actions
	arrivals  int
	open      []*batching.Item
	instances [3]place
	joined    int
	struck    bool
	played    slotTally
}

// slotTally counts what has happened in games, so that a run shows what it was about.
type slotTally struct {
	events, requests, ran, waited, starts, ends, downs, again int
}

func (t *slotTally) add(other slotTally) {
	t.events += other.events
	t.requests += other.requests
	t.ran += other.ran
	t.waited += other.waited
	t.starts += other.starts
	t.ends += other.ends
	t.downs += other.downs
	t.again += other.again
}

func (g *sequenceGame) choose(n int) int {
	if len(g.chance) == 0 {
		return 0
	}
	c := int(g.chance[0]) % n
	g.chance = g.chance[1:]
	return c
}

func (g *sequenceGame) play() (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v\n%s", r, debug.Stack())
		}
	}()
	rows := 1 + g.choose(4)
	cfg := batching.Config{MaxRows: rows}
	switch g.choose(4) {
	case 1:
		cfg.Policy = batching.Triton{MaxRows: rows}
	case 2:
		cfg.Policy = batching.Triton{MaxRows: rows, MaxDelay: batching.Time(g.choose(12))}
	case 3:
		cfg.Policy, cfg.OvertakeOtherShapes = automatic.New(automatic.Options{MaxRows: rows, Instances: 1}), true
	}
	seq := batching.SequenceConfig{Slots: rows + g.choose(2)*g.choose(4), MaxIdle: batching.Time(g.choose(24))}
	g.iterative = g.choose(4) == 3
	seq.Iterative = g.iterative
	if g.choose(4) == 3 {
		g.bound = 1 + g.choose(6)
	}
	cfg.Shared = batching.Bound{Requests: g.bound}
	g.sequences, g.referee = batching.NewSequences(cfg, seq), batchingtest.NewSequences(seq)
	cfg.Shared, cfg.Levels, cfg.DefaultLevel = batching.Bound{}, []batching.Level{{UseSharedBound: true}}, 1
	g.inner = batchingtest.New(cfg)
	g.sequences.Observe(func(now batching.Time, ev batching.Event, out *batching.Actions) {
		if g.innerErr == nil {
			g.innerErr = g.inner.Check(now, ev, out)
		}
	})
	for range 1 + g.choose(2) {
		if err := g.withOne(absent, batching.Up); err != nil {
			return err
		}
	}
	for len(g.chance) > 0 {
		if err := g.move(); err != nil {
			return err
		}
	}
	return g.drain()
}

func (g *sequenceGame) move() error {
	g.now += batching.Time(g.choose(2) * g.choose(8))
	switch g.choose(16) {
	case 0, 1, 2, 3, 4, 5:
		return g.arrive()
	case 6:
		if len(g.open) > 0 && g.choose(2) == 0 {
			return g.step(batching.Event{Kind: batching.Cancel, Item: g.open[g.choose(len(g.open))]})
		}
	case 7, 8, 9:
		return g.withOne(awake, batching.Take)
	case 10, 11, 12:
		return g.withOne(running, batching.Done)
	case 13:
		return g.withOne(absent, batching.Up)
	case 14:
		switch g.choose(8) {
		case 0:
			return g.withOne(placeState(1+g.choose(3)), batching.Down)
		case 1:
			for i, p := range g.instances {
				if p.leaving || p.state == absent && g.joined&(1<<i) != 0 {
					return g.step(batching.Event{Kind: batching.Broken, Instance: i + 1})
				}
			}
		}
	case 15:
		if g.choose(64) == 63 {
			return g.step(batching.Event{Kind: batching.Close})
		}
	}
	return g.step(batching.Event{Kind: batching.Wake})
}

func (g *sequenceGame) arrive() error {
	g.arrivals++
	has := g.choose(256)
	it := &batching.Item{Owner: g.arrivals, Rows: 1, Bytes: 1, Start: has&3 == 0, End: has&28 == 0}
	it.Correlation.Number = uint64(1 + g.choose(6))
	if it.Correlation.Number == 6 {
		it.Correlation = batching.Correlation{Name: "1"}
	}
	if g.iterative {
		it.Correlation, it.Start, it.End = batching.Correlation{Number: uint64(g.arrivals)}, true, false
	}
	if has&96 == 0 {
		it.Shape = uint64(g.choose(2))
	}
	switch {
	case has&128 == 0:
	case has&64 == 0:
		it.Timeout = batching.Time(g.choose(12))
	default:
		it.Deadline = g.now + batching.Time(g.choose(24))
	}
	if has == 255 {
		it.Rows = 2
	}
	g.open = append(g.open, it)
	full := g.bound > 0 && g.sequences.Waiting() >= g.bound
	if err := g.step(batching.Event{Kind: batching.Arrive, Item: it}); err != nil {
		return err
	}
	refused := slices.ContainsFunc(g.out.List, func(a batching.Action) bool {
		return a.Item == it && a.Kind == batching.Reject && a.Verdict == batching.QueueFull
	})
	if refused && !full {
		return fmt.Errorf("request %v was refused, and the queue was not full", it.Owner)
	}
	return nil
}

func (g *sequenceGame) withOne(s placeState, k batching.EventKind) error {
	var numbers []int
	for i, p := range g.instances {
		if p.state == s && (k != batching.Down || !p.leaving) {
			numbers = append(numbers, i+1)
		}
	}
	if len(numbers) == 0 {
		return nil
	}
	return g.step(batching.Event{Kind: k, Instance: numbers[g.choose(len(numbers))]})
}

func (g *sequenceGame) step(ev batching.Event) error {
	if ev.Kind == batching.Done { // a state that has grown may change the shape
		for _, it := range g.instances[ev.Instance-1].batch {
			it.Sequence().StateShape = uint64(g.choose(8) / 7)
			it.Again = g.iterative && g.choose(3) > 0
		}
	}
	g.sequences.Step(g.now, ev, &g.out)
	if g.spoil != nil && !g.struck {
		g.struck = g.spoil(g)
	}
	if err := g.referee.Check(g.now, ev, &g.out, g.sequences); err != nil {
		return err
	}
	if g.innerErr != nil {
		return fmt.Errorf("the core behind the sequences: %w", g.innerErr)
	}
	if got, want := g.sequences.CoreWaiting(), g.inner.Waiting(); got != want {
		return fmt.Errorf("%d requests wait in the core, but it says %d", want, got)
	}
	g.count(ev)
	switch ev.Kind {
	case batching.Up:
		g.instances[ev.Instance-1] = place{state: awake}
		g.joined |= 1 << (ev.Instance - 1)
	case batching.Take:
		g.instances[ev.Instance-1].state = parked
	case batching.Done:
		g.instances[ev.Instance-1].state, g.instances[ev.Instance-1].batch = awake, nil
	case batching.Down:
		g.instances[ev.Instance-1].leaving = true
	case batching.Wake, batching.Arrive, batching.Cancel, batching.Broken, batching.Turn, batching.Close, batching.Flush:
	}
	for _, a := range g.out.List {
		switch a.Kind {
		case batching.Run:
			g.instances[a.Instance-1].state, g.instances[a.Instance-1].batch = running, slices.Clone(a.Items)
		case batching.Unpark:
			g.instances[a.Instance-1].state = awake
		case batching.Leave:
			g.instances[a.Instance-1] = place{}
		case batching.Deliver, batching.Reject:
			g.open = slices.DeleteFunc(g.open, func(it *batching.Item) bool { return it == a.Item })
		case batching.Stop, batching.Ask, batching.Yield:
		}
	}
	return nil
}

// count counts a step.
func (g *sequenceGame) count(ev batching.Event) {
	g.played.events++
	if _, waiting := g.sequences.Live(); waiting > 0 {
		g.played.waited++
	}
	switch ev.Kind {
	case batching.Arrive:
		g.played.requests++
	case batching.Down:
		g.played.downs++
	case batching.Up, batching.Take, batching.Done, batching.Wake, batching.Cancel, batching.Broken, batching.Turn, batching.Close, batching.Flush:
	}
	if ev.Kind == batching.Done {
		for _, it := range g.instances[ev.Instance-1].batch {
			if it.Again && it.Queued() {
				g.played.again++
			}
		}
	}
	for _, a := range g.out.List {
		if a.Kind != batching.Run {
			continue
		}
		g.played.ran += len(a.Items)
		for _, it := range a.Items {
			if it.Start {
				g.played.starts++
			}
			if it.End {
				g.played.ends++
			}
		}
	}
}

func (g *sequenceGame) has(s placeState) bool {
	return slices.ContainsFunc(g.instances[:], func(p place) bool { return p.state == s })
}

// drain closes, completes all requests, and checks that none is left.
func (g *sequenceGame) drain() error {
	if err := g.step(batching.Event{Kind: batching.Close}); err != nil {
		return err
	}
	for range 10_000 {
		var err error
		switch {
		case g.has(awake):
			err = g.withOne(awake, batching.Take)
		case g.has(running):
			g.now++
			err = g.withOne(running, batching.Done)
		case g.sequences.Waiting() > 0 && !g.has(parked):
			err = g.withOne(absent, batching.Up)
		case g.out.Wake != batching.Never:
			g.now = max(g.now, g.out.Wake)
			err = g.step(batching.Event{Kind: batching.Wake})
		case len(g.open) > 0:
			return fmt.Errorf("request %v waits, and nothing more will happen", g.open[0].Owner)
		default:
			return g.referee.Finish()
		}
		if err != nil {
			return err
		}
	}
	return errors.New("the game does not come to its end")
}

func FuzzSequences(f *testing.F) {
	for seed := range uint64(32) {
		f.Add(chance(seed))
	}
	f.Fuzz(func(t *testing.T, moves []byte) {
		g := sequenceGame{chance: moves[:min(len(moves), 4096)]}
		if err := g.play(); err != nil {
			t.Error(err)
		}
	})
}

// TestNoSlotIsGivenTwice plays many games, the same ones each time. For the long run:
//
//	go test ./internal/batching -run TestNoSlotIsGivenTwice -sequences 1000000 -timeout 2h
func TestNoSlotIsGivenTwice(t *testing.T) {
	var next atomic.Uint64
	var mu sync.Mutex
	var all slotTally
	var players sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		players.Go(func() {
			var own slotTally
			for !t.Failed() {
				seed := next.Add(1) - 1
				if seed >= uint64(*sequences) {
					break
				}
				g := sequenceGame{chance: chance(seed)}
				if err := g.play(); err != nil {
					t.Errorf("seed %d: %v", seed, err)
				}
				own.add(g.played)
			}
			mu.Lock()
			defer mu.Unlock()
			all.add(own)
		})
	}
	players.Wait()
	t.Logf("%d games: %+v", *sequences, all)
	if least := *sequences / 4; min(all.requests, all.ran, all.waited, all.starts, all.ends, all.again) < least || all.downs < least/8 {
		t.Errorf("%d games: %+v: too little happened to show anything", *sequences, all)
	}
}

// TestTheSequenceRefereeSeesEachBreach violates a guarantee in each of some games. The
// referee must report it.
func TestTheSequenceRefereeSeesEachBreach(t *testing.T) {
	for _, s := range []struct {
		name  string
		spoil func(*sequenceGame) bool
		want  string
	}{
		{"answer lost", func(g *sequenceGame) bool {
			i := slices.IndexFunc(g.out.List, func(a batching.Action) bool { return a.Kind == batching.Deliver })
			if i >= 0 {
				g.out.List = slices.Delete(g.out.List, i, i+1)
			}
			return i >= 0
		}, `waits, and nothing more will happen|was never answered`},
		{"answer twice", func(g *sequenceGame) bool {
			i := slices.IndexFunc(g.out.List, func(a batching.Action) bool { return a.Kind == batching.Reject })
			if i >= 0 {
				g.out.List = append(g.out.List, g.out.List[i])
			}
			return i >= 0
		}, `rejected twice`},
		{"wrong verdict", func(g *sequenceGame) bool {
			i := slices.IndexFunc(g.out.List, func(a batching.Action) bool { return a.Kind == batching.Reject && a.Verdict == batching.Discontinued })
			if i >= 0 {
				g.out.List[i].Verdict = batching.Late
			}
			return i >= 0
		}, `without cause: would be late`},
		{"batch on another instance", func(g *sequenceGame) bool {
			i := slices.IndexFunc(g.out.List, func(a batching.Action) bool { return a.Kind == batching.Run && !g.fresh(a) })
			if i >= 0 {
				g.out.List[i].Instance = g.out.List[i].Instance%3 + 1
			}
			return i >= 0
		}, `runs in slot \d+ of instance \d`},
		{"wakes too late", func(g *sequenceGame) bool {
			strike := g.out.Wake != batching.Never && g.sequences.Waiting() == 0
			if strike {
				g.out.Wake = batching.Never
			}
			return strike
		}, `wants to be woken at`},
		{"request that runs again is lost", func(g *sequenceGame) bool {
			i := slices.IndexFunc(g.out.List, func(a batching.Action) bool { return a.Kind == batching.Run && g.iterative && !g.fresh(a) })
			if i >= 0 {
				g.out.List = append(g.out.List, batching.Action{Kind: batching.Deliver, Item: g.out.List[i].Items[0]})
			}
			return i >= 0
		}, `before its batch had ended`},
	} {
		t.Run(s.name, func(t *testing.T) {
			want := regexp.MustCompile(s.want)
			strikes := 0
			for seed := uint64(0); strikes < 10; seed++ {
				if seed == 20_000 {
					t.Fatalf("there was opportunity for %d strikes; want 10", strikes)
				}
				g := sequenceGame{chance: chance(seed), spoil: s.spoil}
				err := g.play()
				switch {
				case !g.struck && err != nil:
					t.Fatalf("seed %d: nobody struck, but the referee says: %v", seed, err)
				case g.struck && (err == nil || !want.MatchString(err.Error())):
					t.Fatalf("seed %d: the referee says: %v\nwant: %v", seed, err, want)
				case g.struck:
					strikes++
				}
			}
		})
	}
}

// fresh reports whether the first sequence of a batch runs for the first time.
func (g *sequenceGame) fresh(run batching.Action) bool { return run.Items[0].Start }

// A slotTest steps sequences by hand.
type slotTest struct {
	t   *testing.T
	s   *batching.Sequences
	out batching.Actions
	now batching.Time
}

func newSlotTest(t *testing.T, slots int, idle time.Duration) *slotTest {
	return slotTestOf(t, batching.SequenceConfig{Slots: slots, MaxIdle: idle})
}

func slotTestOf(t *testing.T, cfg batching.SequenceConfig) *slotTest {
	s := &slotTest{t: t, s: batching.NewSequences(batching.Config{MaxRows: cfg.Slots, Policy: batching.Triton{MaxRows: cfg.Slots}}, cfg)}
	s.step(batching.Event{Kind: batching.Up, Instance: 1})
	s.step(batching.Event{Kind: batching.Take, Instance: 1})
	return s
}

func (s *slotTest) step(ev batching.Event) { s.s.Step(s.now, ev, &s.out) }

// arrive lets a request arrive whose owner is its name.
func (s *slotTest) arrive(name string, id uint64, start, end bool, timeout time.Duration) *batching.Item {
	it := &batching.Item{Owner: name, Rows: 1, Correlation: batching.Correlation{Number: id}, Start: start, End: end, Timeout: timeout}
	s.step(batching.Event{Kind: batching.Arrive, Item: it})
	return it
}

// batch runs the next batch to its end, and returns its requests with their slots. Those that
// again names have to run once more.
func (s *slotTest) batch(again ...string) (names []string) {
	s.step(batching.Event{Kind: batching.Take, Instance: 1})
	for _, a := range s.out.List {
		if a.Kind == batching.Run {
			for _, it := range a.Items {
				names = append(names, fmt.Sprintf("%v@%d", it.Owner, it.Sequence().Slot()))
				it.Again = slices.Contains(again, it.Owner.(string))
			}
			s.step(batching.Event{Kind: batching.Done, Instance: 1})
		}
	}
	return names
}

func (s *slotTest) expectBatch(want ...string) {
	s.t.Helper()
	if got := s.batch(); !slices.Equal(got, want) {
		s.t.Fatalf("batch %v; want %v", got, want)
	}
}

func (s *slotTest) expectVerdict(want batching.Verdict, names ...string) {
	s.t.Helper()
	var got []string
	for _, a := range s.out.List {
		if a.Kind == batching.Reject && a.Verdict == want {
			got = append(got, a.Item.Owner.(string))
		}
	}
	if !slices.Equal(got, names) {
		s.t.Fatalf("%v: answered %v; want %v (all: %+v)", want, got, names, s.out.List)
	}
}

func TestASequenceKeepsItsSlotUntilItEnds(t *testing.T) {
	s := newSlotTest(t, 2, 0)
	s.arrive("a1", 1, true, false, 0)
	s.arrive("b1", 2, true, false, 0)
	s.arrive("c1", 3, true, false, 0)
	s.arrive("a2", 1, false, false, 0)
	s.expectBatch("a1@0", "b1@1")
	s.expectBatch("a2@0")
	s.arrive("b2", 2, false, true, 0)
	s.expectBatch("b2@1")
	s.expectBatch("c1@1")
}

func TestARequestWithoutAStartedSequenceIsRefused(t *testing.T) {
	s := newSlotTest(t, 1, 0)
	s.arrive("a", 1, false, true, 0)
	s.expectVerdict(batching.NoStart, "a")
	s.arrive("b1", 1, true, true, 0)
	s.arrive("b2", 1, false, false, 0) // the sequence has its last request
	s.expectVerdict(batching.NoStart, "b2")
}

func TestAnIdleSequenceGivesItsSlotToTheNext(t *testing.T) {
	s := newSlotTest(t, 1, 100)
	s.arrive("a1", 1, true, false, 0)
	s.expectBatch("a1@0")
	s.now = 50
	s.arrive("b1", 2, true, false, 0)
	if s.out.Wake != 100 {
		t.Fatalf("wakes at %v; want 100", s.out.Wake)
	}
	s.now = 100
	s.step(batching.Event{Kind: batching.Wake})
	s.expectBatch("b1@0")
	s.arrive("a2", 1, false, false, 0)
	s.expectVerdict(batching.NoStart, "a2")
}

func TestASequenceMayBeIdleForTheLongestDuration(t *testing.T) {
	s := newSlotTest(t, 1, batching.Never)
	s.now = 50
	s.arrive("a1", 1, true, false, 0)
	s.expectBatch("a1@0")
	s.now = 100
	s.arrive("a2", 1, false, false, 0)
	s.expectBatch("a2@0")
}

func TestACancelledRequestEndsItsSequence(t *testing.T) {
	s := newSlotTest(t, 1, 0)
	s.arrive("a1", 1, true, false, 0)
	a2 := s.arrive("a2", 1, false, false, 0)
	s.arrive("a3", 1, false, true, 0)
	s.step(batching.Event{Kind: batching.Cancel, Item: a2})
	s.expectVerdict(batching.Cancelled, "a2")
	s.expectVerdict(batching.Discontinued, "a3")
	s.expectBatch("a1@0")
	if active, _ := s.s.Live(); active != 0 {
		t.Errorf("%d slots are held; want none", active)
	}
}

func TestATimeoutEndsASequenceOnlyWhileItWaitsForASlot(t *testing.T) {
	s := newSlotTest(t, 1, 0)
	s.arrive("a1", 1, true, false, 0)
	s.arrive("a2", 1, false, false, 50)
	s.arrive("b1", 2, true, false, 50)
	s.arrive("b2", 2, false, false, 0)
	s.now = 60
	s.step(batching.Event{Kind: batching.Wake})
	s.expectVerdict(batching.SequenceTimedOut, "b1", "b2")
	s.expectBatch("a1@0")
	s.expectBatch("a2@0")
}

// The state of the sequence would miss a request that is stopped while it runs.
func TestABatchOfSequencesIsNotStopped(t *testing.T) {
	for _, iterative := range []bool{false, true} {
		s := slotTestOf(t, batching.SequenceConfig{Slots: 1, Iterative: iterative})
		a := s.arrive("a", 1, true, false, 0)
		s.step(batching.Event{Kind: batching.Take, Instance: 1})
		s.step(batching.Event{Kind: batching.Cancel, Item: a})
		s.expectVerdict(batching.Cancelled, "a")
		if stopped := slices.ContainsFunc(s.out.List, func(a batching.Action) bool { return a.Kind == batching.Stop }); stopped != iterative {
			t.Errorf("iterative %v: the batch is stopped %v", iterative, stopped)
		}
	}
}

func TestAnIterativeRequestRunsAgainInItsSlotWithNewOnes(t *testing.T) {
	s := slotTestOf(t, batching.SequenceConfig{Slots: 2, Iterative: true})
	s.arrive("a", 1, true, false, 0)
	s.arrive("b", 2, true, false, 0)
	s.arrive("c", 3, true, false, 0)
	for _, tt := range []struct{ again, ran []string }{
		{[]string{"a", "b"}, []string{"a@0", "b@1"}}, // c has no slot
		{[]string{"b"}, []string{"a@0", "b@1"}},
		{[]string{"b"}, []string{"c@0", "b@1"}}, // it has that of a
		{nil, []string{"b@1"}},
	} {
		if got := s.batch(tt.again...); !slices.Equal(got, tt.ran) {
			t.Fatalf("batch %v; want %v", got, tt.ran)
		}
	}
	if active, waiting := s.s.Live(); active+waiting != 0 {
		t.Errorf("%d slots are held, and %d sequences wait; want none", active, waiting)
	}
}

func TestASequenceGoesOnAfterARequestThatIsRefusedOnArrival(t *testing.T) {
	full := batching.Config{MaxRows: 1, Policy: batching.Triton{MaxRows: 1}, Shared: batching.Bound{Requests: 1}}
	s := &slotTest{t: t, s: batching.NewSequences(full, batching.SequenceConfig{Slots: 1}), now: 10}
	s.step(batching.Event{Kind: batching.Up, Instance: 1})
	s.step(batching.Event{Kind: batching.Take, Instance: 1})
	s.arrive("a", 1, true, false, 0)
	s.arrive("too many", 1, false, false, 0)
	s.expectVerdict(batching.QueueFull, "too many")
	s.expectBatch("a@0")
	late := &batching.Item{Owner: "late", Rows: 1, Correlation: batching.Correlation{Number: 1}, Deadline: 5}
	s.step(batching.Event{Kind: batching.Arrive, Item: late})
	s.expectVerdict(batching.Expired, "late")
	s.arrive("b", 1, false, true, 0)
	s.expectBatch("b@0")
}

func TestAnIterativeRequestIsDeliveredOnceWhenItDoesNotRunAgain(t *testing.T) {
	s := slotTestOf(t, batching.SequenceConfig{Slots: 1, Iterative: true})
	s.arrive("a", 1, true, false, 0)
	delivered := func() bool {
		return slices.ContainsFunc(s.out.List, func(a batching.Action) bool { return a.Kind == batching.Deliver })
	}
	if s.batch("a"); delivered() {
		t.Error("it was delivered, and has to run again")
	}
	s.step(batching.Event{Kind: batching.Close}) // lets it run to its end
	if s.batch("a"); delivered() {
		t.Error("it was delivered, and has to run again")
	}
	if s.expectBatch("a@0"); !delivered() {
		t.Error("it was not delivered")
	}
}

func TestAnIterativeRequestEndsWhenItsClientLeavesOrItsDeadlinePasses(t *testing.T) {
	s := slotTestOf(t, batching.SequenceConfig{Slots: 1, Iterative: true})
	a := s.arrive("a", 1, true, false, 0)
	s.batch("a")
	s.step(batching.Event{Kind: batching.Cancel, Item: a})
	s.expectVerdict(batching.Cancelled, "a")

	b := &batching.Item{Owner: "b", Rows: 1, Correlation: batching.Correlation{Number: 2}, Start: true, Deadline: 50}
	s.step(batching.Event{Kind: batching.Arrive, Item: b})
	s.batch("b")
	s.now = 50
	s.step(batching.Event{Kind: batching.Wake})
	s.expectVerdict(batching.Expired, "b")
	if active, _ := s.s.Live(); active != 0 {
		t.Errorf("%d slots are held; want none", active)
	}
}

func TestAnIterativeRequestWhoseInstanceLeavesIsAnswered(t *testing.T) {
	s := slotTestOf(t, batching.SequenceConfig{Slots: 1, Iterative: true})
	a := s.arrive("a", 1, true, false, 0)
	s.step(batching.Event{Kind: batching.Take, Instance: 1})
	s.step(batching.Event{Kind: batching.Down, Instance: 1})
	a.Again = true
	s.step(batching.Event{Kind: batching.Done, Instance: 1})
	s.expectVerdict(batching.Unbound, "a")
}
