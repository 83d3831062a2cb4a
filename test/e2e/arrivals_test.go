//go:build e2e

package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/arrivals"
)

// TestProofArrivalsAreRecordedAndReplayed sends requests with long and short pauses
// between them, and finds these in the recording and in its simulation.
func TestProofArrivalsAreRecordedAndReplayed(t *testing.T) {
	const requests, short, long = 20, 20 * time.Millisecond, 100 * time.Millisecond
	trace := filepath.Join(t.TempDir(), "trace.txt")
	s := start(t, root+"/examples/seed-device", "--record-arrivals", trace)
	c := s.client()
	var sent, answered []time.Time
	for i := range requests {
		sent = append(sent, time.Now())
		if _, err := c.ModelInfer(t.Context(), seedRequest("seed_dynamic", 1+i%2)); err != nil {
			t.Fatal(err)
		}
		answered = append(answered, time.Now())
		pause := short
		if i%4 == 3 {
			pause = long
		}
		time.Sleep(pause)
	}
	s.signal()
	if !s.endsWithin(startPatience) || s.err != nil {
		t.Fatalf("the server did not end well: %v\n%s", s.err, s.logged())
	}
	within(t, "the log", s.logged(), "arrivals were recorded", "arrivals=20 dropped=0")
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
	if total := simulateSeed(t, trace); total.Answered != requests || total.Batches != requests {
		t.Errorf("simulated %+v, want %d requests, each alone", total, requests)
	}
}

// A total is what the simulator says of all requests.
type total struct {
	Answered, Batches int
	Latency           struct {
		Mean time.Duration `json:"mean_ns"`
	}
}

// simulateSeed plays a recording again in the simulator of the seed device.
func simulateSeed(t *testing.T, trace string) total {
	t.Helper()
	scenario := filepath.Join(filepath.Dir(trace), "scenario.yaml")
	text := strings.Join([]string{
		"model: {max_batch_size: 8, fixed: " + seedCurve.Fixed.String() + ", per_row: " + seedCurve.PerRow.String() + "}",
		"arrivals: {file: " + filepath.Base(trace) + "}",
	}, "\n")
	if err := os.WriteFile(scenario, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(root+"/bin/shoal", "simulate", scenario, "--json", "-").Output()
	if err != nil {
		t.Fatal(err)
	}
	var report struct{ Runs []struct{ Total total } }
	if err := json.Unmarshal(out, &report); err != nil || len(report.Runs) != 1 {
		t.Fatalf("%v: %d runs, want one", err, len(report.Runs))
	}
	return report.Runs[0].Total
}
