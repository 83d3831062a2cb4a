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
		modelDesc("nv_inference_request_success", "Requests answered with outputs"),
		prometheus.CounterValue, func(f *server.Figures) float64 { return float64(f.Stats.Success.Count) },
	},
	{
		modelDesc("nv_inference_count", "Rows of the successful requests that the model ran, which those of the response cache are not"),
		prometheus.CounterValue, func(f *server.Figures) float64 { return float64(f.Stats.Rows) },
	},
	{
		modelDesc("nv_inference_exec_count", "Runs of the model, including failed ones"),
		prometheus.CounterValue, func(f *server.Figures) float64 { return float64(f.Stats.Runs) },
	},
	{
		modelDesc("nv_inference_request_duration_us", "Time from request to response of successful requests, in microseconds"),
		prometheus.CounterValue, func(f *server.Figures) float64 { return micros(f.Stats.Success) },
	},
	{
		modelDesc("nv_inference_queue_duration_us", "Part of the request duration: until an instance took the request, in microseconds"),
		prometheus.CounterValue, func(f *server.Figures) float64 { return micros(f.Stats.Queue) },
	},
	{
		modelDesc("nv_inference_compute_input_duration_us", "Part of the request duration: joining the rows of the batch, in microseconds"),
		prometheus.CounterValue, func(f *server.Figures) float64 { return micros(f.Stats.Input) },
	},
	{
		modelDesc("nv_inference_compute_infer_duration_us", "Part of the request duration: running the model, in microseconds"),
		prometheus.CounterValue, func(f *server.Figures) float64 { return micros(f.Stats.Infer) },
	},
	{
		modelDesc("nv_inference_compute_output_duration_us", "Part of the request duration: splitting the outputs, in microseconds"),
		prometheus.CounterValue, func(f *server.Figures) float64 { return micros(f.Stats.Output) },
	},
	{
		modelDesc("nv_inference_pending_request_count", "Requests in the queue now"),
		prometheus.GaugeValue, func(f *server.Figures) float64 { return float64(f.Waiting) },
	},
	{
		modelDesc("nv_model_load_duration_secs", "Load time of the version, in seconds"),
		prometheus.GaugeValue, func(f *server.Figures) float64 { return f.LoadTime.Seconds() },
	},
	{
		modelDesc("shoal_calibration_steps_total", "Calibration steps"),
		prometheus.CounterValue, func(f *server.Figures) float64 { return float64(f.Stats.CalibrationSteps) },
	},
	{
		modelDesc("shoal_instances", "Instances that the model should have; 0 if clients scaled it to no workers"),
		prometheus.GaugeValue, func(f *server.Figures) float64 { return float64(f.Instances) },
	},
	{
		modelDesc("shoal_instances_alive", "Instances that can run requests: those whose worker process has not died"),
		prometheus.GaugeValue, func(f *server.Figures) float64 { return float64(f.AliveInstances) },
	},
	{
		modelDesc("shoal_worker_restarts_total", "Attempts to restart a worker process that had died"),
		prometheus.CounterValue, func(f *server.Figures) float64 { return float64(f.Stats.Restarts) },
	},
	{
		modelDesc("shoal_batch_unsafe", "1 if a check found that requests must not share a batch, otherwise 0"),
		prometheus.GaugeValue, func(f *server.Figures) float64 { return flag(f.CombineUnsafe) },
	},
}

// cacheMetrics are those of models whose responses are cached.
var cacheMetrics = []struct {
	desc  *prometheus.Desc
	value func(*stats.Snapshot) float64
}{
	{modelDesc("nv_cache_num_hits_per_model", "Requests answered from the response cache"), func(s *stats.Snapshot) float64 { return float64(s.CacheHits.Count) }},
	{modelDesc("nv_cache_num_misses_per_model", "Responses that the response cache did not have"), func(s *stats.Snapshot) float64 { return float64(s.CacheMisses.Count) }},
	{modelDesc("nv_cache_hit_duration_per_model", "Time to find the responses of hits, in microseconds"), func(s *stats.Snapshot) float64 { return micros(s.CacheHits) }},
	{modelDesc("nv_cache_miss_duration_per_model", "Time to look for the responses of misses and to keep them, in microseconds"), func(s *stats.Snapshot) float64 { return micros(s.CacheMisses) }},
}

