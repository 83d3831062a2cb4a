package simulate

import (
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/device"
	"github.com/shoal-serving/shoal/internal/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

const ms = time.Millisecond

// batchesOf returns a setting with one instance whose batches of up to rows take 1ms.
func batchesOf(rows int, traffic ...Traffic) Setting {
	return Setting{
		Models: []ModelSetting{{
			Config:    batching.Config{MaxRows: rows, Policy: batching.Triton{MaxRows: rows}},
			Curve:     device.Curve{Fixed: ms},
			Instances: 1,
		}},
		Traffic: traffic,
	}
}

func TestALongRunKeepsItsBeginning(t *testing.T) {
	s := Scenario{Settings: []Setting{batchesOf(4, Traffic{Clients: []int{8}, Rows: []int{1}, Requests: 10000, Seed: 1})}}
	report, err := s.Run()
	if err != nil {
		t.Fatal(err)
	}
	got := report.Runs[0]
	if len(got.Batches) != keptBatches || got.Total.Batches != 2500 || got.Total.Answered != 10000 {
		t.Errorf("%d of %d batches kept, %d requests answered; want %d of 2500, 10000", len(got.Batches), got.Total.Batches, got.Total.Answered, keptBatches)
	}
	for _, b := range got.Batches {
		if len(b.Requests) != 4 || b.Ended != b.Began+ms {
			t.Fatalf("a batch is kept as %+v, want all 4 requests and 1ms", b)
		}
	}
}

func TestThroughputOfARecordingCountsFromItsFirstRequest(t *testing.T) {
	const first = time.Hour
	set := batchesOf(1)
	set.Models[0].Name, set.Models[0].Objective = "a", time.Second
	set.Models = append(set.Models, set.Models[0], set.Models[0])
	set.Models[1].Name, set.Models[2].Name = "b", "without requests"
	s := Scenario{
		Settings: []Setting{set},
		Recorded: []Arrival{{At: first, Rows: 1}, {At: first + 499*ms, Rows: 1}, {At: first + 999*ms, Rows: 1, Model: 1}},
	}
	report, err := s.Run()
	if err != nil {
		t.Fatal(err)
	}
	run := report.Runs[0]
	if run.Began != first || run.Total.Last != first+time.Second || run.Requests[0].Arrived != first {
		t.Errorf("began at %v, last answer at %v, first request at %v; want the times of the recording", run.Began, run.Total.Last, run.Requests[0].Arrived)
	}
	for i, want := range []float64{4, 1, 0} {
		if got := run.Models[i]; got.RowsPerSecond != want || got.Goodput != want {
			t.Errorf("%s: %v rows per second, %v of them in time, want %v", got.Model, got.RowsPerSecond, got.Goodput, want)
		}
	}
	if got := run.Total; got.RowsPerSecond != 3 || got.Goodput != 3 {
		t.Errorf("%v rows per second, %v of them in time, want 3", got.RowsPerSecond, got.Goodput)
	}

	// A load begins at zero, and so does the run.
	s.Settings[0].Traffic = []Traffic{{Rate: []float64{1}, Even: true, Requests: 1, Rows: []int{1}}}
	if report, err = s.Run(); err != nil {
		t.Fatal(err)
	}
	if run := report.Runs[0]; run.Began != 0 || run.Total.RowsPerSecond != 4/run.Total.Last.Seconds() {
		t.Errorf("with a load: began at %v, %v rows per second until %v", run.Began, run.Total.RowsPerSecond, run.Total.Last)
	}
}

func TestALongRecordingKeepsItsBeginning(t *testing.T) {
	const all = 3 * keptRequests
	s := Scenario{Settings: []Setting{batchesOf(1)}}
	for i := range all {
		s.Recorded = append(s.Recorded, Arrival{At: time.Duration(i) * time.Second, Rows: 1})
	}
	report, err := s.Run()
	if err != nil {
		t.Fatal(err)
	}
	got := report.Runs[0]
	if len(got.Requests) > keptRequests || got.Total.Answered != all || got.Total.Last != (all-1)*time.Second+ms {
		t.Errorf("%d requests in the timeline, %d counted, the last answered at %v", len(got.Requests), got.Total.Answered, got.Total.Last)
	}
}
