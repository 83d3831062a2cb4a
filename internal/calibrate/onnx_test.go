package calibrate_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoal-serving/shoal/internal/calibrate"
	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/engine/onnx"
	"github.com/shoal-serving/shoal/internal/engine/onnx/onnxtest"
	"github.com/shoal-serving/shoal/internal/modelconfig"
)

func TestRealModelsAreToldApart(t *testing.T) {
	eng := onnx.New(onnx.Options{Library: onnxtest.Library(t)})
	defer func() {
		if err := eng.Close(); err != nil {
			t.Error(err)
		}
	}()
	for name, want := range map[string]string{
		"mlp": "", "rows": "", "add_sub": "", "strings": "", "types": "", "fail_if": "",
		"centred": "rows are not independent: row 1 of 2: output y",
		"large":   "does not return one row of output for each row of input: output y",
	} {
		cfg, err := modelconfig.Parse("", nil)
		if err != nil {
			t.Fatal(err)
		}
		file := onnxtest.Model(name)
		cfg.Name, cfg.Automatic, cfg.Proto.DefaultModelFilename = name, true, filepath.Base(file)
		m, err := eng.Load(t.Context(), engine.Source{Config: cfg, Version: 1, Dir: filepath.Dir(file)})
		if err != nil {
			t.Fatal(err)
		}
		inst, err := m.Instance(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		why, err := calibrate.CombineUnsafeReason(t.Context(), cfg, inst, calibrate.Synthetic(cfg))
		if err != nil || want == "" && why != "" || !strings.Contains(why, want) {
			t.Errorf("%s: %q, %v; want %q", name, why, err, want)
		}
		if err := inst.Close(); err != nil {
			t.Error(err)
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}
}
