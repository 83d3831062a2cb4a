package python

import (
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/engine/python/pythontest"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/tensor"
)

// BenchmarkRoundTrip runs a batch of 8 requests of 12.8 KB each in a worker that returns 4
// KB for each and computes nothing.
func BenchmarkRoundTrip(b *testing.B) {
	f := newFixture(b, `
		max_batch_size: 8
		input { name: "INPUT" data_type: TYPE_FP32 dims: 3200 }
		output { name: "OUTPUT" data_type: TYPE_FP32 dims: 1024 }
		dynamic_batching { }`, `
return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", pb_utils.get_input_tensor_by_name(r, "INPUT").as_numpy()[:, :1024])]) for r in requests]`)
	inst := f.open(b)
	batch := make([]engine.Call, 8)
	for i := range batch {
		batch[i].Request = &infer.Request{Rows: 1, Inputs: []tensor.Tensor{rowsOf(1)}}
	}
	measure(b, func() error {
		if err := inst.RunEach(b.Context(), batch); err != nil {
			return err
		}
		release(batch)
		for i := range batch {
			batch[i].Outputs.Tensors = batch[i].Outputs.Tensors[:0]
			batch[i].Outputs.Memory = nil
		}
		return nil
	})
}

// BenchmarkFunction is the same with a function, which receives the rows of the batch as
// one array.
func BenchmarkFunction(b *testing.B) {
	f := newApp(b, "app.py", `
import shoal

@shoal.model(inputs={"INPUT": ("FP32", [-1, 3200])}, outputs={"OUTPUT": ("FP32", [-1, 1024])}, max_batch=8, name="m")
def first(INPUT):
    return INPUT[:, :1024]`)
	inst := f.instance(b)
	in := []tensor.Tensor{rowsOf(8)}
	var out engine.Outputs
	measure(b, func() error {
		if err := inst.Run(b.Context(), in, &out); err != nil {
			return err
		}
		out.Memory.Release()
		return nil
	})
}

func rowsOf(n int64) tensor.Tensor {
	return tensor.Tensor{Name: "INPUT", Type: tensor.FP32, Shape: []int64{n, 3200}, Data: tensor.Data(make([]float32, n*3200))}
}

func measure(b *testing.B, one func() error) {
	b.Helper()
	var took []time.Duration
	for b.Loop() {
		began := time.Now()
		if err := one(); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(began))
	}
	reportTimes(b, took)
}

// BenchmarkPing measures the lower bound of a round trip: a process that echoes each
// message.
func BenchmarkPing(b *testing.B) {
	ours, theirs, err := socketPair()
	if err != nil {
		b.Fatal(err)
	}
	cmd := exec.Command(pythontest.Interpreter(b), "-c", `
import socket
line = socket.socket(fileno=3)
while True:
    message = line.recv(64)
    if not message:
        break
    line.send(message)`)
	cmd.ExtraFiles = []*os.File{theirs}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	_ = theirs.Close()
	defer func() { _ = cmd.Wait() }()
	defer func() { _ = ours.Close() }()
	message := make([]byte, frameSize)
	measure(b, func() error {
		if _, err := ours.Write(message); err != nil {
			return err
		}
		_, _, err := read(ours, message)
		return err
	})
}

func reportTimes(b *testing.B, took []time.Duration) {
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Nanoseconds())/1e3, "p50-µs")
	b.ReportMetric(float64(took[len(took)/10].Nanoseconds())/1e3, "p10-µs")
}
