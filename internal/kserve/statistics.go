package kserve

import (
	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/catalog"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/kserve/kservepb"
	"github.com/shoal-serving/shoal/internal/stats"
)

// Statistics returns what c has counted for the versions that are named, as both
// protocols send it: model "" means all models, version "" all its versions.
func Statistics(c Catalog, model, version string) (*kservepb.ModelStatisticsResponse, error) {
	counted := c.Statistics(model, version)
	switch {
	case len(counted) > 0 || model == "":
	case len(c.Statistics(model, "")) == 0:
		return nil, infer.Errorf(infer.Invalid, "requested model '%s' is not available", model)
	default:
		return nil, infer.Errorf(infer.Invalid, "requested model version is not available for model '%s'", model)
	}
	all := &kservepb.ModelStatisticsResponse{}
	for i := range counted {
		all.ModelStats = append(all.ModelStats, statistics(&counted[i]))
	}
	return all, nil
}

// statistics has every duration of the inference statistics, also where nothing was
// counted: clients expect them.
func statistics(s *catalog.Statistics) *kservepb.ModelStatistics {
	counted := &s.Counted
	m := &kservepb.ModelStatistics{
		Name: s.Model, Version: s.Version,
		InferenceCount: counted.Rows, ExecutionCount: counted.Runs,
		InferenceStats: &kservepb.InferStatistics{
			Success:       duration(counted.Success),
			Fail:          duration(counted.Fail),
			Queue:         duration(counted.Queue),
			ComputeInput:  duration(counted.Input),
			ComputeInfer:  duration(counted.Infer),
			ComputeOutput: duration(counted.Output),
			CacheHit:      &kservepb.StatisticDuration{},
			CacheMiss:     &kservepb.StatisticDuration{},
		},
		CloseStats: map[string]uint64{},
	}
	if !counted.Last.IsZero() {
		m.LastInference = uint64(counted.Last.UnixMilli())
	}
	for _, size := range counted.Sizes {
		m.BatchStats = append(m.BatchStats, &kservepb.InferBatchStatistics{
			BatchSize:     uint64(size.Rows),
			ComputeInput:  duration(size.Input),
			ComputeInfer:  duration(size.Infer),
			ComputeOutput: duration(size.Output),
		})
	}
	for reason, n := range counted.Closed {
		if n > 0 {
			m.CloseStats[batching.Reason(reason).String()] = n
		}
	}
	if s.Memory > 0 {
		m.MemoryUsage = []*kservepb.MemoryUsage{{Type: "CPU", ByteSize: uint64(s.Memory)}}
	}
	return m
}

func duration(s stats.Sum) *kservepb.StatisticDuration {
	return &kservepb.StatisticDuration{Count: s.Count, Ns: s.Nanos}
}
