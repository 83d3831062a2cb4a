package servable

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/explain"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/modelconfig"
	"github.com/shoal-serving/shoal/internal/stats"
)

// Explain describes how the version runs and why. It blocks the scheduler for a moment, so
// it is not for every request.
func (v *Version) Explain() *explain.Model {
	counters := v.Stats.Snapshot()
	m := &explain.Model{
		Name: v.Config.Name, Version: strconv.FormatInt(v.Number(), 10), Backend: v.Config.Backend,
		Batching: v.explainBatching(), Instances: v.explainInstances(), Threads: v.explainThreads(), ExclusiveThreads: v.exclusiveThreads, Calibration: v.explainCalibration(&counters),
		Totals: totals(&counters, v.Scheduler.Waiting()), Slots: v.Scheduler.Slots(),
	}
	if limit := v.Config.Objective; limit > 0 {
		m.Objective = &explain.Objective{
			Limit: limit, Where: v.Config.Where("parameters[slo_milliseconds]"), Late: counters.Late, Refused: counters.Failed[infer.Late],
		}
	}
	if v.Source.Workers == nil { // otherwise the first worker may be about to set v.model, and it is no ensemble
		if ensemble, ok := v.model.(interface{ Explain() *explain.Ensemble }); ok {
			m.Ensemble = ensemble.Explain()
		}
	}
	if e, ok := v.Scheduler.Explain(); ok {
		m.Curve, e.Curve = e.Curve, nil
		m.Policy = &e
		return m
	}
	for _, s := range counters.Sizes {
		m.Curve = append(m.Curve, explain.Size{Rows: s.Rows, Expected: mean(s.Infer.Nanos, s.Infer.Count), Samples: float64(s.Infer.Count)})
	}
	return m
}

func mean(nanos, n uint64) time.Duration { return time.Duration(nanos / max(n, 1)) }

func (v *Version) explainBatching() explain.Batching {
	cfg := v.Config
	d := cfg.Dynamic
	b := explain.Batching{
		Setting:  explain.Setting{Origin: explain.Default, Where: cfg.Where("dynamic_batching")},
		Combines: d != nil && cfg.MaxBatchSize > 1,
		MaxRows:  cfg.MaxBatchSize, MaxRowsWhere: cfg.Where("max_batch_size"), MaxRowsByModel: cfg.ModelSetsBatchSize,
		Safety: v.safety(), Padding: v.explainPadding(),
	}
	if d != nil {
		b.Delay, b.Preferred = d.MaxDelay, d.Preferred
	}
	if cfg.Sequence != nil {
		return explainSequences(cfg, b)
	}
	switch {
	case cfg.CombineUnsafeReason != "":
		b.Origin, b.Why = explain.Automatic, "requests run one by one, because their rows did not pass the check"
	case d == nil:
		b.Why = "requests are never combined, because the configuration does not ask for it"
	case !b.Combines:
		b.Why = "requests are never combined, because the maximum batch size is 1"
	case cfg.Tunes() && d.Added:
		b.Origin, b.Why = explain.Automatic, "batching is not configured"
	case cfg.Tunes():
		b.Origin, b.Why = explain.Automatic, "dynamic_batching has no max_queue_delay_microseconds in "+cmp.Or(b.Where, "the configuration")
	case d.MaxDelay == nil && len(d.Preferred) == 0:
		b.Why = "all waiting requests run when an instance is free, because --batching=triton asks for Triton's defaults"
	default:
		b.Origin, b.Why = explain.Configured, "dynamic_batching is Triton's rule"
	}
	return b
}

// explainSequences completes b for a model whose requests belong to sequences.
func explainSequences(cfg *modelconfig.Config, b explain.Batching) explain.Batching {
	q := cfg.Sequence
	b.Where, b.Combines, b.Preferred = cfg.Where("sequence_batching"), cfg.MaxBatchSize > 1, q.Preferred
	if q.MaxDelay > 0 {
		b.Delay = &q.MaxDelay
	}
	switch {
	case !b.Combines:
		b.Why = "requests of different sequences are never combined, because the maximum batch size is 1"
	case cfg.TunesSequences():
		b.Origin, b.Why = explain.Automatic, "sequence_batching has no max_queue_delay_microseconds"+inFile(b.Where)
	default:
		b.Origin, b.Why = explain.Configured, "sequence_batching is Triton's rule"
	}
	return b
}

func (v *Version) safety() explain.Safety {
	cfg := v.Config
	switch {
	case cfg.CombineUnsafeReason != "":
		return explain.Safety{Verdict: explain.Unsafe, Why: cfg.CombineUnsafeReason}
	case cfg.Sequence != nil:
		return explain.Safety{Verdict: explain.NotChecked, Why: "the configuration asks for sequences"}
	case cfg.Dynamic == nil:
		return explain.Safety{Verdict: explain.NotChecked, Why: "they never share a batch"}
	case cfg.Automatic && cfg.Dynamic.Added && cfg.Ragged() == nil:
		return explain.Safety{Verdict: explain.Safe}
	}
	return explain.Safety{Verdict: explain.NotChecked, Why: "the configuration asks for batching"}
}

