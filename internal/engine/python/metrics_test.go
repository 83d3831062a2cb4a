package python

import (
	"fmt"
	"strings"
	"testing"

	"github.com/shoal-serving/shoal/internal/stats"
)

func TestAModelHasMetricsOfItsOwnWhileItIsLoaded(t *testing.T) {
	f := newFixture(t, identityConfig, `
class TritonPythonModel:
    def initialize(self, args):
        kinds = pb_utils.MetricFamily
        self.seen = pb_utils.MetricFamily(name="seen_total", description="Requests", kind=kinds.COUNTER).Metric(labels={"model": "m", "n": 1})
        self.level = pb_utils.MetricFamily("level", "Level", kinds.GAUGE).Metric()
        self.sizes = pb_utils.MetricFamily("sizes", "Sizes", kinds.HISTOGRAM).Metric(labels={}, buckets=[1, 2.5])
        for wrong in (lambda: pb_utils.MetricFamily("nv_mine", "", kinds.GAUGE), lambda: pb_utils.MetricFamily("level", "Level", kinds.COUNTER),
                      lambda: pb_utils.MetricFamily("a b", "", kinds.GAUGE), lambda: self.seen.increment(-1), lambda: self.seen.set(1),
                      lambda: self.level.observe(1), lambda: self.level.set(float("nan")), lambda: self.sizes.value(),
                      lambda: pb_utils.MetricFamily("level", "Level", kinds.GAUGE).Metric(labels={"__name__": "x"})):
            try:
                wrong()
            except (pb_utils.TritonModelException, ValueError):
                continue
            raise AssertionError("not refused")
    def execute(self, requests):
        self.seen.increment(len(requests))
        self.level.increment(3)
        self.level.set(self.level.value() - 1)
        for x in (0.5, 1, 2, 9): self.sizes.observe(x)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", r.inputs()[0].as_numpy())]) for r in requests]`)
	m, err := f.engine.Load(t.Context(), f.src)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // instances share them
		inst, err := m.Instance(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		batch := calls(1, 2)
		if err := inst.(*instance).RunEach(t.Context(), batch); err != nil {
			t.Fatal(err)
		}
		release(batch)
		if err := inst.Close(); err != nil {
			t.Error(err)
		}
	}
	const want = "[{level Level 1 [{map[] 4 [] []}]} {seen_total Requests 0 [{map[model:m n:1] 4 [] []}]} {sizes Sizes 2 [{map[] 25 [1 2.5] [4 6 8]}]}]"
	if got := fmt.Sprint(f.engine.Metrics()); got != want {
		t.Errorf("metrics %s, want %s", got, want)
	}
	if err := m.Close(); err != nil || len(f.engine.Metrics()) != 0 {
		t.Errorf("error %v, metrics %v", err, f.engine.Metrics())
	}
}

func TestNoFamilyHasANameOfAHistogram(t *testing.T) {
	var r metricRegistry
	add := func(name string, kind stats.FamilyKind) error {
		_, err := r.answer(&model{}, &workerCall{Do: "family", Name: name, Kind: kind})
		return err
	}
	for _, tt := range []struct {
		name string
		kind stats.FamilyKind
		want string
	}{
		{"latency", stats.Histogram, ""},
		{"latency", stats.Histogram, ""}, // another model has the same
		{"latency_count", stats.Counter, `conflicts with metric family "latency"`},
		{"latency_sum", stats.Gauge, `conflicts with metric family "latency"`},
		{"latency_bucket", stats.Histogram, `conflicts with metric family "latency"`},
		{"latency_max", stats.Gauge, ""},
		{"size_sum", stats.Counter, ""},
		{"size_sum_count", stats.Counter, ""},
		{"size", stats.Histogram, `conflicts with metric family "size_sum"`},
		{"size", stats.Gauge, ""},
	} {
		if err := add(tt.name, tt.kind); tt.want == "" && err != nil || !strings.Contains(fmt.Sprint(err), tt.want) {
			t.Errorf("%s of kind %d: %v, want %q", tt.name, tt.kind, err, tt.want)
		}
	}
}

