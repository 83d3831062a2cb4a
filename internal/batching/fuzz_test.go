package batching_test

import (
	"encoding/binary"
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/shoal-serving/shoal/internal/batching"
)

var sequences = flag.Int("sequences", 20_000/slower, "how many random sequences TestRandomSequences plays")

func FuzzCore(f *testing.F) {
	for seed := range uint64(32) {
		f.Add(chance(seed))
	}
	f.Fuzz(func(t *testing.T, moves []byte) {
		g := game{chance: moves[:min(len(moves), 4096)]} // the referee is slow where thousands wait
		if err := g.play(); err != nil {
			t.Error(err)
		}
	})
}

// chance returns the random bytes of a game. Most games are short; few are long enough
// for many lanes and long queues.
func chance(seed uint64) []byte {
	r := rand.New(rand.NewPCG(1, seed))
	words := 4 + r.IntN(60)
	if r.IntN(32) == 0 {
		words = 512
	}
	moves := make([]byte, 0, 8*words)
	for range words {
		moves = binary.LittleEndian.AppendUint64(moves, r.Uint64())
	}
	return moves
}

// TestRandomSequences plays many games, the same ones each time. For the long run:
//
//	go test ./internal/batching -run TestRandomSequences -sequences 1000000 -timeout 2h
func TestRandomSequences(t *testing.T) {
	var next atomic.Uint64
	for range runtime.GOMAXPROCS(0) {
		t.Run("player", func(t *testing.T) {
			t.Parallel()
			for !t.Failed() {
				seed := next.Add(1) - 1
				if seed >= uint64(*sequences) {
					return
				}
				moves := chance(seed)
				g := game{chance: moves}
				if err := g.play(); err != nil {
					moves, err = shortest(moves)
					t.Errorf("seed %d: %v\nTo play it again, write to testdata/fuzz/FuzzCore/seed-%d:\ngo test fuzz v1\n[]byte(%q)", seed, err, seed, moves)
				}
			}
		})
	}
}

// shortest returns the shortest prefix of the moves that violates a guarantee.
func shortest(moves []byte) ([]byte, error) {
	for n := range len(moves) + 1 {
		g := game{chance: moves[:n]}
		if err := g.play(); err != nil {
			return moves[:n], err
		}
	}
	return moves, fmt.Errorf("the same moves broke no promise when they were played again")
}

// A record is the sequence of a core's actions in a game, as numbers.
type record []int64

// recorded plays a game, and returns all actions of the core, with times in units.
func recorded(t *testing.T, moves []byte, unit batching.Time) record {
	t.Helper()
	return recordOf(t, &game{chance: moves, unit: unit})
}

func recordOf(t *testing.T, g *game) record {
	t.Helper()
	var rec record
	unit := max(g.unit, 1)
	g.note = func(g *game, _ batching.Event) {
		wake := g.out.Wake
		if wake != batching.Never {
			wake /= unit
		}
		rec = append(rec, int64(g.now/unit), int64(wake))
		for _, a := range g.out.List {
			rec = append(rec, int64(a.Kind), int64(a.Instance), int64(a.Batch), int64(a.Reason), int64(a.Verdict), int64(a.Ran/unit))
			for _, it := range append(slices.Clone(a.Items), a.Item) {
				if it != nil {
					rec = append(rec, int64(it.Owner.(int)))
				}
			}
		}
	}
	if err := g.play(); err != nil {
		t.Fatal(err)
	}
	if g.learns && unit > 1 {
		return nil // it does not keep to whole units; TestDecisionsDoNotDependOnTheSpeedOfTheModel is for it
	}
	return rec
}

func TestSameEventsGiveSameActions(t *testing.T) {
	for seed := range uint64(500 / slower) {
		if first, again := recorded(t, chance(seed), 1), recorded(t, chance(seed), 1); !slices.Equal(first, again) {
			t.Fatalf("seed %d: the same events gave different actions", seed)
		}
	}
}

func TestDecisionsDoNotDependOnTheUnitOfTime(t *testing.T) {
	const parts = 600 // of a time that predictions are made of, so that none is rounded
	for seed := range uint64(500 / slower) {
		want := recorded(t, chance(seed), parts)
		for _, unit := range []batching.Time{3, 1_000, 1_000_003} {
			if got := recorded(t, chance(seed), parts*unit); got != nil && !slices.Equal(got, want) {
				t.Fatalf("seed %d: with all times multiplied by %d the core decides otherwise", seed, unit)
			}
		}
	}
}
