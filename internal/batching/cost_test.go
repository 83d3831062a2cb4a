package batching_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
)

// A mill keeps a core busy: an instance takes, its batch ends, and the answered requests
// arrive again.
type mill struct {
	core  *batching.Core
	out   batching.Actions
	now   batching.Time
	back  []*batching.Item // answered items that will arrive again
	kinds []batching.Item  // templates of requests, used in turn
	next  int
	asked bool
}

func newMill(cfg batching.Config, depth int, kinds ...batching.Item) *mill {
	m := &mill{core: batching.New(cfg), kinds: kinds}
	if len(kinds) == 0 {
		m.kinds = []batching.Item{{Rows: 1}}
	}
	for range depth {
		m.back = append(m.back, &batching.Item{})
	}
	m.step(batching.Event{Kind: batching.Up, Instance: 1})
	return m
}

func (m *mill) step(ev batching.Event) {
	m.now += time.Microsecond
	m.core.Step(m.now, ev, &m.out)
	for i := range m.out.List {
		switch a := &m.out.List[i]; a.Kind {
		case batching.Deliver, batching.Reject:
			m.back = append(m.back, a.Item)
		case batching.Ask:
			m.asked = true
		}
	}
	if m.asked {
		m.asked = false
		m.step(batching.Event{Kind: batching.Turn})
	}
}

// turn lets all answered items arrive again, and runs one batch. It returns the number of
// arrivals.
func (m *mill) turn() int {
	n := len(m.back)
	for i := range n {
		it := m.back[i]
		*it = m.kinds[m.next%len(m.kinds)] // as if reused from a pool
		m.next++
		m.step(batching.Event{Kind: batching.Arrive, Item: it})
	}
	m.back = m.back[:copy(m.back, m.back[n:])]
	m.step(batching.Event{Kind: batching.Take, Instance: 1})
	if m.core.Running() > 0 {
		m.step(batching.Event{Kind: batching.Done, Instance: 1})
	}
	return n
}

func costs() map[string]*mill {
	policy := batching.Triton{MaxRows: 8}
	limited := []batching.Level{
		{Timeout: 500 * time.Microsecond, DelayOnTimeout: true, MaxQueue: 1_000},
		{Timeout: 300 * time.Microsecond, AllowOverride: true, MaxQueue: 1_000},
	}
	some := []batching.Item{
		{Rows: 1, Priority: 1},
		{Rows: 2, Priority: 2, Timeout: 20 * time.Microsecond},
		{Rows: 1, Deadline: time.Hour},
		{Rows: 3, Priority: 7, Deadline: 100 * time.Hour},
	}
	return map[string]*mill{
		"alone":                   newMill(batching.Config{}, 64),
		"plain":                   newMill(batching.Config{Policy: policy, MaxRows: 8}, 64),
		"timeouts and priorities": newMill(batching.Config{Policy: policy, MaxRows: 8, Levels: limited, DefaultLevel: 2}, 64, some...),
		"order kept":              newMill(batching.Config{Policy: policy, MaxRows: 8, KeepOrder: true}, 64, some...),
		"turns taken":             newMill(batching.Config{Policy: policy, MaxRows: 8, TakeTurns: true}, 64, some...),
		"shapes":                  newMill(batching.Config{Policy: policy, MaxRows: 8}, 64, batching.Item{Rows: 1}, batching.Item{Rows: 1, Shape: 1}, batching.Item{Rows: 1, Shape: 2}),
		"predicted":               newMill(batching.Config{Policy: policy, MaxRows: 8, Predictor: &batching.Learner{}, Objective: 40 * time.Microsecond}, 64, some...),
		"lanes apart":             newMill(batching.Config{Policy: policy, MaxRows: 8, OvertakeOtherShapes: true}, 64, batching.Item{Rows: 1}, batching.Item{Rows: 1, Shape: 1}),
		"padded":                  newMill(batching.Config{Policy: padder{policy}, MaxRows: 8, OvertakeOtherShapes: true}, 64, batching.Item{Rows: 1, Shape: 1, PadGroup: 1, Elements: 1}, batching.Item{Rows: 1, Shape: 2, PadGroup: 1, Elements: 2}, batching.Item{Rows: 2, Shape: 3, PadGroup: 1, Elements: 3}),
		"tenants":                 newMill(batching.Config{Policy: policy, MaxRows: 8}, 64, batching.Item{Rows: 1}, batching.Item{Rows: 2, Tenant: 1, Weight: 3}, batching.Item{Rows: 1, Tenant: 2}),
		"tenants in a full queue": newMill(batching.Config{Policy: policy, MaxRows: 8, Levels: []batching.Level{{MaxQueue: 32, Timeout: 100 * time.Microsecond}}, DefaultLevel: 1}, 64, batching.Item{Rows: 1}, batching.Item{Rows: 1}, batching.Item{Rows: 1, Tenant: 1}),
		"bound":                   newMill(batching.Config{Policy: policy, MaxRows: 8}, 64, batching.Item{Rows: 1, Instance: 1}, batching.Item{Rows: 1}),
	}
}

func TestStepDoesNotAllocate(t *testing.T) {
	for name, m := range costs() {
		t.Run(name, func(t *testing.T) {
			for range 1_000 {
				m.turn() // until it has seen its largest load
			}
			arrived := 0
			if n := testing.AllocsPerRun(1_000, func() { arrived += m.turn() }); n != 0 {
				t.Errorf("%v allocations per turn, want none", n)
			}
			if arrived == 0 {
				t.Error("nothing arrived")
			}
		})
	}
}

// BenchmarkStep measures the time per request over all of its steps: it arrives, is taken
// with up to seven others, and is delivered.
func BenchmarkStep(b *testing.B) {
	plain := batching.Config{Policy: batching.Triton{MaxRows: 8}, MaxRows: 8}
	limited := plain
	limited.Levels, limited.DefaultLevel = []batching.Level{{Timeout: time.Hour}, {Timeout: 2 * time.Hour}}, 2
	for _, depth := range []int{1, 64, 4096} {
		predicted := plain
		predicted.Predictor, predicted.Objective = &batching.Learner{}, time.Minute
		b.Run(fmt.Sprintf("waiting=%d/predicted", depth), func(b *testing.B) { benchmarkStep(b, newMill(predicted, depth)) })
		b.Run(fmt.Sprintf("waiting=%d", depth), func(b *testing.B) { benchmarkStep(b, newMill(plain, depth)) })
		b.Run(fmt.Sprintf("waiting=%d/tenants=4", depth), func(b *testing.B) {
			benchmarkStep(b, newMill(plain, depth, batching.Item{Rows: 1}, batching.Item{Rows: 1, Tenant: 1}, batching.Item{Rows: 1, Tenant: 1}, batching.Item{Rows: 1, Tenant: 2, Weight: 2}, batching.Item{Rows: 1, Tenant: 3}))
		})
		b.Run(fmt.Sprintf("waiting=%d/timeouts", depth), func(b *testing.B) {
			benchmarkStep(b, newMill(limited, depth, batching.Item{Rows: 1, Priority: 1}, batching.Item{Rows: 1}))
		})
	}
}

func benchmarkStep(b *testing.B, m *mill) {
	m.turn()
	b.ReportAllocs()
	b.ResetTimer()
	for n := 0; n < b.N; {
		n += m.turn()
	}
}
