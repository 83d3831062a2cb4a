package python

import (
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/shoal-serving/shoal/internal/stats"
)

// Limits per model. They bound the cost of a scrape.
const (
	maxFamilies   = 64
	maxMetrics    = 1000
	maxLabels     = 16
	maxLabelBytes = 256
	maxBuckets    = 64
)

var (
	metricName = regexp.MustCompile(`^[a-zA-Z_:][a-zA-Z0-9_:]{0,127}$`)
	labelName  = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]{0,127}$`)
	// Names with these prefixes are reserved for the server.
	reservedPrefixes = []string{"nv_", "shoal_", "go_", "process_", "promhttp_"}
	// A histogram is exported under its name with each of these.
	histogramSuffixes = []string{"_bucket", "_sum", "_count"}
)

// A metricRegistry holds the custom metrics of all models. Models and instances that use
// the same name share the metric, as in Triton. It exists until the last model that uses
// it is unloaded.
type metricRegistry struct {
	mu       sync.Mutex // guards the following
	families map[string]*family
}

type family struct {
	help    string // of the model that created it
	kind    stats.FamilyKind
	owners  map[*model]struct{}
	metrics map[string]*metric // by labelKey
}

type metric struct {
	labels map[string]string
	owners map[*model]struct{}
	value  float64
	bounds []float64
	counts []uint64 // one per bucket, and one for values above the last
}

// answer carries out a metric operation for a worker of m, and returns the metric's value.
func (r *metricRegistry) answer(m *model, call *workerCall) (float64, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if call.Do == "family" {
		return 0, r.addLocked(m, call)
	}
	f := r.families[call.Name]
	if f == nil {
		return 0, fmt.Errorf("metric family %q does not exist", call.Name)
	}
	key := labelKey(call.Labels)
	if call.Do == "metric" {
		return 0, r.addMetricLocked(m, f, key, call)
	}
	x := f.metrics[key]
	if x == nil {
		return 0, fmt.Errorf("metric family %q has no metric with labels %v", call.Name, call.Labels)
	}
	return x.value, x.apply(f.kind, call)
}

func (x *metric) apply(kind stats.FamilyKind, call *workerCall) error {
	switch {
	case call.Do == "value" && kind != stats.Histogram:
		return nil
	case math.IsNaN(call.Value) || math.IsInf(call.Value, 0):
		return fmt.Errorf("found the value %v, expected a number", call.Value)
	case call.Do == "increment" && kind == stats.Counter && call.Value < 0:
		return fmt.Errorf("found an increment of %v, expected none below 0: counters only grow", call.Value)
	case call.Do == "increment" && kind != stats.Histogram:
		x.value += call.Value
	case call.Do == "set" && kind == stats.Gauge:
		x.value = call.Value
	case call.Do == "observe" && kind == stats.Histogram:
		x.value += call.Value
		i, _ := slices.BinarySearch(x.bounds, call.Value)
		x.counts[i]++
	default:
		return fmt.Errorf("a %s cannot %s", [...]string{"counter", "gauge", "histogram"}[kind], call.Do)
	}
	return nil
}

func (r *metricRegistry) addLocked(m *model, call *workerCall) error {
	if !metricName.MatchString(call.Name) {
		return fmt.Errorf("metric family: found the name %q, expected letters, digits, '_' and ':', at most 128, and no digit first", call.Name)
	}
	for _, prefix := range reservedPrefixes {
		if strings.HasPrefix(call.Name, prefix) {
			return fmt.Errorf("metric family: found the name %q, expected another prefix than %s, which is reserved for the server", call.Name, prefix)
		}
	}
	if call.Kind > stats.Histogram || !utf8.ValidString(call.Help) || len(call.Help) > maxText {
		return fmt.Errorf("metric family %q: found an invalid kind or description", call.Name)
	}
	f := r.families[call.Name]
	if f != nil && f.kind != call.Kind {
		return fmt.Errorf("metric family %q exists already with another kind", call.Name)
	}
	if f != nil { // a new version of its model may describe it differently
		f.owners[m] = struct{}{}
		return nil
	}
	if other := r.conflictLocked(call); other != "" {
		return fmt.Errorf("metric family: found the name %q, expected another one: it conflicts with metric family %q, because a histogram also has the names that end in %s",
			call.Name, other, strings.Join(histogramSuffixes, ", "))
	}
	if r.countLocked(m, func(*family) int { return 1 }) >= maxFamilies {
		return fmt.Errorf("found more than %d metric families of the model, which is the limit", maxFamilies)
	}
	if r.families == nil {
		r.families = map[string]*family{}
	}
	r.families[call.Name] = &family{help: call.Help, kind: call.Kind, owners: map[*model]struct{}{m: {}}, metrics: map[string]*metric{}}
	return nil
}

// conflictLocked returns the family whose samples would have the same names as those of a new
// one, or "". Such families would make the metrics page invalid as a whole.
func (r *metricRegistry) conflictLocked(call *workerCall) string {
	for _, suffix := range histogramSuffixes {
		if base, ok := strings.CutSuffix(call.Name, suffix); ok && r.families[base] != nil && r.families[base].kind == stats.Histogram {
			return base
		}
		if call.Kind == stats.Histogram && r.families[call.Name+suffix] != nil {
			return call.Name + suffix
		}
	}
	return ""
}

// countLocked returns the sum of of over the families of a model.
func (r *metricRegistry) countLocked(m *model, of func(*family) int) (n int) {
	for _, f := range r.families {
		if _, ok := f.owners[m]; ok {
			n += of(f)
		}
	}
	return n
}

func (r *metricRegistry) addMetricLocked(m *model, f *family, key string, call *workerCall) error {
	if x := f.metrics[key]; x != nil {
		x.owners[m] = struct{}{}
		return nil
	}
	if err := checkLabels(f.kind, call.Labels); err != nil {
		return fmt.Errorf("metric family %q: %w", call.Name, err)
	}
	x := &metric{labels: maps.Clone(call.Labels), owners: map[*model]struct{}{m: {}}}
	if f.kind == stats.Histogram {
		rising := slices.IsSortedFunc(call.Bounds, func(a, b float64) int {
			if a < b {
				return -1
			}
			return 1
		})
		if len(call.Bounds) == 0 || len(call.Bounds) > maxBuckets || !rising {
			return fmt.Errorf("metric family %q: found buckets %v, expected 1 to %d numbers, each larger than the one before", call.Name, call.Bounds, maxBuckets)
		}
		x.bounds, x.counts = slices.Clone(call.Bounds), make([]uint64, len(call.Bounds)+1)
	}
	if r.countLocked(m, func(f *family) int { return len(f.metrics) }) >= maxMetrics {
		return fmt.Errorf("found more than %d metrics of the model, which is the limit", maxMetrics)
	}
	f.metrics[key] = x
	return nil
}

func checkLabels(kind stats.FamilyKind, labels map[string]string) error {
	if len(labels) > maxLabels {
		return fmt.Errorf("found %d labels, expected at most %d", len(labels), maxLabels)
	}
	for name, value := range labels {
		switch {
		case !labelName.MatchString(name) || strings.HasPrefix(name, "__") || kind == stats.Histogram && name == "le":
			return fmt.Errorf("found the label name %q, expected letters, digits and '_', and no name that Prometheus reserves", name)
		case len(value) > maxLabelBytes || !utf8.ValidString(value):
			return fmt.Errorf("found %d bytes of label %s, expected at most %d, in UTF-8", len(value), name, maxLabelBytes)
		}
	}
	return nil
}

// labelKey returns a string that is unique for a set of labels.
func labelKey(labels map[string]string) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		fmt.Fprintf(&b, "%q=%q,", name, labels[name])
	}
	return b.String()
}

// removeModel removes the metrics that only m uses. m is being unloaded.
func (r *metricRegistry) removeModel(m *model) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, f := range r.families {
		delete(f.owners, m)
		for key, x := range f.metrics {
			if delete(x.owners, m); len(x.owners) == 0 {
				delete(f.metrics, key)
			}
		}
		if len(f.owners) == 0 {
			delete(r.families, name)
		}
	}
}

// snapshot returns all families, sorted by name.
func (r *metricRegistry) snapshot() []stats.Family {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []stats.Family
	for _, name := range slices.Sorted(maps.Keys(r.families)) {
		f := r.families[name]
		one := stats.Family{Name: name, Help: f.help, Kind: f.kind}
		for _, key := range slices.Sorted(maps.Keys(f.metrics)) {
			x := f.metrics[key]
			m := stats.Metric{Labels: x.labels, Value: x.value, Bounds: x.bounds}
			sum := uint64(0)
			for _, n := range x.counts {
				sum += n
				m.Counts = append(m.Counts, sum)
			}
			one.Metrics = append(one.Metrics, m)
		}
		all = append(all, one)
	}
	return all
}

// Metrics returns the custom metrics of all models.
func (e *Engine) Metrics() []stats.Family { return e.metrics.snapshot() }
