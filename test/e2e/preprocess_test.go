//go:build e2e && linux

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/engine/onnx/onnxtest"
	"github.com/shoal-serving/shoal/test/servertest"
)

// preparer is a program that classifies a picture for some seconds, prepared by itself or by the ensemble, and
// writes how many times it did, and the seconds of CPU that it used.
const preparer = `
import io, sys, time
import numpy as np, shoal
from PIL import Image
url, folder, net, width = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
sys.path.insert(0, folder)
import model
file = io.BytesIO()
Image.effect_noise((width, width * 3 // 4), 60).convert("RGB").save(file, "JPEG")
jpeg = np.array([[file.getvalue()]], object)
classify, plain = shoal.load("classify", url=url), shoal.load(net, url=url)
ways = {"client": lambda: plain.forward(model.prepare(jpeg)["pixels"]), "ensemble": lambda: classify.forward(jpeg)}
assert (ways["client"]() == ways["ensemble"]()).all()
for line in sys.stdin:
    name, seconds = line.split()
    count, began, used = 0, time.monotonic(), time.process_time()
    while time.monotonic() - began < float(seconds):
        ways[name]()
        count += 1
    print(count, time.monotonic() - began, time.process_time() - used, flush=True)
`

// photoModel prepares pictures as most nets for photographs want them.
const photoModel = `
import io
import numpy as np, shoal
from PIL import Image
MEAN, SCALE = np.array([0.485, 0.456, 0.406], np.float32), np.array([0.229, 0.224, 0.225], np.float32)

@shoal.model(inputs={"jpeg": ("STRING", [-1, 1])}, outputs={"pixels": ("FP32", [-1, 3, 224, 224])}, max_batch=8)
def prepare(jpeg):
    return {"pixels": np.stack([pixels(data) for data in jpeg.ravel()])}

def pixels(data):
    picture = Image.open(io.BytesIO(data)).convert("RGB").resize((224, 224), Image.Resampling.BILINEAR)
    return np.ascontiguousarray(((np.asarray(picture, np.float32) / 255 - MEAN) / SCALE).transpose(2, 0, 1))
`

const photoEnsemble = `
platform: "ensemble"
max_batch_size: 8
input { name: "JPEG" data_type: TYPE_STRING dims: [ 1 ] }
output { name: "SCORES" data_type: TYPE_FP32 dims: [ 1000 ] }
ensemble_scheduling {
  step [
    { model_name: "prepare" model_version: -1 input_map { key: "jpeg" value: "JPEG" } output_map { key: "pixels" value: "pixels" } },
    { model_name: "resnet50" model_version: -1 input_map { key: "data" value: "pixels" } output_map { key: "scores" value: "SCORES" } }
  ]
}
`

// photoRepository has ResNet-50 behind a Python model, as an ensemble.
func photoRepository(t *testing.T) string {
	t.Helper()
	dir := servertest.ONNXRepository(t, map[string]servertest.ONNXModel{
		"resnet50": {Config: "max_batch_size: 8\n", File: servertest.RealModel(t, "resnet50")}, "classify": {Config: photoEnsemble}, "prepare": {},
	})
	if err := os.WriteFile(filepath.Join(dir, "prepare", "1", "model.py"), []byte(photoModel), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestAnEnsembleCostsWhatItsClientWouldPay compares an ensemble that prepares pictures in Python for an ONNX
// model with a client that does so itself, in the same Python, and asks only the ONNX model.
func TestAnEnsembleCostsWhatItsClientWouldPay(t *testing.T) {
	onnxtest.Library(t)
	env := environment(t, "pillow", "PIL")
	t.Setenv("PATH", filepath.Join(env, "bin")+":"+os.Getenv("PATH"))
	compare := func(t *testing.T, dir, net string, width int, high float64) {
		s := servertest.Start(t, dir)
		s.AwaitMeasured(t, net)
		cmd := exec.Command(filepath.Join(env, "bin", "python"), "-c", preparer, s.HTTP, filepath.Join(dir, "prepare", "1"), net, fmt.Sprint(width))
		cmd.Env = append(os.Environ(), "PYTHONPATH="+servertest.Root+"/python/src")
		cmd.Stderr = os.Stderr
		in, out := servertest.Converse(t, cmd)
		// classify returns the milliseconds of a picture, and those of CPU in all processes.
		classify := func(way string) (took, cpu float64) {
			before := cpuOfAll(s)
			var count, seconds, own float64
			if _, err := fmt.Fprintln(in, way, servertest.StrictOr(10.0, 1)); err != nil || !out.Scan() {
				t.Fatal("the client has ended")
			}
			if _, err := fmt.Sscan(out.Text(), &count, &seconds, &own); err != nil {
				t.Fatal(err)
			}
			return 1000 * seconds / count, 1000 * ((cpuOfAll(s) - before).Seconds() + own) / count
		}
		classify("ensemble") // caches and connections are warm afterwards
		// Beside other work the processes wait for each other's turns on the cores: then only the CPU
		// time says what the steps cost.
		what := servertest.StrictOr("time", "CPU time") + " of a picture, times that of a client that prepares it"
		servertest.Hold(t, what, 0, high, func() float64 {
			own, ownCPU := classify("client")
			together, cpu := classify("ensemble")
			t.Logf("%.2f ms and %.2f ms of CPU with the ensemble, %.2f and %.2f by the client: %.3f ms of CPU more for each of the two steps", together, cpu, own, ownCPU, (cpu-ownCPU)/2)
			return servertest.StrictOr(together/own, cpu/ownCPU)
		})
	}
	if *servertest.Strict {
		t.Run("photographs", func(t *testing.T) { compare(t, photoRepository(t), "resnet50", 1024, 1.1) })
		return
	}
	// A net of some microseconds: the steps themselves are most of the time.
	t.Run("digits", func(t *testing.T) { compare(t, servertest.Root+"/examples/jpeg-classifier/models", "digits", 1024, 2) })
}

// cpuOfAll returns the CPU time of the server and of its workers.
func cpuOfAll(s *servertest.Server) (all time.Duration) {
	all = s.Usage().CPU
	for _, pid := range servertest.Children(s.Cmd.Process.Pid) {
		all += s.UsageOf(pid).CPU
	}
	return all
}
