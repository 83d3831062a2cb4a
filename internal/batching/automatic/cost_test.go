package automatic_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/batching/automatic"
)

// A mill keeps a core busy with a closed loop: an answered client sends its next request
// a little later, and a batch takes some time.
type mill struct {
	core    *batching.Core
	out     batching.Actions
	now     batching.Time
	back    []*batching.Item
	awake   []int
	running []batch
	takes   func(rows int) time.Duration
	arrived int
}

type batch struct {
	instance int
	until    batching.Time
}

func profile(fixed, perRow time.Duration, most, instances int) (p batching.Profile) {
	for rows := 1; rows <= most; rows *= 2 {
		took := fixed + time.Duration(rows)*perRow
		p.Sizes = append(p.Sizes, batching.Timing{Rows: rows, Median: took, P95: took, Runs: 5})
	}
	for n := range instances {
		p.Slowdown = append(p.Slowdown, 1+float64(n)/4)
	}
	return p
}

const fixed, perRow = 500 * time.Microsecond, 20 * time.Microsecond

func newMill(clients, most, instances int) *mill {
	policy := automatic.New(automatic.Options{MaxRows: most, Instances: instances, Profile: profile(fixed, perRow, most, instances)})
	return millOf(policy, clients, most, instances)
}

func millOf(policy batching.Policy, clients, most, instances int) *mill {
	m := &mill{
		core:  batching.New(batching.Config{Policy: policy, MaxRows: most}),
		takes: func(rows int) time.Duration { return fixed + time.Duration(rows)*perRow },
	}
	for n := range instances {
		m.step(batching.Event{Kind: batching.Up, Instance: n + 1})
		m.awake = append(m.awake, n+1)
	}
	for range clients {
		m.back = append(m.back, &batching.Item{Rows: 1})
	}
	return m
}

func (m *mill) step(ev batching.Event) {
	m.core.Step(m.now, ev, &m.out)
	for i := range m.out.List {
		switch a := &m.out.List[i]; a.Kind {
		case batching.Run:
			m.running = append(m.running, batch{a.Instance, m.now + m.takes(len(a.Items))})
		case batching.Unpark:
			m.awake = append(m.awake, a.Instance)
		case batching.Deliver:
			m.back = append(m.back, a.Item)
		}
	}
}

// turn lets all clients return one by one, and the next batch end.
func (m *mill) turn() {
	n := len(m.back)
	for _, it := range m.back[:n] {
		m.now += 2 * time.Microsecond
		m.arrived++
		*it = batching.Item{Rows: 1}
		m.step(batching.Event{Kind: batching.Arrive, Item: it})
		m.take()
	}
	m.back = m.back[:copy(m.back, m.back[n:])]
	m.take()
	if len(m.running) == 0 {
		m.now = max(m.now, m.out.Wake)
		m.step(batching.Event{Kind: batching.Wake})
		m.take()
		return
	}
	first := m.running[0]
	m.running = m.running[:copy(m.running, m.running[1:])]
	m.now = max(m.now, first.until)
	m.awake = append(m.awake, first.instance)
	m.step(batching.Event{Kind: batching.Done, Instance: first.instance})
}

func (m *mill) take() {
	for len(m.awake) > 0 {
		n := m.awake[0]
		m.awake = m.awake[:copy(m.awake, m.awake[1:])]
		m.step(batching.Event{Kind: batching.Take, Instance: n})
	}
}

func TestNothingIsAllocated(t *testing.T) {
	for _, instances := range []int{1, 4} {
		for _, clients := range []int{1, 8, 300} {
			t.Run(fmt.Sprintf("instances=%d/clients=%d", instances, clients), func(t *testing.T) {
				m := newMill(clients, 64, instances)
				for range 1_000 {
					m.turn() // until it has seen its largest load
				}
				before := m.arrived
				if n := testing.AllocsPerRun(1_000, m.turn); n != 0 {
					t.Errorf("%v allocations per turn, want none", n)
				}
				if m.arrived == before {
					t.Error("nothing arrived")
				}
			})
		}
	}
}

// BenchmarkRequest measures the total time of the policy and the core per request, from
// its arrival to what is learned from its batch.
func BenchmarkRequest(b *testing.B) {
	for _, instances := range []int{1, 4} {
		for _, clients := range []int{1, 16, 64, 1000} {
			b.Run(fmt.Sprintf("instances=%d/clients=%d", instances, clients), func(b *testing.B) {
				m := newMill(clients, 64, instances)
				for range 200 {
					m.turn()
				}
				b.ReportAllocs()
				b.ResetTimer()
				for m.arrived = 0; m.arrived < b.N; {
					m.turn()
				}
			})
		}
	}
}

// A clocked policy measures the time of its decisions, including the time to read the
// clock.
type clocked struct {
	*automatic.Policy
	decisions int
	took      time.Duration
}

func (c *clocked) Decide(now batching.Time, line batching.Line) batching.Decision {
	began := time.Now()
	d := c.Policy.Decide(now, line)
	c.took += time.Since(began)
	c.decisions++
	return d
}

// BenchmarkDecision measures the time of a decision in a closed loop, per decision and
// per request.
func BenchmarkDecision(b *testing.B) {
	for _, instances := range []int{1, 4} {
		for _, clients := range []int{1, 16, 64, 1000} {
			b.Run(fmt.Sprintf("instances=%d/clients=%d", instances, clients), func(b *testing.B) {
				policy := &clocked{Policy: automatic.New(automatic.Options{MaxRows: 64, Instances: instances, Profile: profile(fixed, perRow, 64, instances)})}
				m := millOf(policy, clients, 64, instances)
				for range 200 {
					m.turn()
				}
				policy.decisions, policy.took, m.arrived = 0, 0, 0
				for policy.decisions < b.N {
					m.turn()
				}
				b.ReportMetric(float64(policy.took)/float64(policy.decisions), "ns/decision")
				b.ReportMetric(float64(policy.took)/float64(m.arrived), "ns/request")
			})
		}
	}
}
