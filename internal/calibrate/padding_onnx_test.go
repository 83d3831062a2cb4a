package calibrate_test

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-serving/shoal/internal/calibrate"
	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/engine/onnx"
	"github.com/shoal-serving/shoal/internal/engine/onnx/onnxtest"
	"github.com/shoal-serving/shoal/internal/modelconfig"
)

// All three models have a mask. mean_pool does not use it; token_scale returns as many
// elements as the request has.
func TestPaddingIsRefusedIfItChangesResults(t *testing.T) {
	eng := onnx.New(onnx.Options{Library: onnxtest.Library(t)})
	defer func() {
		if err := eng.Close(); err != nil {
			t.Error(err)
		}
	}()
	for name, want := range map[string]struct {
		outputs []int
		reason  string
	}{
		"mean_pool":   {nil, "padding changes the results: row 2 of 2: output mean"},
		"masked_pool": {[]int{0}, ""},
		"token_scale": {[]int{1}, ""},
	} {
		cfg, err := modelconfig.Parse("", []byte(`parameters { key: "pad" value { string_value: "auto" } }`))
		if err != nil {
			t.Fatal(err)
		}
		file := onnxtest.Model(name)
		cfg.Name, cfg.Automatic, cfg.Proto.DefaultModelFilename = name, true, filepath.Base(file)
		m, err := eng.Load(t.Context(), engine.Source{Config: cfg, Version: 1, Dir: filepath.Dir(file)})
		if err != nil {
			t.Fatal(err)
		}
		if cfg.Padding == nil || !cfg.Padding.Detected {
			t.Fatalf("%s: the mask was not detected", name)
		}
		inst, err := m.Instance(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		outputs, reason, err := calibrate.CheckPadding(t.Context(), cfg, inst, calibrate.Synthetic(cfg))
		if err != nil || !slices.Equal(outputs, want.outputs) || want.reason == "" && reason != "" || !strings.Contains(reason, want.reason) {
			t.Errorf("%s: got %v, %q, %v; want %v, %q", name, outputs, reason, err, want.outputs, want.reason)
		}
		if err := inst.Close(); err != nil {
			t.Error(err)
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}
}
