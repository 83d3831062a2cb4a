package repository

import (
	"slices"

	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/modelconfig"
)

// instances returns how many batches of a model may run at once.
func instances(cfg *modelconfig.Config) int { return max(1, cfg.Instances) }

// batchingOf returns how a model's requests are queued and combined. What its
// configuration does not say is as in Triton.
func batchingOf(cfg *modelconfig.Config) batching.Config {
	b := batching.Config{MaxRows: max(1, cfg.MaxBatchSize)}
	d := cfg.Dynamic
	if d == nil || cfg.MaxBatchSize == 0 {
		return b // without a batch dimension there is nothing to combine
	}
	policy := batching.Triton{MaxRows: cfg.MaxBatchSize, Preferred: slices.Sorted(slices.Values(d.Preferred))}
	if d.MaxDelay != nil {
		policy.MaxDelay = *d.MaxDelay
	}
	b.Policy = policy
	b.KeepOrder = d.PreserveOrdering
	b.Levels, b.DefaultLevel = levels(d)
	return b
}

func levels(d *modelconfig.Dynamic) ([]batching.Level, int) {
	if d.Levels == 0 {
		return []batching.Level{level(d.Default)}, 1
	}
	all := make([]batching.Level, d.Levels)
	for i := range all {
		q, ok := d.PerLevel[i+1]
		if !ok {
			q = d.Default
		}
		all[i] = level(q)
	}
	return all, d.DefaultLevel
}

func level(q modelconfig.QueuePolicy) batching.Level {
	return batching.Level{
		MaxQueue:      q.MaxSize,
		Timeout:       q.Timeout,
		AllowOverride: q.AllowOverride,
		DelayLate:     q.Action == modelconfig.Delay,
	}
}
