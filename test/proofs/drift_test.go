//go:build e2e

package proofs

import (
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/test/servertest"
)

// TestAModelThatGetsSlowerAndFasterIsFollowed has a device take twice as long from
// some time on, and as long as before from another. After each change the server must
// know within 64 batches how long batches take, also those of sizes that do not run.
func TestAModelThatGetsSlowerAndFasterIsFollowed(t *testing.T) {
	servertest.Hold(t, "batches until both changes are known", 1, 64, func() float64 { return float64(drift(t)) })
}

// drift starts a server with such a device, and returns how many batches ran until the server knew
// the change that it took longer to know.
func drift(t *testing.T) int {
	t.Helper()
	const takes = 20 * time.Millisecond // long beside what a busy machine adds to it
	s := servertest.Start(t, servertest.Repository(t, map[string]string{"m": servertest.Config(takes, "1", `
		dynamic_batching { }
		parameters { key: "drift_ms" value { string_value: "3500:2, 8000:1" } }
	`)}))
	defer s.Kill()
	s.AwaitLog(`msg="model measured" model=m version=1`)

	var stop atomic.Bool
	var client sync.WaitGroup
	c := s.Client()
	client.Go(func() {
		for !stop.Load() {
			if err := servertest.Ask(t.Context(), c, "m", 1); err != nil {
				t.Error(err)
				return
			}
		}
	})
	defer client.Wait()
	defer stop.Store(true)
	return max(follows(s, takes, 2*takes), follows(s, 2*takes, takes))
}

// follows returns how many batches of model m ran from when they took other than before until
// the server expected it of all sizes; very many if it does not learn that in 20 seconds.
func follows(s *servertest.Server, from, to time.Duration) int {
	s.T.Helper()
	const sure = 4 // a few that took long are chance
	changed := 0   // batches until the first of those that took as long as from now on
	seen := 0      // of those, one after the other
	ran := s.Batches("m")[1]
	for began := time.Now(); time.Since(began) < 20*time.Second; time.Sleep(2 * time.Millisecond) {
		now := s.Batches("m")[1]
		if now.Count == ran.Count {
			continue
		}
		took := (now.Took - ran.Took) / time.Duration(now.Count-ran.Count)
		switch {
		case nearer(took, to, from):
			if seen++; seen == 1 {
				changed = ran.Count
			}
		case seen < sure:
			seen = 0
		}
		ran = now
		if seen >= sure && expects(s, "m", to, from) {
			s.T.Logf("from %v to %v: the server knows it after %d batches", from, to, ran.Count-changed)
			return ran.Count - changed
		}
	}
	s.T.Logf("from %v to %v: after %d batches the server expects %+v", from, to, ran.Count-changed, s.Explanation("m").Curve)
	return math.MaxInt
}

// nearer reports whether d is at most half as far from one time as from the other.
func nearer(d, to, from time.Duration) bool { return 2*(d-to).Abs() < (d - from).Abs() }

// expects reports whether the server thinks that batches of all sizes take about so
// long, and not as long as they took.
func expects(s *servertest.Server, model string, takes, took time.Duration) bool {
	s.T.Helper()
	for _, size := range s.Explanation(model).Curve {
		if !nearer(size.Expected, takes, took) {
			return false
		}
	}
	return true
}
