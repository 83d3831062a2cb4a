package batching_test

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
)

// A sharer is a share with the test's own bookkeeping.
type sharer struct {
	batching.Share
	asks, turns int           // pending requests, and turns that it holds
	takes       time.Duration // duration of its turns
	ends        time.Duration // when its turn ends
	used        time.Duration // device time used
}

func sharers(n int) []*sharer {
	all := make([]*sharer, n)
	for i := range all {
		all[i] = &sharer{}
		all[i].Owner = all[i]
	}
	return all
}

// TestTurnsAreGrantedUpToTheSlots lets models ask and yield at random. A model that asks
// gets a turn while slots are free, and no model gets one otherwise, or without asking.
// Models that do not ask may exceed the slots.
func TestTurnsAreGrantedUpToTheSlots(t *testing.T) {
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(3, seed))
		slots := r.IntN(4)
		arbiter := batching.Arbiter{Slots: slots}
		slots = max(slots, 1)
		all := sharers(1 + r.IntN(5))
		busy, unasked, asks := 0, 0, 0
		var granted []*batching.Share
		for range 300 {
			s := all[r.IntN(len(all))]
			granted = granted[:0]
			switch r.IntN(6) {
			case 0, 1:
				s.asks++
				asks++
				granted = arbiter.Ask(0, &s.Share, granted)
			case 2, 3:
				if s.turns == 0 {
					continue
				}
				s.turns--
				busy--
				granted = arbiter.Yield(0, &s.Share, time.Duration(r.IntN(50))*time.Millisecond, granted)
			case 4:
				if r.IntN(2) == 0 {
					unasked++
					busy++
					arbiter.Began(&s.Share)
				} else if unasked > 0 {
					unasked--
					busy--
					granted = arbiter.Ended(0, &s.Share, granted)
				}
			case 5:
				arbiter.Forget(&s.Share)
				asks -= s.asks
				s.asks = 0
			}
			for _, g := range granted {
				of := g.Owner.(*sharer)
				of.asks--
				of.turns++
				asks--
				busy++
				if of.asks < 0 || busy > slots {
					t.Fatalf("seed %d: a turn was granted with %d of %d slots in use; the model has %d turns to come", seed, busy, slots, of.asks)
				}
			}
			if asks > 0 && busy < slots {
				t.Fatalf("seed %d: %d of %d slots are in use, and %d turns are asked for", seed, busy, slots, asks)
			}
		}
	}
}

// TestTimeIsSharedEvenly keeps a device busy with models whose batches have different
// lengths. Each asks for its next turn before it yields one, as the core does. No model
// may get ahead of another by more than two of the longest batches: the one that is not
// charged yet, and one more turn.
func TestTimeIsSharedEvenly(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(4, seed))
		arbiter := batching.Arbiter{Slots: 1 + r.IntN(4)}
		all := sharers(arbiter.Slots + 1 + r.IntN(4))
		longest := time.Duration(0)
		var granted []*batching.Share
		for _, s := range all {
			s.takes = time.Duration(1+r.IntN(100)) * time.Millisecond
			longest = max(longest, s.takes)
			granted = arbiter.Ask(0, &s.Share, granted)
		}
		now := time.Duration(0)
		for range 5_000 {
			for _, g := range granted {
				s := g.Owner.(*sharer)
				s.turns, s.ends = 1, now+s.takes
			}
			s := firstToEnd(all)
			now, s.turns = s.ends, 0
			s.used += s.takes
			granted = arbiter.Ask(now, &s.Share, granted[:0])
			granted = arbiter.Yield(now, &s.Share, s.takes, granted)
			for _, other := range all {
				if ahead := s.used - other.usedBy(now); ahead > 2*longest {
					t.Fatalf("seed %d: one model is ahead of another by %v, and the longest batch takes %v", seed, ahead, longest)
				}
			}
		}
	}
}

func firstToEnd(all []*sharer) *sharer {
	var first *sharer
	for _, s := range all {
		if s.turns > 0 && (first == nil || s.ends < first.ends) {
			first = s
		}
	}
	return first
}

// usedBy includes the elapsed part of a current turn.
func (s *sharer) usedBy(now time.Duration) time.Duration {
	if s.turns == 0 {
		return s.used
	}
	return s.used + s.takes - (s.ends - now)
}

// TestAModelThatIsAloneHasTheDevice shows that time is shared only among models that ask.
func TestAModelThatIsAloneHasTheDevice(t *testing.T) {
	arbiter := batching.Arbiter{Slots: 1}
	s := sharers(1)[0]
	granted := arbiter.Ask(0, &s.Share, nil)
	for range 100 {
		if len(granted) != 1 {
			t.Fatalf("%d turns were granted, want 1", len(granted))
		}
		granted = arbiter.Ask(0, &s.Share, granted[:0])
		granted = arbiter.Yield(0, &s.Share, time.Second, granted)
	}
}

// TestAWideBatchWaitsForItsSlots has a model whose batches use two threads each.
func TestAWideBatchWaitsForItsSlots(t *testing.T) {
	arbiter := batching.Arbiter{Slots: 2}
	all := sharers(2)
	narrow, wide := &all[0].Share, &all[1].Share
	wide.Width = 2
	is := func(what string, granted []*batching.Share, want ...*batching.Share) {
		t.Helper()
		if !slices.Equal(granted, want) {
			t.Fatalf("%s: %d turns were granted, want %d", what, len(granted), len(want))
		}
	}
	is("narrow asks", arbiter.Ask(0, narrow, nil), narrow)
	is("wide asks", arbiter.Ask(0, wide, nil))
	is("narrow asks again, behind it", arbiter.Ask(0, narrow, nil))
	is("narrow has run", arbiter.Yield(0, narrow, time.Second, nil), wide)
	is("wide has run", arbiter.Yield(0, wide, time.Second, nil), narrow)
	is("wide asks, which has used two slots for a second", arbiter.Ask(0, wide, nil))
	is("narrow asks, which has used one", arbiter.Ask(0, narrow, nil), narrow)
	wide.Width = 3
	is("narrow has run", arbiter.Yield(0, narrow, 0, nil))
	is("nothing else runs", arbiter.Yield(0, narrow, 0, nil), wide)
}

