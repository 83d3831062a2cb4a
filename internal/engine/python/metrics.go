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

// What one model may have of its own. Whoever scrapes pays for each.
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
	// Names that begin so are the server's.
	ours = []string{"nv_", "shoal_", "go_", "process_", "promhttp_"}
)

// A register has the metrics of all models. Models and instances that name the same
// share it, as in Triton; it is there as long as one of the models is loaded.
type register struct {
	mu       sync.Mutex // guards the following
	families map[string]*family
}

type family struct {
	help    string
	kind    stats.FamilyKind
	owners  map[*model]struct{}
	metrics map[string]*metric // by their labels
}

type metric struct {
	labels map[string]string
	owners map[*model]struct{}
	value  float64
	bounds []float64
	counts []uint64 // in each bucket, and above the last
}

// answer does what a worker of a model asks, and returns the value of the metric.
func (r *register) answer(m *model, q *question) (float64, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if q.Do == "family" {
		return 0, r.addLocked(m, q)
	}
	f := r.families[q.Name]
	if f == nil {
		return 0, fmt.Errorf("metric family %q is not there", q.Name)
	}
	key := labelKey(q.Labels)
	if q.Do == "metric" {
		return 0, r.addMetricLocked(m, f, key, q)
	}
	x := f.metrics[key]
	if x == nil {
		return 0, fmt.Errorf("metric family %q has no metric with labels %v", q.Name, q.Labels)
	}
	return x.value, x.do(f.kind, q)
}

func (x *metric) do(kind stats.FamilyKind, q *question) error {
	switch {
	case q.Do == "value" && kind != stats.Histogram:
		return nil
	case math.IsNaN(q.Value) || math.IsInf(q.Value, 0):
		return fmt.Errorf("found the value %v, expected a number", q.Value)
	case q.Do == "increment" && kind == stats.Counter && q.Value < 0:
		return fmt.Errorf("found an increment of %v, expected none below 0: counters only grow", q.Value)
	case q.Do == "increment" && kind != stats.Histogram:
		x.value += q.Value
	case q.Do == "set" && kind == stats.Gauge:
		x.value = q.Value
	case q.Do == "observe" && kind == stats.Histogram:
		x.value += q.Value
		i, _ := slices.BinarySearch(x.bounds, q.Value)
		x.counts[i]++
	default:
		return fmt.Errorf("a %s cannot %s", [...]string{"counter", "gauge", "histogram"}[kind], q.Do)
	}
	return nil
}

func (r *register) addLocked(m *model, q *question) error {
	if !metricName.MatchString(q.Name) {
		return fmt.Errorf("metric family: found the name %q, expected letters, digits, '_' and ':', at most 128, and no digit first", q.Name)
	}
	for _, prefix := range ours {
		if strings.HasPrefix(q.Name, prefix) {
			return fmt.Errorf("metric family: found the name %q, expected none that begins with %s: those are the server's", q.Name, prefix)
		}
	}
	if q.Kind > stats.Histogram || !utf8.ValidString(q.Help) || len(q.Help) > maxText {
		return fmt.Errorf("metric family %q: found a kind or a description that cannot be", q.Name)
	}
	f := r.families[q.Name]
	if f != nil && (f.kind != q.Kind || f.help != q.Help) {
		return fmt.Errorf("metric family %q is there already, with another kind or description", q.Name)
	}
	if f != nil {
		f.owners[m] = struct{}{}
		return nil
	}
	if r.countLocked(m, func(*family) int { return 1 }) >= maxFamilies {
		return fmt.Errorf("found more than %d metric families of the model, expected no more", maxFamilies)
	}
	if r.families == nil {
		r.families = map[string]*family{}
	}
	r.families[q.Name] = &family{help: q.Help, kind: q.Kind, owners: map[*model]struct{}{m: {}}, metrics: map[string]*metric{}}
	return nil
}

// countLocked adds up what the families of a model have.
func (r *register) countLocked(m *model, of func(*family) int) (n int) {
	for _, f := range r.families {
		if _, ok := f.owners[m]; ok {
			n += of(f)
		}
	}
	return n
}

func (r *register) addMetricLocked(m *model, f *family, key string, q *question) error {
	if x := f.metrics[key]; x != nil {
		x.owners[m] = struct{}{}
		return nil
	}
	if err := checkLabels(f.kind, q.Labels); err != nil {
		return fmt.Errorf("metric family %q: %w", q.Name, err)
	}
	x := &metric{labels: maps.Clone(q.Labels), owners: map[*model]struct{}{m: {}}}
	if f.kind == stats.Histogram {
		rising := slices.IsSortedFunc(q.Bounds, func(a, b float64) int {
			if a < b {
				return -1
			}
			return 1
		})
		if len(q.Bounds) == 0 || len(q.Bounds) > maxBuckets || !rising {
			return fmt.Errorf("metric family %q: found buckets %v, expected 1 to %d numbers, each larger than the one before", q.Name, q.Bounds, maxBuckets)
		}
		x.bounds, x.counts = slices.Clone(q.Bounds), make([]uint64, len(q.Bounds)+1)
	}
	if r.countLocked(m, func(f *family) int { return len(f.metrics) }) >= maxMetrics {
		return fmt.Errorf("found more than %d metrics of the model, expected no more", maxMetrics)
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
			return fmt.Errorf("found a label of the name %q, expected letters, digits and '_', and none of Prometheus' own", name)
		case len(value) > maxLabelBytes || !utf8.ValidString(value):
			return fmt.Errorf("found %d bytes of label %s, expected at most %d, in UTF-8", len(value), name, maxLabelBytes)
		}
	}
	return nil
}

// labelKey is equal for equal labels, and for no others.
func labelKey(labels map[string]string) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		fmt.Fprintf(&b, "%q=%q,", name, labels[name])
	}
	return b.String()
}

// forget takes away what only one model had, which is unloaded.
func (r *register) forget(m *model) {
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

// snapshot returns everything, by name.
func (r *register) snapshot() []stats.Family {
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

// Metrics returns those that models have of their own.
func (e *Engine) Metrics() []stats.Family { return e.metrics.snapshot() }
