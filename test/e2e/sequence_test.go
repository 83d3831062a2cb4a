//go:build e2e

package e2e

import (
	"fmt"
	"sync"
	"testing"

	"github.com/shoal-serving/shoal/client"
	"github.com/shoal-serving/shoal/internal/engine/onnx/onnxtest"
	"github.com/shoal-serving/shoal/test/servertest"
)

// recurrentConfig is a net whose state the server keeps: the next state is half of the last
// one and the input.
const recurrentConfig = `
backend: "onnxruntime"
max_batch_size: 16
input { name: "x" data_type: TYPE_FP32 dims: [ 2, 4 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ 2, 4 ] }
sequence_batching {
  max_sequence_idle_microseconds: 60000000
  oldest { max_candidate_sequences: 64 }
  state { input_name: "state" output_name: "next" data_type: TYPE_FP32 dims: [ 2, 4 ] }
}
`

// TestInterleavedSequencesAreWhatEachIsAlone runs many sequences of a net with a state at the
// same time, over both protocols, with numbers and with strings as their IDs.
func TestInterleavedSequencesAreWhatEachIsAlone(t *testing.T) {
	onnxtest.Library(t)
	s := servertest.Start(t, servertest.ONNXRepository(t, map[string]servertest.ONNXModel{"m": {Config: recurrentConfig, File: onnxtest.Model("recurrent")}}))
	const sequences, length = 16, 100
	for name, c := range map[string]*client.Client{"HTTP": s.Web(), "gRPC": s.Client()} {
		var all sync.WaitGroup
		for n := range sequences {
			var id any = n + 1
			if n%2 == 1 {
				id = fmt.Sprintf("%s %d", name, n)
			}
			all.Go(func() {
				state := [8]float32{}
				for i := range length {
					x := make([]float32, len(state))
					for k := range x {
						x[k] = float32(100*n+i) + float32(k)/8
						state[k] = state[k]*0.5 + x[k]
					}
					resp, err := c.Infer(t.Context(), &client.Request{
						Model: "m", Inputs: []client.Tensor{client.NewTensor("x", x, 1, 2, 4)},
						Parameters: map[string]any{"sequence_id": id, "sequence_start": i == 0, "sequence_end": i == length-1},
					})
					if err != nil {
						t.Errorf("%s, sequence %v, request %d: %v", name, id, i, err)
						return
					}
					got, err := client.Values[float32](resp.Output("y"))
					if err != nil || [8]float32(got) != state || resp.Output("next") != nil {
						t.Errorf("%s, sequence %v, request %d: %v, %v, want %v", name, id, i, got, err, state)
						return
					}
				}
			})
		}
		all.Wait()
	}
}

// TestASequenceThatIsSentAheadOnAStreamRunsInItsOrder sends a sequence on a stream without
// waiting for answers.
func TestASequenceThatIsSentAheadOnAStreamRunsInItsOrder(t *testing.T) {
	onnxtest.Library(t)
	s := servertest.Start(t, servertest.ONNXRepository(t, map[string]servertest.ONNXModel{"m": {Config: recurrentConfig, File: onnxtest.Model("recurrent")}}))
	stream, err := s.Client().Stream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	const length = 200
	for i := range length {
		err := stream.Send(&client.Request{
			Model: "m", Inputs: []client.Tensor{client.NewTensor("x", []float32{float32(i), 0, 0, 0, 0, 0, 0, 0}, 1, 2, 4)},
			Parameters: map[string]any{"sequence_id": 7, "sequence_start": i == 0, "sequence_end": i == length-1},
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	want := float32(0)
	for i := range length {
		want = want*0.5 + float32(i)
		resp, err := stream.Recv()
		if err != nil {
			t.Fatalf("request %d: %v", i, err)
		}
		if got, err := client.Values[float32](resp.Output("y")); err != nil || got[0] != want {
			t.Fatalf("request %d: %v, %v, want %v", i, got, err, want)
		}
	}
}
