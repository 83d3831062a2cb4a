package servertest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/device"
	"github.com/shoal-serving/shoal/internal/engine/onnx/onnxtest"
	"github.com/shoal-serving/shoal/test/bare"
)

// An ONNXModel is a model of a repository: a file and a configuration, of which
// either may be missing.
type ONNXModel struct{ File, Config string }

// ONNXRepository writes a repository with one version of each model. Files are
// linked, not copied.
func ONNXRepository(t testing.TB, models map[string]ONNXModel) string {
	t.Helper()
	dir := t.TempDir()
	for name, m := range models {
		AddModel(t, dir, name, m)
	}
	return dir
}

// AddModel adds a model to a repository.
func AddModel(t testing.TB, dir, name string, m ONNXModel) {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(dir, name, "1"), 0o755); err != nil {
		t.Fatal(err)
	}
	if m.Config != "" {
		if err := os.WriteFile(filepath.Join(dir, name, "config.pbtxt"), []byte(m.Config), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if m.File != "" {
		file, err := filepath.Abs(m.File)
		if err == nil {
			err = os.Symlink(file, filepath.Join(dir, name, "1", "model.onnx"))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// ModelsDir is what `make models` fills.
const ModelsDir = Root + "/models"

// RealModel returns the path of a model of real size, for a proof that is strict.
func RealModel(t testing.TB, name string) string {
	t.Helper()
	file := bare.File(ModelsDir, name)
	if _, err := os.Stat(file); err != nil {
		t.Fatalf("%v: run `make models`", err)
	}
	return file
}

// PythonInterpreter returns an interpreter that has numpy.
func PythonInterpreter(t *testing.T) string {
	t.Helper()
	interpreter, err := filepath.Abs(filepath.Join(Root, "bin", "worker", "bin", "python"))
	if err != nil {
		t.Fatal(err)
	}
	if exec.Command(interpreter, "-c", "import numpy").Run() != nil {
		t.Skip("no interpreter has numpy: run make numpy")
	}
	return interpreter
}

// PythonRepository writes a repository with a model.py, as the model m.
func PythonRepository(t *testing.T, config, model string) string {
	t.Helper()
	interpreter := PythonInterpreter(t)
	dir := Repository(t, map[string]string{"m": `backend: "python"
max_batch_size: 8
input [ { name: "INPUT" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "OUTPUT" data_type: TYPE_FP32 dims: [ 4 ] } ]
dynamic_batching { }
parameters { key: "python" value { string_value: "` + interpreter + `" } }
` + config})
	text := "import os, time\nimport triton_python_backend_utils as pb_utils\n" + model
	if err := os.WriteFile(filepath.Join(dir, "m", "1", "model.py"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

// The seed device's curve, as in examples/seed-device.
var (
	SeedCurve    = device.Curve{Fixed: 1921 * time.Microsecond, PerRow: 59300 * time.Nanosecond}
	SeedSlowdown = []float64{1, 1.391}
)

// SeedSpeed is the same as parameters of a configuration.
const SeedSpeed = `
parameters { key: "fixed_us" value { string_value: "1921" } }
parameters { key: "per_row_us" value { string_value: "59.3" } }
parameters { key: "slowdown" value { string_value: "1, 1.391" } }`

// SeedConfig writes a model of the seed device's shapes.
func SeedConfig(instances int, scheduling, speed string) string {
	return fmt.Sprintf(`backend: "simulated"
max_batch_size: 8
input [ { name: "input.1" data_type: TYPE_FP32 dims: [ 1, 32, 100 ] } ]
output [ { name: "308" data_type: TYPE_FP32 dims: [ 26, 37 ] } ]
instance_group [ { count: %d } ]
%s %s`, instances, scheduling, speed)
}

func us(d time.Duration) string { return strconv.FormatInt(d.Microseconds(), 10) }

// Repository writes a model repository with one version of each model.
func Repository(t testing.TB, configs map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, config := range configs {
		if err := os.MkdirAll(filepath.Join(dir, name, "1"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name, "config.pbtxt"), []byte(config), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// Config writes the configuration of a small simulated model, which answers with its input.
func Config(takes time.Duration, instances, scheduling string) string {
	return `backend: "simulated"
max_batch_size: 8
input [ { name: "INPUT" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "OUTPUT" data_type: TYPE_FP32 dims: [ 4 ] } ]
instance_group [ { count: ` + instances + ` } ]
parameters { key: "fixed_us" value { string_value: "` + us(takes) + `" } }
` + scheduling
}

// Small returns a repository with a device for requests of some bytes, as the
// model small: what comes at once is in the queue at once, in the order in which it was
// sent, and nothing is refused.
func Small(t *testing.T, device device.Curve) string {
	return Repository(t, map[string]string{"small": Config(device.Fixed, "1", `
		dynamic_batching { max_queue_delay_microseconds: 0 default_queue_policy { max_queue_size: 10000 } }
		parameters { key: "per_row_us" value { string_value: "`+strconv.FormatFloat(float64(device.PerRow)/float64(time.Microsecond), 'f', -1, 64)+`" } }
	`)})
}

// BareFile returns a directory with a model's file and nothing else.
func BareFile(t *testing.T, model string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "models")
	file, err := os.ReadFile(onnxtest.Model(model))
	if err == nil {
		err = os.Mkdir(dir, 0o755)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, model+".onnx"), file, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}
