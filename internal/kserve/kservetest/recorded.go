package kservetest

import (
	"context"
	"encoding/binary"
	"math"
	"time"

	"github.com/shoal-serving/shoal/internal/catalog"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/stats"
)

// RecordedIndex is the index of the recorded server after some failed loads.
var RecordedIndex = []catalog.IndexEntry{
	{Name: "alltypes", Version: "1", State: "READY"},
	{Name: "badconfig"},
	{Name: "broken", Version: "1", State: "UNAVAILABLE", Reason: "Internal: RuntimeError: cannot start\n\nAt:\n  REPO/broken/1/model.py(3): initialize\n"},
	{Name: "failing", Version: "1", State: "READY"},
	{Name: "identity", Version: "1", State: "READY"},
	{Name: "recorder", Version: "1", State: "READY"},
	{Name: "repeat", Version: "1", State: "READY"},
	{Name: "two", Version: "1", State: "READY"},
}

// RecordedFailure is the error of the recorded model "failing" for negative numbers. It is
// meant for [Server.Before].
func RecordedFailure(_ context.Context, req *infer.Request) error {
	if req.Model != "failing" || len(req.Inputs[0].Data) < 4 {
		return nil
	}
	switch f := math.Float32frombits(binary.LittleEndian.Uint32(req.Inputs[0].Data)); {
	case f <= -100:
		return infer.Errorf(infer.Unavailable, "busy: %v", f)
	case f <= -10:
		return infer.Errorf(infer.Invalid, "bad argument: %v", f)
	case f < 0:
		return infer.Errorf(infer.Internal, "negative input: %v", f)
	}
	return nil
}

// RecordedStatistics are the statistics of two of its models, one of which had not run.
var RecordedStatistics = []catalog.Statistics{
	{Model: "failing", Version: "1", Stats: stats.Snapshot{
		LastRun: time.UnixMilli(1794705269097), Rows: 31, Runs: 33,
		Success: stats.Sum{Count: 30, Nanos: 44777434},
		Fail:    stats.Sum{Count: 3, Nanos: 1013273},
		Queue:   stats.Sum{Count: 30, Nanos: 2095191},
		Input:   stats.Sum{Count: 30, Nanos: 948422},
		Infer:   stats.Sum{Count: 30, Nanos: 40317240},
		Output:  stats.Sum{Count: 30, Nanos: 1353615},
		Sizes: []stats.Size{
			{Rows: 1, Input: stats.Sum{Count: 32, Nanos: 996964}, Infer: stats.Sum{Count: 32, Nanos: 40818588}, Output: stats.Sum{Count: 32, Nanos: 1336230}},
			{Rows: 2, Input: stats.Sum{Count: 1, Nanos: 30126}, Infer: stats.Sum{Count: 1, Nanos: 169467}, Output: stats.Sum{Count: 1, Nanos: 38006}},
		},
	}},
	{Model: "identity", Version: "1"},
}
