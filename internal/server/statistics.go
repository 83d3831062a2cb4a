package server

import (
	"strconv"

	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/kserve/kservepb"
	"github.com/shoal-serving/shoal/internal/repository"
	"github.com/shoal-serving/shoal/internal/stats"
)

// Statistics implements [kserve.Catalog].
func (s *Server) Statistics(model, version string) ([]*kservepb.ModelStatistics, error) {
	var all []*kservepb.ModelStatistics
	s.models.All(func(name string, v *repository.Version) {
		if (model == "" || model == name) && (version == "" || version == strconv.FormatInt(v.Number, 10)) {
			all = append(all, statistics(name, v))
		}
	})
	switch {
	case len(all) > 0 || model == "":
		return all, nil
	case len(s.models.Versions(model)) == 0:
		return nil, infer.Errorf(infer.Invalid, "requested model '%s' is not available", model)
	}
	return nil, infer.Errorf(infer.Invalid, "requested model version is not available for model '%s'", model)
}

// statistics says what a version has done in the protocol's words.
func statistics(name string, v *repository.Version) *kservepb.ModelStatistics {
	counted := v.Stats.Snapshot()
	m := &kservepb.ModelStatistics{
		Name: name, Version: strconv.FormatInt(v.Number, 10),
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
		if n == 0 {
			continue
		}
		if m.CloseStats == nil {
			m.CloseStats = map[string]uint64{}
		}
		m.CloseStats[batching.Reason(reason).String()] = n
	}
	if v.Memory > 0 {
		m.MemoryUsage = []*kservepb.MemoryUsage{{Type: "CPU", ByteSize: uint64(v.Memory)}}
	}
	return m
}

func duration(s stats.Sum) *kservepb.StatisticDuration {
	return &kservepb.StatisticDuration{Count: s.Count, Ns: s.Nanos}
}
