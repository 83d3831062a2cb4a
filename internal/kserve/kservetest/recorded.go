package kservetest

import (
	"context"
	"encoding/binary"
	"math"

	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/kserve"
	"github.com/shoal-serving/shoal/internal/kserve/kservepb"
)

// RecordedIndex is the index of the recorded server after some loads had failed.
var RecordedIndex = []kserve.IndexEntry{
	{Name: "alltypes", Version: "1", State: "READY"},
	{Name: "badconfig"},
	{Name: "broken", Version: "1", State: "UNAVAILABLE", Reason: "Internal: RuntimeError: cannot start\n\nAt:\n  REPO/broken/1/model.py(3): initialize\n"},
	{Name: "failing", Version: "1", State: "READY"},
	{Name: "identity", Version: "1", State: "READY"},
	{Name: "recorder", Version: "1", State: "READY"},
	{Name: "repeat", Version: "1", State: "READY"},
	{Name: "two", Version: "1", State: "READY"},
}

// RecordedFailure is what the recorded model "failing" made of negative numbers.
// It is for [Server.Before].
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

// RecordedStatistics are those of two of its models, of which one had not run.
var RecordedStatistics = []*kservepb.ModelStatistics{
	{
		Name: "failing", Version: "1", LastInference: 1794705269097, InferenceCount: 31, ExecutionCount: 33,
		InferenceStats: &kservepb.InferStatistics{
			Success:       &kservepb.StatisticDuration{Count: 30, Ns: 44777434},
			Fail:          &kservepb.StatisticDuration{Count: 3, Ns: 1013273},
			Queue:         &kservepb.StatisticDuration{Count: 30, Ns: 2095191},
			ComputeInput:  &kservepb.StatisticDuration{Count: 30, Ns: 948422},
			ComputeInfer:  &kservepb.StatisticDuration{Count: 30, Ns: 40317240},
			ComputeOutput: &kservepb.StatisticDuration{Count: 30, Ns: 1353615},
			CacheHit:      &kservepb.StatisticDuration{},
			CacheMiss:     &kservepb.StatisticDuration{},
		},
		BatchStats: []*kservepb.InferBatchStatistics{
			{
				BatchSize:     1,
				ComputeInput:  &kservepb.StatisticDuration{Count: 32, Ns: 996964},
				ComputeInfer:  &kservepb.StatisticDuration{Count: 32, Ns: 40818588},
				ComputeOutput: &kservepb.StatisticDuration{Count: 32, Ns: 1336230},
			},
			{
				BatchSize:     2,
				ComputeInput:  &kservepb.StatisticDuration{Count: 1, Ns: 30126},
				ComputeInfer:  &kservepb.StatisticDuration{Count: 1, Ns: 169467},
				ComputeOutput: &kservepb.StatisticDuration{Count: 1, Ns: 38006},
			},
		},
	},
	{
		Name: "identity", Version: "1", LastInference: 0, InferenceCount: 0, ExecutionCount: 0,
		InferenceStats: &kservepb.InferStatistics{
			Success:       &kservepb.StatisticDuration{},
			Fail:          &kservepb.StatisticDuration{},
			Queue:         &kservepb.StatisticDuration{},
			ComputeInput:  &kservepb.StatisticDuration{},
			ComputeInfer:  &kservepb.StatisticDuration{},
			ComputeOutput: &kservepb.StatisticDuration{},
			CacheHit:      &kservepb.StatisticDuration{},
			CacheMiss:     &kservepb.StatisticDuration{},
		},
	},
}
