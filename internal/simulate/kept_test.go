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
