//go:build e2e && proofs

package proofs

import (
	"bufio"
	"context"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/test/measure"
	"github.com/shoal-serving/shoal/test/servertest"
)

// TestProofReadersOfTheDashboardCostLittle compares the CPU time of a request, 12.8 KB to a model
// that takes no time, with three readers of the model's figures and batches and without.
func TestProofReadersOfTheDashboardCostLittle(t *testing.T) {
	s := servertest.Start(t, servertest.Repository(t, instants))
	samples := servertest.Samples(t, "dashboard")
	const cpu = "CPU of a request with three readers of the dashboard, times without"
	caller := askOver(t, "HTTP", s.HTTP, "small", rowOf(1, 32, 100))
	// Two runs of the same server differ by more than the bound. Many short pairs make the interval
	// small enough; a few long ones do not, because the machine changes within them.
	d := servertest.StrictOr(3*time.Second, time.Second)
	for round := len(samples.Of(cpu)); round < servertest.StrictOr(80, 1); round++ {
		without, with := measure.Pair(round,
			func() pull { return pullAt(t, s, caller, 4, d) },
			func() pull {
				stop := readDashboards(t, s, 3)
				defer func() {
					if events := stop(); events < int(d/time.Second) {
						t.Errorf("the readers received only %d events", events)
					}
				}()
				return pullAt(t, s, caller, 4, d)
			})
		t.Logf("%.1f µs without, %.1f µs with readers; %.0f and %.0f requests/s", without.cpu, with.cpu, without.perSecond, with.perSecond)
		servertest.Add(t, samples, cpu, with.cpu/without.cpu)
	}
	servertest.Judge(t, cpu, measure.AtMost(1.01), samples.Of(cpu))
}

// readDashboards has readers receive the events of model small until stop is called, which returns
// how many there were.
func readDashboards(t *testing.T, s *servertest.Server, readers int) (stop func() (events int)) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	var events atomic.Int64
	for range readers {
		all.Go(func() {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.HTTP+"/dashboard/events?model=small&version=1", nil)
			if err != nil {
				t.Error(err)
				return
			}
			resp, err := (&http.Client{}).Do(req)
			if err != nil {
				t.Error(err)
				return
			}
			defer func() { _ = resp.Body.Close() }() // it ends with ctx
			lines := bufio.NewScanner(resp.Body)
			lines.Buffer(nil, 16<<20)
			for lines.Scan() {
				if strings.HasPrefix(lines.Text(), "event: figures") {
					events.Add(1)
				}
			}
			if err := lines.Err(); err != nil && ctx.Err() == nil {
				t.Error(err)
			}
		})
	}
	return func() int {
		cancel()
		all.Wait()
		return int(events.Load())
	}
}
