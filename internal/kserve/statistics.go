package kserve

import (
	"context"

	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/catalog"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/kserve/kservepb"
	"github.com/shoal-serving/shoal/internal/stats"
)

// Statistics returns the counters of c for the named versions, as HTTP and gRPC send
// them. Model "" means all models, version "" all versions of the model.
func Statistics(ctx context.Context, c Catalog, model, version string) (*kservepb.ModelStatisticsResponse, error) {
	counted, err := c.Statistics(ctx, model, version)
	if err != nil {
		return nil, err
	}
	versions, _ := c.Statistics(ctx, model, "") // as allowed as the first
	switch {
	case len(counted) > 0 || model == "":
	case len(versions) == 0:
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

// statistics converts the counters of one version. It sets every duration of the
// inference statistics, also those without a count, because clients expect them.
func statistics(s *catalog.Statistics) *kservepb.ModelStatistics {
	m := &kservepb.ModelStatistics{
		Name: s.Model, Version: s.Version,
		InferenceCount: s.Stats.Rows, ExecutionCount: s.Stats.Runs,
		InferenceStats: &kservepb.InferStatistics{
			Success:       duration(s.Stats.Success),
			Fail:          duration(s.Stats.Fail),
			Queue:         duration(s.Stats.Queue),
			ComputeInput:  duration(s.Stats.Input),
			ComputeInfer:  duration(s.Stats.Infer),
			ComputeOutput: duration(s.Stats.Output),
			CacheHit:      duration(s.Stats.CacheHits),
			CacheMiss:     duration(s.Stats.CacheMisses),
		},
		CloseStats: map[string]uint64{},
	}
	if !s.Stats.LastRun.IsZero() {
		m.LastInference = uint64(s.Stats.LastRun.UnixMilli())
	}
	for _, size := range s.Stats.Sizes {
		m.BatchStats = append(m.BatchStats, &kservepb.InferBatchStatistics{
			BatchSize:     uint64(size.Rows),
			ComputeInput:  duration(size.Input),
			ComputeInfer:  duration(size.Infer),
			ComputeOutput: duration(size.Output),
		})
	}
	for reason, n := range s.Stats.CloseReasons {
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