// slotMetrics are those of models with sequences.
var slotMetrics = []struct {
	desc  *prometheus.Desc
	value func(*explain.Slots) int
}{
	{modelDesc("shoal_sequence_slots", "Slots for sequences, of the instances that can run requests"), func(s *explain.Slots) int { return s.All }},
	{modelDesc("shoal_sequence_slots_used", "Slots that a sequence has now"), func(s *explain.Slots) int { return s.Used }},
	{modelDesc("shoal_sequences_waiting", "Sequences that wait for a slot now"), func(s *explain.Slots) int { return s.Waiting }},
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
	failure     = modelDesc("nv_inference_request_failure", "Requests answered with an error", "reason")
	refused     = modelDesc("shoal_requests_refused_total", "Requests that were refused; the model is empty for models that do not exist or are not ready", "reason")
	batchSize   = modelDesc("shoal_batch_size", "Rows of the batches that ran")
	batchClosed = modelDesc("shoal_batch_close_total", "Batches that ran, by the reason for closing", "reason")
	queueTime   = modelDesc("shoal_queue_seconds", "Time of requests in the queue")
	requestTime = modelDesc("shoal_request_seconds", "Time from request to response of successful requests")
	late        = modelDesc("shoal_requests_late_total", "Successful requests that took longer than the latency objective of the model")
	objective   = modelDesc("shoal_objective_seconds", "Latency objective of the model, if it has one")
	efficient   = modelDesc("shoal_batch_efficient_rows", "Rows that batches are filled up to, with automatic batching")
	useful      = modelDesc("shoal_instances_useful", "Batches that are worth running in parallel, with automatic batching")
	small       = modelDesc("shoal_batches_small_total", "Batches far smaller than what waited and than shoal_batch_efficient_rows, starting at the 64th in a row, with automatic batching")
	ruleOn      = modelDesc("shoal_batching_rule_on", "1 while a batching rule is enabled, 0 while it is disabled because it cost too much", "rule")
	ruleCost    = modelDesc("shoal_batching_rule_cost_seconds_total", "Latency that the rule added over all requests, compared with greedy batching", "rule")
	ruleGain    = modelDesc("shoal_batching_rule_gain_seconds_total", "Latency that the rule saved over all requests, compared with greedy batching", "rule")
	memory      = modelDesc("shoal_model_memory_bytes", "Memory of the model, if its engine reports it")
	computeTime = modelDesc("shoal_compute_seconds", "Time of the model, per run")
	panicked    = desc("shoal_panics_total", "Panics that the server recovered from; each is a defect, and ten in a minute make the server unready")
	buildInfo   = desc("shoal_build_info", "Always 1; the labels identify the build", "version", "goversion")
)

// micros returns whole microseconds, as Triton does.
func micros(s stats.Sum) float64 { return float64(s.Nanos / 1000) }

// A collector collects the metrics that are not about a version of a model.
type collector struct {
	src   Source
	build prometheus.Metric
}