// A version that is loaded to replace another one is loaded while that one serves.
func TestAReloadedModelMayDescribeItsMetricsDifferently(t *testing.T) {
	var r metricRegistry
	before, after := &model{}, &model{}
	for _, tt := range []struct {
		m    *model
		call workerCall
		want string
	}{
		{before, workerCall{Do: "family", Name: "seen_total", Help: "requests", Kind: stats.Counter}, "0 <nil>"},
		{before, workerCall{Do: "metric", Name: "seen_total"}, "0 <nil>"},
		{before, workerCall{Do: "increment", Name: "seen_total", Value: 3}, "3 <nil>"},
		{after, workerCall{Do: "family", Name: "seen_total", Help: "requests that it has seen", Kind: stats.Counter}, "0 <nil>"},
		{after, workerCall{Do: "metric", Name: "seen_total"}, "0 <nil>"},
		{after, workerCall{Do: "increment", Name: "seen_total", Value: 1}, "4 <nil>"},
		{after, workerCall{Do: "family", Name: "seen_total", Help: "requests", Kind: stats.Gauge}, `0 metric family "seen_total" exists already with another kind`},
	} {
		if value, err := r.answer(tt.m, &tt.call); fmt.Sprint(value, " ", err) != tt.want {
			t.Errorf("%+v: %v %v, want %s", tt.call, value, err, tt.want)
		}
	}
	if r.removeModel(before); fmt.Sprint(r.snapshot()) != "[{seen_total requests 0 [{map[] 4 [] []}]}]" {
		t.Errorf("%v are left", r.snapshot())
	}
}

func TestAModelThatCannotBeLoadedLeavesNoMetrics(t *testing.T) {
	for name, text := range map[string]string{
		"load": `raise KeyError()`,
		"adopt": `
class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.as_dict()["max_batch_size"] = -1
        return config`,
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, identityConfig, "# class TritonPythonModel\npb_utils.MetricFamily('level', '', pb_utils.MetricFamily.GAUGE).Metric()\n"+text)
			if m, err := f.engine.Load(t.Context(), f.src); err == nil {
				_ = m.Close()
				t.Error("it was loaded")
			}
			if left := f.engine.Metrics(); len(left) != 0 {
				t.Errorf("%v are left", left)
			}
		})
	}
}

func TestMetricsOfAModelAreBounded(t *testing.T) {
	var r metricRegistry
	m := &model{}
	ask := func(q workerCall) error {
		_, err := r.answer(m, &q)
		return err
	}
	for want, q := range map[string]workerCall{ // before there are too many of all
		"at most 128":          {Do: "family", Name: strings.Repeat("x", 129), Kind: stats.Gauge},
		"expected at most 256": {Do: "metric", Name: "long", Labels: map[string]string{"a": strings.Repeat("x", maxLabelBytes+1)}},
	} {
		var r metricRegistry
		if _, err := r.answer(m, &workerCall{Do: "family", Name: "long", Kind: stats.Gauge}); err != nil {
			t.Fatal(err)
		}
		if _, err := r.answer(m, &q); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", q, err, want)
		}
	}
	for i := range maxFamilies {
		if err := ask(workerCall{Do: "family", Name: fmt.Sprintf("f%d", i), Kind: stats.Gauge}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range maxMetrics {
		if err := ask(workerCall{Do: "metric", Name: "f0", Labels: map[string]string{"i": fmt.Sprint(i)}}); err != nil {
			t.Fatal(err)
		}
	}
	for _, q := range []workerCall{
		{Do: "family", Name: "one_more", Kind: stats.Gauge},
		{Do: "metric", Name: "f1"},
		{Do: "metric", Name: "nowhere"},
		{Do: "set", Name: "f0"},
		{Do: "nonsense", Name: "f0", Labels: map[string]string{"i": "1"}},
	} {
		if ask(q) == nil {
			t.Errorf("%+v is let pass", q)
		}
	}
	other := &model{}
	if _, err := r.answer(other, &workerCall{Do: "family", Name: "f0", Kind: stats.Gauge}); err != nil {
		t.Error(err)
	}
	if r.removeModel(m); len(r.snapshot()) != 1 {
		t.Errorf("%v are left, want what the other has", r.snapshot())
	}
}
