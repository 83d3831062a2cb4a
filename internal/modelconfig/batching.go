package modelconfig

import (
	"slices"

	"github.com/shoal-serving/shoal/internal/batching"
)

// Tunes reports whether the automatic policy decides how long requests are queued for
// others to join, and, without preferred sizes, how large batches are.
func (c *Config) Tunes() bool {
	return c.Automatic && c.Dynamic != nil && c.Dynamic.MaxDelay == nil && c.MaxBatchSize > 1
}

// Batching returns how the model's requests are queued and combined. Settings that the
// configuration omits have Triton's defaults, except that the queue is bounded, and that
// without a queue policy a request's timeout is its deadline. If [Config.Tunes], the
// caller replaces the policy with the automatic one.
func (c *Config) Batching(unless batching.Bound) batching.Config {
	b := batching.Config{
		MaxRows: max(1, c.MaxBatchSize), Shared: unless,
		Levels: []batching.Level{QueuePolicy{}.level()}, DefaultLevel: 1,
		Objective: c.Objective,
	}
	if c.Sequence != nil && c.MaxBatchSize > 0 {
		b.Policy = c.sequencePolicy()
	}
	d := c.Dynamic
	if d == nil || c.MaxBatchSize == 0 {
		return b // without a batch dimension, requests cannot be combined
	}
	policy := batching.Triton{MaxRows: c.MaxBatchSize, Preferred: slices.Sorted(slices.Values(d.Preferred))}
	if d.MaxDelay != nil {
		policy.MaxDelay = *d.MaxDelay
	}
	b.Policy = policy
	b.KeepOrder = d.PreserveOrdering
	b.Levels, b.DefaultLevel = d.levels()
	return b
}

func (d *Dynamic) levels() ([]batching.Level, int) {
	if d.Levels == 0 {
		return []batching.Level{d.Default.level()}, 1
	}
	all := make([]batching.Level, d.Levels)
	for i := range all {
		q, ok := d.PerLevel[i+1]
		if !ok {
			q = d.Default
		}
		all[i] = q.level()
	}
	return all, d.DefaultLevel
}

func (q QueuePolicy) level() batching.Level {
	l := batching.Level{
		Timeout:           q.Timeout,
		AllowOverride:     q.AllowOverride,
		DelayOnTimeout:    q.Action == Delay,
		UseSharedBound:    q.MaxSize == nil,
		TimeoutIsDeadline: !q.Written,
	}
	if q.MaxSize != nil {
		l.MaxQueue = *q.MaxSize
	}
	return l
}
