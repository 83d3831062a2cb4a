package batching_test

import (
	"math/rand/v2"
	"slices"
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
				granted = arbiter.Ask(&s.Share, granted)
			case 2, 3:
				if s.turns == 0 {
					continue
				}
				s.turns--
				busy--
				granted = arbiter.Yield(&s.Share, time.Duration(r.IntN(50))*time.Millisecond, granted)
			case 4:
				if r.IntN(2) == 0 {
					unasked++
					busy++
					arbiter.Began(&s.Share)
				} else if unasked > 0 {
					unasked--
					busy--
					granted = arbiter.Ended(&s.Share, granted)
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
			granted = arbiter.Ask(&s.Share, granted)
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
			granted = arbiter.Ask(&s.Share, granted[:0])
			granted = arbiter.Yield(&s.Share, s.takes, granted)
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
	granted := arbiter.Ask(&s.Share, nil)
	for range 100 {
		if len(granted) != 1 {
			t.Fatalf("%d turns were granted, want 1", len(granted))
		}
		granted = arbiter.Ask(&s.Share, granted[:0])
		granted = arbiter.Yield(&s.Share, time.Second, granted)
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
	is("narrow asks", arbiter.Ask(narrow, nil), narrow)
	is("wide asks", arbiter.Ask(wide, nil))
	is("narrow asks again, behind it", arbiter.Ask(narrow, nil))
	is("narrow has run", arbiter.Yield(narrow, time.Second, nil), wide)
	is("wide has run", arbiter.Yield(wide, time.Second, nil), narrow)
	is("wide asks, which has used two slots for a second", arbiter.Ask(wide, nil))
	is("narrow asks, which has used one", arbiter.Ask(narrow, nil), narrow)
	wide.Width = 3
	is("narrow has run", arbiter.Yield(narrow, 0, nil))
	is("nothing else runs", arbiter.Yield(narrow, 0, nil), wide)
}

// A model that comes after another has run for long gets every other turn, and not all of
// them until it has caught up.
func TestAModelThatWasIdleDoesNotMakeUpForIt(t *testing.T) {
	var arbiter batching.Arbiter
	all := sharers(2)
	busy, late := &all[0].Share, &all[1].Share
	granted := arbiter.Ask(busy, nil)
	for range 1000 { // ten seconds by itself
		arbiter.Ask(busy, nil)
		granted = arbiter.Yield(busy, 10*time.Millisecond, granted[:0])
	}
	arbiter.Ask(late, nil)
	turns := map[*batching.Share]int{}
	for range 100 {
		if len(granted) != 1 {
			t.Fatalf("%d turns were granted, want one", len(granted))
		}
		now := granted[0]
		turns[now]++
		arbiter.Ask(now, nil)
		granted = arbiter.Yield(now, 10*time.Millisecond, granted[:0])
		if turns[late] > turns[busy]+1 {
			t.Fatalf("the late model has had %d turns, and the other %d", turns[late], turns[busy])
		}
	}
	if turns[busy] != 50 {
		t.Errorf("the models have had %d and %d of 100 turns", turns[busy], turns[late])
	}
}
