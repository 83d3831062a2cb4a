package simulate_test

import (
	"io"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/device"
	"github.com/shoal-serving/shoal/internal/simulate"
	"github.com/shoal-serving/shoal/internal/simulate/render"
)

// BenchmarkClosedLoop measures the time to simulate a request, including the report on
// all of them.
func BenchmarkClosedLoop(b *testing.B) {
	cases := []struct {
		name      string
		instances int
		clients   int
		delay     time.Duration
	}{
		{"16 clients", 1, 16, 0},
		{"16 clients, two instances", 2, 16, 0},
		{"16 clients, delay", 1, 16, 500 * time.Microsecond},
		{"256 clients", 1, 256, 0},
	}
	for _, c := range cases {
		b.Run(c.name, func(b *testing.B) {
			s := simulate.Scenario{Settings: []simulate.Setting{{
				Slowdown: []float64{1, 1.391},
				Models: []simulate.ModelSetting{{
					Config:    batching.Config{MaxRows: 8, Policy: batching.Triton{MaxRows: 8, MaxDelay: c.delay}},
					Curve:     device.Curve{Fixed: 1921 * time.Microsecond, PerRow: 59300},
					Instances: c.instances,
				}},
				Traffic: []simulate.Traffic{{
					Clients: []int{c.clients}, Rows: []int{2}, Requests: b.N, Seed: 1,
					Think: []simulate.Span{{From: 200 * time.Microsecond, To: 400 * time.Microsecond}},
				}},
			}}}
			b.ReportAllocs()
			report, err := s.Run()
			if err != nil {
				b.Fatal(err)
			}
			if err := render.Text(io.Discard, report, 100); err != nil {
				b.Fatal(err)
			}
			if err := render.SVG(io.Discard, report, render.SVGOptions{}); err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "requests/s")
		})
	}
}