// Describe implements [prometheus.Collector].
func (c collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{refused, panicked, buildInfo} {
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
}

// A modelCollector reads the figures of all versions at each scrape. Metrics of a model with
// metric_tags have labels that those of other models do not have.
type modelCollector struct{ src Source }

// Describe implements [prometheus.Collector]. It is empty, because the labels are not known
// in advance.
func (modelCollector) Describe(chan<- *prometheus.Desc) {}

// Collect implements [prometheus.Collector].
func (c modelCollector) Collect(out chan<- prometheus.Metric) {
	for _, f := range c.src.Figures() {
		if len(f.Tags) == 0 {
			version{&f}.Collect(out)
			continue
		}
		tags := prometheus.Labels{}
		for key, value := range f.Tags {
			tags["_"+key] = value // as in Triton
		}
		prometheus.WrapCollectorWith(tags, version{&f}).Collect(out)
	}
}

// A version collects the metrics of one version.
type version struct{ *server.Figures }

// Describe implements [prometheus.Collector].
func (version) Describe(chan<- *prometheus.Desc) {}

// Collect implements [prometheus.Collector].
func (v version) Collect(out chan<- prometheus.Metric) {
	f := v.Figures
	number := strconv.FormatInt(f.Version, 10)
	for _, m := range versionMetrics {
		out <- prometheus.MustNewConstMetric(m.desc, m.kind, m.value(f), f.Model, number)
	}
	for _, m := range cacheMetrics {
		if f.Cached {
			out <- prometheus.MustNewConstMetric(m.desc, prometheus.CounterValue, m.value(&f.Stats), f.Model, number)
		}
	}
	for _, m := range slotMetrics {
		if f.Slots != nil {
			out <- prometheus.MustNewConstMetric(m.desc, prometheus.GaugeValue, float64(m.value(f.Slots)), f.Model, number)
		}
	}
	for _, m := range workerMetrics {
		if f.Scaled {
			out <- prometheus.MustNewConstMetric(m.desc, m.kind, m.value(f), f.Model, f.Label)
		}
	}
	for reason, n := range failures(&f.Stats.Failed) {
		out <- counter(failure, n, reason, f.Model, number)
	}
	for code, n := range f.Stats.Failed {
		if code := infer.Code(code); isRejection(code) {
			out <- counter(refused, n, codeLabel(code), f.Model, number)
		}
	}
	for reason, n := range f.Stats.CloseReasons {
		out <- counter(batchClosed, n, batching.Reason(reason).String(), f.Model, number)
	}
	if o := f.Stats.Objective; o > 0 {
		out <- counter(late, f.Stats.Late, f.Model, number)
		out <- prometheus.MustNewConstMetric(objective, prometheus.GaugeValue, o.Seconds(), f.Model, number)
	}
	if e := f.Policy; e != nil {
		collectPolicy(e, out, f.Model, number)
	}
	if f.Memory > 0 {
		out <- prometheus.MustNewConstMetric(memory, prometheus.GaugeValue, float64(f.Memory), f.Model, number)
	}
	out <- sizes(&f.Stats.BatchSizes, f.Model, number)
	out <- durations(requestTime, &f.Stats.RequestTimes, &f.Exemplars.Request, f.Model, number)
	out <- durations(queueTime, &f.Stats.QueueTimes, &f.Exemplars.Queue, f.Model, number)
	out <- durations(computeTime, &f.Stats.EngineTimes, &f.Exemplars.Engine, f.Model, number)
}

func collectPolicy(e *explain.Policy, out chan<- prometheus.Metric, labels ...string) {
	out <- prometheus.MustNewConstMetric(efficient, prometheus.GaugeValue, float64(e.TargetRows), labels...)
	out <- prometheus.MustNewConstMetric(useful, prometheus.GaugeValue, float64(e.UsefulInstances), labels...)
	out <- prometheus.MustNewConstMetric(small, prometheus.CounterValue, float64(e.SmallBatches), labels...)
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
	case infer.Invalid, infer.NotFound, infer.Unsupported, infer.Forbidden, infer.Unauthenticated, infer.Outdated:
	}
	return "OTHER"
}

// isRejection reports whether a request to a loaded model can fail with this code without
// a failure of the model. What callers may not do is not counted for a model.
func isRejection(code infer.Code) bool {
	switch code {
	case infer.Internal, infer.NotFound, infer.Forbidden, infer.Unauthenticated, infer.Outdated:
		return false
	default:
		return true
	}
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

// durations returns a histogram, with the last traced requests of its buckets.
func durations(d *prometheus.Desc, t *stats.DurationHistogram, traced *[stats.NumBounds + 1]*stats.Exemplar, labels ...string) prometheus.Metric {
	buckets := map[float64]uint64{}
	count := uint64(0)
	for i, n := range t.Buckets {
		count += n
		if i < stats.NumBounds {
			buckets[stats.BucketBound(i).Seconds()] = count
		}
	}
	m := prometheus.MustNewConstHistogram(d, count, float64(t.Nanos)/1e9, buckets, labels...)
	var examples []prometheus.Exemplar
	for _, e := range traced {
		if e != nil {
			examples = append(examples, prometheus.Exemplar{Value: e.Took.Seconds(), Labels: prometheus.Labels{"trace_id": e.Trace.String()}, Timestamp: e.At})
		}
	}
	if len(examples) == 0 {
		return m
	}
	return prometheus.MustNewMetricWithExemplars(m, examples...)
}
