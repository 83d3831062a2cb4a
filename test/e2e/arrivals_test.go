//go:build e2e

package e2e

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/arrivals"
	"github.com/shoal-serving/shoal/test/servertest"
)

// TestArrivalsAreRecordedAndReplayed sends requests with long and short pauses
// between them, and finds these in the recording and in its simulation.
func TestArrivalsAreRecordedAndReplayed(t *testing.T) {
	const requests, short, long = 20, 20 * time.Millisecond, 100 * time.Millisecond
	trace := filepath.Join(t.TempDir(), "trace.txt")
	s := servertest.Start(t, servertest.Root+"/examples/seed-device", "--record-arrivals", trace)
	c := s.Client()
	var sent, answered []time.Time
	for i := range requests {
		sent = append(sent, time.Now())
		if _, err := c.Infer(t.Context(), servertest.SeedRequest("seed_dynamic", 1+i%2)); err != nil {
			t.Fatal(err)
		}
		answered = append(answered, time.Now())
		pause := short
		if i%4 == 3 {
			pause = long
		}
		time.Sleep(pause)
	}
	s.Terminate()
	if !s.EndsWithin(servertest.StartPatience) || s.Err != nil {
		t.Fatalf("the server did not end well: %v\n%s", s.Err, s.Log())
	}
	servertest.Contains(t, "the log", s.Log(), "arrivals recorded", "arrivals=20 dropped=0")
	got, err := arrivals.ReadFile(trace)
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != requests {
		t.Fatalf("%d arrivals, want %d: %+v", len(got), requests, got)
	}
	for i, a := range got {
		if a.Model != "seed_dynamic" || a.Rows != 1+i%2 || a.Priority != 0 {
			t.Errorf("arrival %d is %+v", i, a)
		}
		if i == 0 {
			continue
		}
		// Each arrived between being sent and being answered, however busy the machine
		// is. The file has whole microseconds.
		gap, least, most := a.At-got[i-1].At, sent[i].Sub(answered[i-1]), answered[i].Sub(sent[i-1])
		if gap < least-time.Microsecond || gap > most+time.Microsecond {
			t.Errorf("arrival %d came %v after the one before it, want %v to %v", i, gap, least, most)
		}
	}
	replays(t, trace, requests)
}

// replays simulates a recording of the seed device.
func replays(t *testing.T, trace string, requests int) {
	t.Helper()
	// The pauses are longer than the device takes.
	if total := servertest.Simulate(t, servertest.SeedCurve, trace); total.Answered != requests || total.Batches != requests {
		t.Errorf("simulated %+v, want %d requests, each alone", total, requests)
	}
}
