package batching_test

import (
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/batching/automatic"
)

// policies returns one of each policy, by the name of its type. internal/archtest fails
// if one is missing here.
var policies = map[string]func(g *game) batching.Policy{
	"batching.None":   func(*game) batching.Policy { return batching.None{} },
	"batching.Triton": func(g *game) batching.Policy { return g.policy(1 + g.choose(7)) },
	"batching.Collect": func(g *game) batching.Policy {
		g.cfg.MaxRows = 0 // it counts requests, not rows
		return &batching.Collect{Size: g.maxRows, MaxDelay: g.time(16)}
	},
	"automatic.Policy": func(g *game) batching.Policy { return g.automatic() },
}

// TestAskingAgainChangesNothing plays each game twice: once normally, and once with a
// policy that is asked up to four times for each decision, and also after events for
// which the core does not ask. All actions must be the same.
func TestAskingAgainChangesNothing(t *testing.T) {
	for name, policy := range policies {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(2_000 / slower) {
				play := func(times func() int) (record, batching.Policy) {
					var inner batching.Policy
					g := game{chance: chance(seed), use: func(g *game) batching.Policy {
						inner = policy(g)
						return curiousAbout(inner, times, func(first, again batching.Decision) {
							t.Errorf("seed %d: asked again, the policy answers %+v instead of %+v", seed, again, first)
						})
					}}
					return recordOf(t, &g), inner
				}
				rnd := rand.New(rand.NewPCG(2, seed))
				want, once := play(func() int { return 1 })
				got, often := play(func() int { return 1 + rnd.IntN(4) })
				if !slices.Equal(got, want) {
					t.Fatalf("seed %d: the core acts differently if the policy is asked more often", seed)
				}
				if p, ok := once.(*automatic.Policy); ok && !reflect.DeepEqual(p.Explain(), often.(*automatic.Policy).Explain()) {
					t.Fatalf("seed %d: the policy knows something else if it is asked more often", seed)
				}
			}
		})
	}
}

// A curious policy asks another policy the given number of times for each decision of the
// core, and all but one of these times after each event.
type curious struct {
	batching.Policy
	times  func() int
	differ func(first, again batching.Decision)
	last   batching.Line // line of the core's last question
	asked  bool
}

func curiousAbout(p batching.Policy, times func() int, differ func(first, again batching.Decision)) batching.Policy {
	c := &curious{Policy: p, times: times, differ: differ}
	if w, ok := p.(batching.Watcher); ok {
		return &curiousWatcher{c, w}
	}
	return c
}

func (c *curious) Decide(now batching.Time, line batching.Line) batching.Decision {
	c.last, c.asked = line, true
	first := c.Policy.Decide(now, line)
	c.again(now, func(again batching.Decision) {
		if again != first {
			c.differ(first, again)
		}
	})
	return first
}

// again asks about the line of the core's last question in its current state.
func (c *curious) again(now batching.Time, heard func(batching.Decision)) {
	for range c.times() - 1 {
		if c.asked && c.last.First() != nil {
			heard(c.Policy.Decide(now, c.last))
		}
	}
}

type curiousWatcher struct {
	*curious
	watcher batching.Watcher
}

func (c *curiousWatcher) after(now batching.Time) { c.again(now, func(batching.Decision) {}) }

func (c *curiousWatcher) Arrived(now batching.Time, it *batching.Item) {
	c.watcher.Arrived(now, it)
	c.after(now)
}

func (c *curiousWatcher) Left(now batching.Time, it *batching.Item) {
	c.watcher.Left(now, it)
	c.after(now)
}

func (c *curiousWatcher) Held(now batching.Time, d batching.Decision) {
	c.watcher.Held(now, d)
	c.after(now)
}

func (c *curiousWatcher) Began(now batching.Time, run *batching.Action) {
	c.watcher.Began(now, run)
	c.after(now)
}

func (c *curiousWatcher) Ended(now batching.Time, instance int, items []*batching.Item, stopped bool) {
	c.watcher.Ended(now, instance, items, stopped)
	c.after(now)
}
