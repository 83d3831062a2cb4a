package metrics

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/explain"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/panics"
	"github.com/shoal-serving/shoal/internal/server"
	"github.com/shoal-serving/shoal/internal/stats"
)

// byModel are the labels of all metrics of a version, and byName those that TorchServe
// uses.
var (
	byModel = []string{"model", "version"}
	byName  = []string{"model_name", "model_version"}
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

func modelDesc(name, help string, labels ...string) *prometheus.Desc {
	return desc(name, help, append(labels, byModel...)...)
}

// versionMetrics are the metrics of a version with a single value.
var versionMetrics = []struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(*server.Figures) float64
}{
	{
		modelDesc("nv_inference_request_success", "Requests that were answered with outputs"),
		prometheus.CounterValue, func(f *server.Figures) float64 { return float64(f.Stats.Success.Count) },
	},
	{
		modelDesc("nv_inference_count", "Rows of requests that were answered with outputs"),
		prometheus.CounterValue, func(f *server.Figures) float64 { return float64(f.Stats.Rows) },
	},
	{
		modelDesc("nv_inference_exec_count", "Runs of the model, one for each batch and for each part of a batch that failed"),
		prometheus.CounterValue, func(f *server.Figures) float64 { return float64(f.Stats.Runs) },
	},
	{
		modelDesc("nv_inference_request_duration_us", "Microseconds from request to answer, of requests that were answered with outputs"),
		prometheus.CounterValue, func(f *server.Figures) float64 { return micros(f.Stats.Success) },
	},
	{
		modelDesc("nv_inference_queue_duration_us", "Microseconds in the queue, of those requests"),
		prometheus.CounterValue, func(f *server.Figures) float64 { return micros(f.Stats.Queue) },
	},
	{
		modelDesc("nv_inference_compute_input_duration_us", "Microseconds in which the batches of those requests were joined"),
		prometheus.CounterValue, func(f *server.Figures) float64 { return micros(f.Stats.Input) },
	},
	{
		modelDesc("nv_inference_compute_infer_duration_us", "Microseconds in which the model ran for those requests"),
		prometheus.CounterValue, func(f *server.Figures) float64 { return micros(f.Stats.Infer) },
	},
	{
		modelDesc("nv_inference_compute_output_duration_us", "Microseconds in which the outputs of those requests were split"),
		prometheus.CounterValue, func(f *server.Figures) float64 { return micros(f.Stats.Output) },
	},
	{
		modelDesc("nv_inference_pending_request_count", "Requests in the queue"),
		prometheus.GaugeValue, func(f *server.Figures) float64 { return float64(f.Waiting) },
	},
	{
		modelDesc("nv_model_load_duration_secs", "Seconds that it took to load the model"),
		prometheus.GaugeValue, func(f *server.Figures) float64 { return f.LoadTime.Seconds() },
	},
	{
		modelDesc("shoal_calibration_steps_total", "Steps in which the model was measured"),
		prometheus.CounterValue, func(f *server.Figures) float64 { return float64(f.Stats.CalibrationSteps) },
	},
	{
		modelDesc("shoal_batch_unsafe", "1 if rows of several requests must not share a batch, as the safety check found"),
		prometheus.GaugeValue, func(f *server.Figures) float64 { return flag(f.CombineUnsafe) },
	},
}

// workerMetrics are the metrics of a version whose workers clients scale, with
// TorchServe's names and labels.
var workerMetrics = []struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(*server.Figures) float64
}{
	{
		desc("ts_inference_requests_total", "Total number of inference requests.", byName...),
		prometheus.CounterValue, func(f *server.Figures) float64 { return float64(f.Stats.Success.Count + f.Stats.Fail.Count) },
	},
	{
		desc("ts_inference_latency_microseconds", "Cumulative inference duration in microseconds", byName...),
		prometheus.CounterValue, func(f *server.Figures) float64 { return micros(f.Stats.Success) },
	},
	{
		desc("ts_queue_latency_microseconds", "Cumulative queue duration in microseconds", byName...),
		prometheus.CounterValue, func(f *server.Figures) float64 { return micros(f.Stats.Queue) },
	},
	{
		desc("shoal_workers", "Workers that can run requests", byName...),
		prometheus.GaugeValue, func(f *server.Figures) float64 { return float64(f.AliveInstances) },
	},
}

