//go:build e2e

package e2e

import (
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/shoal-serving/shoal/client"
	"github.com/shoal-serving/shoal/internal/engine/onnx/onnxtest"
	"github.com/shoal-serving/shoal/tensor"
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

// speechEncoderConfig is what public repositories for streaming speech recognition have for their
// encoders, such as k2-fsa/sherpa: states of half precision with initial values, an empty list of controls,
// a delay, an input and an output without dimensions, and a file name of its own.
const speechEncoderConfig = `
name: "encoder"
backend: "onnxruntime"
default_model_filename: "encoder.onnx"
max_batch_size: 16
sequence_batching {
  max_sequence_idle_microseconds: 60000000
  oldest {
    max_candidate_sequences: 1024
    max_queue_delay_microseconds: 5000
  }
  control_input [ ]
  state [
    { input_name: "attn_cache" output_name: "next_attn_cache" data_type: TYPE_FP16 dims: [ 4, 2, 8 ]
      initial_state: { data_type: TYPE_FP16 dims: [ 4, 2, 8 ] zero_data: true name: "initial state" } },
    { input_name: "cnn_cache" output_name: "next_cnn_cache" data_type: TYPE_FP16 dims: [ 3, 2, 8 ]
      initial_state: { data_type: TYPE_FP16 dims: [ 3, 2, 8 ] zero_data: true name: "initial state" } },
    { input_name: "processed_lens" output_name: "next_processed_lens" data_type: TYPE_INT64 dims: [ 1 ]
      initial_state: { data_type: TYPE_INT64 dims: [ 1 ] zero_data: true name: "initial state" } }
  ]
}
input [
  { name: "speech" data_type: TYPE_FP16 dims: [ -1, 80 ] },
  { name: "speech_lengths" data_type: TYPE_INT64 dims: [ 1 ] reshape: { shape: [ ] } }
]
output [
  { name: "encoder_out" data_type: TYPE_FP16 dims: [ -1, 8 ] },
  { name: "encoder_out_lens" data_type: TYPE_INT64 dims: [ 1 ] reshape: { shape: [ ] } }
]
instance_group [ { count: 1 kind: KIND_CPU } ]
`

// half returns a number that needs few bits in half precision.
func half(f float32) uint16 {
	if f == 0 {
		return 0
	}
	bits := math.Float32bits(f)
	return uint16(bits>>16&0x8000 | (bits>>23&0xff-127+15)<<10 | bits>>13&0x3ff)
}

func TestAStreamingSpeechEncoderRuns(t *testing.T) {
	onnxtest.Library(t)
	dir := servertest.ONNXRepository(t, map[string]servertest.ONNXModel{"encoder": {Config: speechEncoderConfig}})
	file, err := filepath.Abs(onnxtest.Model("speech_encoder"))
	if err == nil {
		err = os.Symlink(file, filepath.Join(dir, "encoder", "1", "encoder.onnx"))
	}
	if err != nil {
		t.Fatal(err)
	}
	s := servertest.Start(t, dir)
	const sequences, chunks, frames = 12, 5, 16 // more chunks need more bits than half precision has
	var all sync.WaitGroup
	for n := range sequences {
		c := s.Client()
		if n%3 == 0 {
			c = s.Web()
		}
		all.Go(func() {
			cache := float32(0)
			for i := range chunks {
				level := float32(n+1) / 4
				var speech []byte
				for range frames * 80 {
					speech = binary.LittleEndian.AppendUint16(speech, half(level))
				}
				resp, err := c.Infer(t.Context(), &client.Request{
					Model: "encoder",
					Inputs: []client.Tensor{
						{Name: "speech", Type: tensor.FP16, Shape: []int64{1, frames, 80}, Data: speech},
						client.NewTensor("speech_lengths", []int64{int64(frames - n)}, 1, 1),
					},
					Parameters: map[string]any{"sequence_id": n + 1, "sequence_start": i == 0, "sequence_end": i == chunks-1},
				})
				if err != nil {
					t.Errorf("sequence %d, chunk %d: %v", n, i, err)
					return
				}
				cache = cache/2 + level
				heard, lengths := resp.Output("encoder_out"), resp.Output("encoder_out_lens")
				if heard == nil || lengths == nil || len(resp.Outputs) != 2 {
					t.Errorf("sequence %d, chunk %d: %d outputs, want two", n, i, len(resp.Outputs))
					return
				}
				total, err := client.Values[int64](lengths)
				if err != nil || len(total) != 1 || total[0] != int64((i+1)*(frames-n)) {
					t.Errorf("sequence %d, chunk %d: %v, %v frames so far, want %d", n, i, err, total, (i+1)*(frames-n))
				}
				if got := binary.LittleEndian.Uint16(heard.Data); got != half(level+cache) || heard.Shape[1] != frames {
					t.Errorf("sequence %d, chunk %d: %#x, shape %v, want %#x", n, i, got, heard.Shape, half(level+cache))
				}
			}
		})
	}
	all.Wait()
	batches := 0
	for _, b := range s.Batches("encoder") {
		batches += b.Count
	}
	if batches == 0 || batches > sequences*chunks/2 {
		t.Errorf("%d chunks ran in %d batches, want that sequences share them", sequences*chunks, batches)
	}
}

// TestBenchSendsSequences measures a model with sequences over each protocol, in a closed and in an open
// loop. A request out of its order would be refused, and the statistics of the server count all.
func TestBenchSendsSequences(t *testing.T) {
	onnxtest.Library(t)
	s := servertest.Start(t, servertest.ONNXRepository(t, map[string]servertest.ONNXModel{"m": {Config: recurrentConfig, File: onnxtest.Model("recurrent")}}))
	for _, args := range [][]string{
		{"http", "--concurrency-range", "8"},
		{"grpc", "--concurrency-range", "8", "--sequence-id-range", "100:108"},
		{"grpc", "--streaming", "--concurrency-range", "8", "--serial-sequences"},
		{"http", "--request-rate-range", "300", "--num-of-sequences", "6"},
	} {
		const requests = 300
		_, report := servertest.RunBench(t, s, args[0], append(args[1:], "-m", "m", "--sequence-length", "7", "--sequence-length-variation", "50", "--request-count", fmt.Sprint(requests))...)
		if c := report.Levels[0].Client; c.Requests != requests || c.Failed != 0 {
			t.Errorf("%v: %d requests, %d failed, want %d and none", args, c.Requests, c.Failed, requests)
		}
	}
	if n := statisticsOf(t, s, "m"); n.Fail.Count != 0 || n.Success.Count < 4*300 {
		t.Errorf("the server answered %d and refused %d", n.Success.Count, n.Fail.Count)
	}
}
