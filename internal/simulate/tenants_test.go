package simulate

import (
	"flag"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/device"
)

var tenantTime = flag.Duration("tenants", 20*time.Second, "virtual time of TestATenantThatSendsTenTimesItsShare")

// shareOfDevice runs two tenants on the device of the example model, with at most 1,000
// requests in the queue. Each sends requests of one row, evenly or at random times, at the
// given part of the throughput of full batches.
type shareOfDevice struct {
	parts   [2]float64
	evenly  bool
	unknown bool // the core does not know the tenants
}

// run returns the p99 latency of the second tenant, how many requests of it were refused, and
// how many of both were answered in a second.
func (s shareOfDevice) run() (p99 time.Duration, refused int, throughput float64) {
	curve := device.Curve{Fixed: 1921 * time.Microsecond, PerRow: 59300}
	capacity := 8 / curve.Takes(8).Seconds()
	w := NewWorld(nil, 1)
	m := w.Add("m", batching.Config{
		MaxRows: 8, Policy: batching.Triton{MaxRows: 8},
		Levels: []batching.Level{{UseSharedBound: true}}, DefaultLevel: 1, Shared: batching.Bound{Requests: 1000},
	}, func(items []*batching.Item) time.Duration { return curve.Takes(len(items)) })
	var latencies []time.Duration
	answered := 0
	w.Trace = func(o Occurrence) {
		switch a := o.Action; {
		case o.Ended:
		case a.Kind == batching.Deliver:
			answered++
			if a.Item.Owner == 1 {
				latencies = append(latencies, o.At-a.Item.Arrived())
			}
		case a.Kind == batching.Reject && a.Item.Owner == 1:
			refused++
		}
	}
	w.At(0, func() { m.Up(1) })
	for tenant, part := range s.parts {
		chance := rand.New(rand.NewPCG(1, uint64(tenant)))
		later := func() batching.Time {
			gap := 1 / (part * capacity)
			if !s.evenly {
				gap *= chance.ExpFloat64()
			}
			return w.Now() + time.Duration(gap*1e9)
		}
		var send func()
		send = func() {
			it := &batching.Item{Rows: 1, Owner: tenant}
			if !s.unknown {
				it.Tenant = 1 + tenant
			}
			m.Arrive(it)
			w.At(later(), send)
		}
		w.At(later(), send)
	}
	w.Run(*tenantTime)
	slices.Sort(latencies)
	return latencies[len(latencies)*99/100], refused, float64(answered) / tenantTime.Seconds()
}

// TestATenantThatSendsTenTimesItsShare compares with both tenants sending exactly their
// shares: half of what the device can do, or less if they use only a part of it. At random
// times they cannot use all of it: their queue would grow for ever.
func TestATenantThatSendsTenTimesItsShare(t *testing.T) {
	_, _, full := shareOfDevice{parts: [2]float64{5, 5}}.run()
	for _, test := range []struct {
		load   float64
		evenly bool
	}{{1, true}, {0.9, true}, {0.9, false}, {0.8, false}, {0.6, false}} {
		share := test.load / 2
		calm, _, _ := shareOfDevice{parts: [2]float64{share, share}, evenly: test.evenly}.run()
		p99, refused, throughput := shareOfDevice{parts: [2]float64{10 * share, share}, evenly: test.evenly}.run()
		unfair, lost, _ := shareOfDevice{parts: [2]float64{10 * share, share}, evenly: test.evenly, unknown: true}.run()
		t.Logf("load %.1f, evenly %v: p99 %v, and %v (%.2f times) beside a tenant that sends ten times its share; without tenants %v, and %d refused; %.0f of %.0f requests/s",
			test.load, test.evenly, calm, p99, float64(p99)/float64(calm), unfair, lost, throughput, full)
		switch {
		case p99 > calm*12/10:
			t.Errorf("load %.1f: p99 %v beside a tenant that sends ten times its share, and %v beside one that does not", test.load, p99, calm)
		case refused > 0:
			t.Errorf("load %.1f: %d requests of the tenant that keeps to its share were refused", test.load, refused)
		case throughput < 0.98*full:
			t.Errorf("load %.1f: %.0f requests/s, want %.0f", test.load, throughput, full)
		case unfair < 10*calm: // or the comparison would show nothing
			t.Errorf("load %.1f: without tenants p99 is %v, which is not unfair", test.load, unfair)
		}
	}
}