// explainPadding returns nil if neither the configuration nor the model suggests padding.
func (v *Version) explainPadding() *explain.Padding {
	switch cfg := v.Config; {
	case cfg.Padding != nil:
		return &explain.Padding{Safety: explain.Safety{Verdict: explain.Safe}, Detected: cfg.Padding.Detected}
	case v.padUnsafeReason != "":
		return &explain.Padding{Safety: explain.Safety{Verdict: explain.Unsafe, Why: v.padUnsafeReason}}
	case cfg.PaddingOff():
		return &explain.Padding{Safety: explain.Safety{Verdict: explain.NotChecked, Why: "the configuration forbids it" + inFile(cfg.Where("parameters[pad]"))}}
	}
	return nil
}

func inFile(where string) string {
	if where == "" {
		return ""
	}
	return " in " + where
}

func (v *Version) explainInstances() explain.Number {
	n := explain.Number{Count: v.Config.Instances}
	measured := v.calibration.Load()
	chosen := !v.Config.Tunes() && measured != nil && measured.Error == ""
	switch {
	case v.Source.Workers != nil:
		n.Count, _ = v.Scale()
		n.Origin, n.Why = explain.Configured, "the requested number of workers"
	case !v.autoInstances && len(v.Config.Proto.GetInstanceGroup()) == 0:
		n.Origin, n.Why = explain.Configured, "the model sets the number"
	case !v.autoInstances:
		n.Origin, n.Where, n.Why = explain.Configured, v.Config.Where("instance_group"), "instance_group has a count"
	case !v.Config.Automatic || v.runner.Device == nil:
		n.Origin, n.Why = explain.Default, "the default"
	case !chosen && !v.instancesFillCores():
		n.Origin, n.Where, n.Why = explain.Default, v.Config.Where("instance_group"), "the default for an instance_group without a count"
	case !chosen:
		n.Origin, n.Why = explain.Automatic, "as many as "+strconv.Itoa(v.env.opts.Cores)+" cores allow; the policy decides how many of them run at a time"
	default:
		n.Origin, n.Why = explain.Automatic, "the number that measured best"
	}
	return n
}

// explainThreads returns nil if the engine does not let the number of threads be set.
func (v *Version) explainThreads() *explain.Number {
	t, ok := v.runner.Engine.(engine.Threader)
	if !ok {
		return nil
	}
	n := &explain.Number{Count: v.threads}
	measured := v.calibration.Load()
	switch {
	case !t.AnyThreads(v.Config):
		n.Origin, n.Where, n.Why = explain.Configured, v.Config.Where("parameters[intra_op_thread_count]"), "intra_op_thread_count is set"
		n.Count = 0
	case !v.Config.Automatic:
		n.Origin, n.Why = explain.Default, "the default"
	case measured == nil:
		n.Origin, n.Why = explain.Automatic, "until other numbers have been measured"
	case measured.Error != "":
		n.Origin, n.Why = explain.Default, "the default, because calibration failed"
	default:
		n.Origin, n.Why = explain.Automatic, "the number that measured best"
	}
	return n
}

func (v *Version) explainCalibration(counters *stats.Snapshot) explain.Calibration {
	m := explain.Calibration{State: explain.CalibrationNotNeeded}
	v.mu.Lock()
	if v.tuningDone != nil {
		m.State = explain.CalibrationRunning
	}
	v.mu.Unlock()
	if found := v.calibration.Load(); found != nil {
		m = *found
	}
	m.Steps = counters.CalibrationSteps
	return m
}

func totals(counters *stats.Snapshot, waiting int) explain.Totals {
	d := explain.Totals{
		Requests: counters.Success.Count, Failed: counters.Fail.Count, Rows: counters.BatchSizes.Total, Waiting: waiting,
	}
	if !counters.LastRun.IsZero() {
		d.SinceLastBatch = max(1, time.Since(counters.LastRun))
	}
	for reason, n := range counters.CloseReasons {
		if n > 0 {
			d.Closed = append(d.Closed, explain.CloseCount{Reason: batching.Reason(reason).String(), Batches: n})
			d.Batches += n
		}
	}
	slices.SortStableFunc(d.Closed, func(a, b explain.CloseCount) int { return cmp.Compare(b.Batches, a.Batches) })
	waited := uint64(0)
	for _, n := range counters.QueueTimes.Buckets {
		waited += n
	}
	d.MeanQueueTime = mean(counters.QueueTimes.Nanos, waited)
	return d
}