var (
	failure     = modelDesc("nv_inference_request_failure", "Requests that were answered with an error", "reason")
	refused     = modelDesc("shoal_requests_refused_total", "Requests that the model has not answered; without a model, those for models that do not exist or are not ready", "reason")
	batchSize   = modelDesc("shoal_batch_size", "Rows of the batches that ran")
	batchClosed = modelDesc("shoal_batch_close_total", "Batches that ran, by why they were not made larger", "reason")
	queueTime   = modelDesc("shoal_queue_seconds", "Time in the queue, of requests that a batch took")
	late        = modelDesc("shoal_requests_late_total", "Requests that were answered with outputs, but later than the model's objective")
	objective   = modelDesc("shoal_objective_seconds", "Time in which requests should be answered, where the model has one")
	efficient   = modelDesc("shoal_batch_efficient_rows", "Rows that batches are filled up to, where that is measured")
	useful      = modelDesc("shoal_instances_useful", "Batches that are worth running at once, where that is measured")
	ruleOn      = modelDesc("shoal_batching_rule_on", "1 if a rule to hold or cut batches is used, 0 while it is switched off because it cost too much", "rule")
	ruleCost    = modelDesc("shoal_batching_rule_cost_seconds_total", "Time that requests took longer because of a rule", "rule")
	ruleGain    = modelDesc("shoal_batching_rule_gain_seconds_total", "Time that requests took less because of a rule", "rule")
	memory      = modelDesc("shoal_model_memory_bytes", "Bytes that the model holds, if its engine reports it")
	computeTime = modelDesc("shoal_compute_seconds", "Time of the model's runs")
	panicked    = desc("shoal_panics_total", "Panics of the server from which it recovered; each is a defect")
	buildInfo   = desc("shoal_build_info", "1, for its labels", "version", "goversion")
)

// micros returns whole microseconds, as Triton does.
func micros(s stats.Sum) float64 { return float64(s.Nanos / 1000) }

// A collector reads the figures at each scrape.
type collector struct {
	src   Source
	build prometheus.Metric
}

// Describe implements [prometheus.Collector].
func (c collector) Describe(out chan<- *prometheus.Desc) {
	for _, m := range versionMetrics {
		out <- m.desc
	}
	for _, m := range workerMetrics {
		out <- m.desc
	}
	for _, d := range []*prometheus.Desc{failure, refused, batchSize, batchClosed, queueTime, computeTime, late, objective, efficient, useful, ruleOn, ruleCost, ruleGain, memory, panicked, buildInfo} {
		out <- d
	}
}

// Collect implements [prometheus.Collector].
func (c collector) Collect(out chan<- prometheus.Metric) {
	out <- c.build
	out <- counter(panicked, panics.Count())
	for code, n := range c.src.UnknownModel() {
		if code := infer.Code(code); n > 0 || code == infer.NotFound {
			out <- counter(refused, n, codeLabel(code), "", "")
		}
	}
	for _, f := range c.src.Figures() {
		collectModel(&f, out)
	}
}