// A model that comes after another has run for long gets every other turn, and not all of
// them until it has caught up.
func TestAModelThatWasIdleDoesNotMakeUpForIt(t *testing.T) {
	var arbiter batching.Arbiter
	all := sharers(2)
	busy, late := &all[0].Share, &all[1].Share
	granted := arbiter.Ask(0, busy, nil)
	for range 1000 { // ten seconds by itself
		arbiter.Ask(0, busy, nil)
		granted = arbiter.Yield(0, busy, 10*time.Millisecond, granted[:0])
	}
	arbiter.Ask(0, late, nil)
	turns := map[*batching.Share]int{}
	for range 100 {
		if len(granted) != 1 {
			t.Fatalf("%d turns were granted, want one", len(granted))
		}
		now := granted[0]
		turns[now]++
		arbiter.Ask(0, now, nil)
		granted = arbiter.Yield(0, now, 10*time.Millisecond, granted[:0])
		if turns[late] > turns[busy]+1 {
			t.Fatalf("the late model has had %d turns, and the other %d", turns[late], turns[busy])
		}
	}
	if turns[busy] != 50 {
		t.Errorf("the models have had %d and %d of 100 turns", turns[busy], turns[late])
	}
}

// TestATurnGoesToTheModelWhoseRequestIsDueFirst has three models, which have used the device for 0,
// 10 and 20 ms when they ask for the next turns.
func TestATurnGoesToTheModelWhoseRequestIsDueFirst(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		name string
		due  [3]time.Duration // one more turn would end at 117.5 ms
		want string
	}{
		{"no objective", [3]time.Duration{}, "0 1 2"},
		{"all can wait", [3]time.Duration{150 * ms, 140 * ms, 130 * ms}, "2 1 0"},
		{"two would be late", [3]time.Duration{150 * ms, 110 * ms, 105 * ms}, "1 2 0"},
		{"all would be late", [3]time.Duration{110 * ms, 105 * ms, 101 * ms}, "0 1 2"},
		{"one has no objective", [3]time.Duration{150 * ms, 0, 130 * ms}, "0 1 2"},
	} {
		var arbiter batching.Arbiter
		all := sharers(3)
		for _, s := range all {
			arbiter.Ask(0, &s.Share, nil)
		}
		// Each asks for its next turn before it yields one, so that nothing is forgotten.
		for i, s := range all {
			arbiter.Ask(0, &s.Share, nil)
			arbiter.Yield(0, &s.Share, time.Duration(10*i)*ms, nil)
		}
		for i, s := range all {
			s.Due = c.due[i]
		}
		arbiter.Ask(100*ms, &all[0].Share, nil) // which has the turn
		granted := arbiter.Yield(100*ms, &all[0].Share, 0, nil)
		var order []string
		for range all {
			order = append(order, strconv.Itoa(slices.Index(all, granted[0].Owner.(*sharer))))
			granted = arbiter.Yield(100*ms, granted[0], 0, nil)
		}
		if got := strings.Join(order, " "); got != c.want {
			t.Errorf("%s: turns went to %s, want %s", c.name, got, c.want)
		}
	}
}

// TestAModelWithTooManyRequestsMakesNoOtherLate has a model whose requests are always due, because
// it gets more of them than the device can run, and others that ask now and then. Their turns begin
// before their requests are due, or after those of others that are due, too.
func TestAModelWithTooManyRequestsMakesNoOtherLate(t *testing.T) {
	const ms, objective = time.Millisecond, 50 * time.Millisecond
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(5, seed))
		var arbiter batching.Arbiter
		all := sharers(2 + r.IntN(4))
		flood, others := all[0], all[1:]
		next := make([]time.Duration, len(others)) // when each asks again
		longest := time.Duration(0)
		for _, s := range all {
			s.takes = time.Duration(1+r.IntN(5)) * ms
			longest = max(longest, s.takes)
		}
		now, served := time.Duration(0), 0
		flood.Due = 1
		granted := arbiter.Ask(now, &flood.Share, nil)
		for now < 10*time.Second {
			s := granted[0].Owner.(*sharer)
			now += s.takes
			if s != flood {
				served++
				// Others may be due at the same time.
				if began := now - s.takes; began > s.Due+time.Duration(len(others)-1)*longest {
					t.Fatalf("seed %d: a request was due at %v, and its turn began at %v", seed, s.Due, began)
				}
				s.asks = 0
			} else {
				s.Due = now
				arbiter.Ask(now, &s.Share, nil)
			}
			for i, o := range others {
				if o.asks == 0 && now >= next[i] {
					o.asks, o.Due, next[i] = 1, now+objective, now+time.Duration(40+r.IntN(40))*ms
					arbiter.Ask(now, &o.Share, nil)
				}
			}
			granted = arbiter.Yield(now, &s.Share, s.takes, nil)
		}
		if served < 100 {
			t.Fatalf("seed %d: only %d turns of the others", seed, served)
		}
	}
}