func collectModel(f *server.Figures, out chan<- prometheus.Metric) {
	version := strconv.FormatInt(f.Version, 10)
	for _, m := range versionMetrics {
		out <- prometheus.MustNewConstMetric(m.desc, m.kind, m.value(f), f.Model, version)
	}
	for _, m := range workerMetrics {
		if f.Scaled {
			out <- prometheus.MustNewConstMetric(m.desc, m.kind, m.value(f), f.Model, f.Label)
		}
	}
	for reason, n := range failures(&f.Stats.Failed) {
		out <- counter(failure, n, reason, f.Model, version)
	}
	for code, n := range f.Stats.Failed {
		if code := infer.Code(code); isRejection(code) {
			out <- counter(refused, n, codeLabel(code), f.Model, version)
		}
	}
	for reason, n := range f.Stats.CloseReasons {
		out <- counter(batchClosed, n, batching.Reason(reason).String(), f.Model, version)
	}
	if o := f.Stats.Objective; o > 0 {
		out <- counter(late, f.Stats.Late, f.Model, version)
		out <- prometheus.MustNewConstMetric(objective, prometheus.GaugeValue, o.Seconds(), f.Model, version)
	}
	if e := f.Policy; e != nil {
		collectPolicy(e, out, f.Model, version)
	}
	if f.Memory > 0 {
		out <- prometheus.MustNewConstMetric(memory, prometheus.GaugeValue, float64(f.Memory), f.Model, version)
	}
	out <- sizes(&f.Stats.BatchSizes, f.Model, version)
	out <- durations(queueTime, &f.Stats.QueueTimes, f.Model, version)
	out <- durations(computeTime, &f.Stats.EngineTimes, f.Model, version)
}

func collectPolicy(e *explain.Policy, out chan<- prometheus.Metric, labels ...string) {
	out <- prometheus.MustNewConstMetric(efficient, prometheus.GaugeValue, float64(e.TargetRows), labels...)
	out <- prometheus.MustNewConstMetric(useful, prometheus.GaugeValue, float64(e.UsefulInstances), labels...)
	for _, r := range e.Rules {
		labels := append([]string{r.Name}, labels...)
		out <- prometheus.MustNewConstMetric(ruleOn, prometheus.GaugeValue, flag(r.Enabled), labels...)
		out <- prometheus.MustNewConstMetric(ruleCost, prometheus.CounterValue, r.TotalCost.Seconds(), labels...)
		out <- prometheus.MustNewConstMetric(ruleGain, prometheus.CounterValue, r.TotalGain.Seconds(), labels...)
	}
}

func flag(on bool) float64 {
	if on {
		return 1
	}
	return 0
}

func counter(d *prometheus.Desc, n uint64, labels ...string) prometheus.Metric {
	return prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
}

// failures sums the codes by Triton's four failure reasons.
func failures(byCode *[infer.NumCodes]uint64) map[string]uint64 {
	sums := map[string]uint64{"REJECTED": 0, "CANCELED": 0, "BACKEND": 0, "OTHER": 0}
	for code, n := range byCode {
		sums[tritonReason(infer.Code(code))] += n
	}
	return sums
}

// tritonReason returns Triton's failure reason for a code. Triton counts an exceeded
// deadline as a cancelled request.
func tritonReason(code infer.Code) string {
	switch code {
	case infer.Overloaded, infer.Late, infer.QueueTimeout, infer.Unavailable:
		return "REJECTED"
	case infer.Cancelled, infer.Deadline:
		return "CANCELED"
	case infer.Internal:
		return "BACKEND"
	case infer.Invalid, infer.NotFound, infer.Unsupported, infer.Forbidden:
	}
	return "OTHER"
}

// isRejection reports whether a request to a loaded model can fail with this code without
// a failure of the model. Only loads and settings are forbidden.
func isRejection(code infer.Code) bool {
	return code != infer.Internal && code != infer.NotFound && code != infer.Forbidden
}

func sizes(r *stats.SizeHistogram, labels ...string) prometheus.Metric {
	buckets := map[float64]uint64{}
	count := uint64(0)
	for i, n := range r.Buckets {
		count += n
		buckets[float64(uint64(1)<<i)] = count
	}
	return prometheus.MustNewConstHistogram(batchSize, count, float64(r.Total), buckets, labels...)
}

func durations(d *prometheus.Desc, t *stats.DurationHistogram, labels ...string) prometheus.Metric {
	buckets := map[float64]uint64{}
	count := uint64(0)
	for i, n := range t.Buckets {
		count += n
		if i < stats.NumBounds {
			buckets[stats.BucketBound(i).Seconds()] = count
		}
	}
	return prometheus.MustNewConstHistogram(d, count, float64(t.Nanos)/1e9, buckets, labels...)
}
