//go:build e2e

package e2e

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/client"
	"github.com/shoal-serving/shoal/internal/engine/onnx/onnxtest"
	"github.com/shoal-serving/shoal/test/servertest"
)

const frameSamples = 512 // of 32 ms at 16 kHz

// voices starts a server with the configuration of examples/voice-detector, with the given
// changes: pairs of what to replace, and by what. Strict tests have the real detector, others a small net
// with the same interface.
func voices(t *testing.T, changes ...string) *servertest.Server {
	t.Helper()
	onnxtest.Library(t)
	file := onnxtest.Model("voices")
	if *servertest.Strict {
		file = servertest.RealModel(t, "silero_vad")
	}
	config, err := os.ReadFile(servertest.Root + "/examples/voice-detector/models/silero_vad/config.pbtxt")
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(changes); i += 2 {
		if !strings.Contains(string(config), changes[i]) {
			t.Fatalf("the configuration of the example does not contain %q", changes[i])
		}
	}
	return servertest.Start(t, servertest.ONNXRepository(t, map[string]servertest.ONNXModel{
		"silero_vad": {Config: strings.NewReplacer(changes...).Replace(string(config)), File: file},
	}))
}

// hum returns a frame of a stream: a tone of its own with harmonics, which swells and fades, and noise.
func hum(stream, frame int) []float32 {
	chance := rand.New(rand.NewPCG(uint64(stream), uint64(frame)))
	samples := make([]float32, frameSamples)
	for i := range samples {
		at := float64(frame*frameSamples+i) / 16000
		sum := 0.02 * chance.NormFloat64()
		for harmonic := 1; harmonic <= 8; harmonic++ {
			sum += 0.1 * math.Sin(2*math.Pi*float64((90+5*stream)*harmonic)*at)
		}
		samples[i] = float32(sum * (0.5 + 0.5*math.Sin(2*math.Pi*float64(1+stream%4)*at)))
	}
	return samples
}

// hear sends a frame of a stream, and returns the probability of a voice.
func hear(t *testing.T, c *client.Client, id any, samples []float32, start, end bool) (float32, error) {
	t.Helper()
	resp, err := c.Infer(t.Context(), &client.Request{
		Model: "silero_vad", Inputs: []client.Tensor{client.NewTensor("input", samples, 1, frameSamples)},
		Parameters: map[string]any{"sequence_id": id, "sequence_start": start, "sequence_end": end},
	})
	if err != nil {
		return 0, err
	}
	values, err := client.Values[float32](resp.Output("output"))
	if err != nil || len(values) != 1 || len(resp.Outputs) != 1 {
		return 0, fmt.Errorf("%d outputs, %v, %w, want one probability", len(resp.Outputs), values, err)
	}
	return values[0], nil
}

// TestStreamsGetTheSameBitsTogetherAsAlone runs 32 streams of sound at the same time, and each alone.
// Every probability must have the same bits, although the streams share batches.
func TestStreamsGetTheSameBitsTogetherAsAlone(t *testing.T) {
	const streams = 32
	length := servertest.StrictOr(313, 40) // 10,016 frames
	s := voices(t)
	c := s.Client()
	frames := make([][][]float32, streams) // drawn before, so that a client sends the next frame at once
	alone := make([][]float32, streams)
	for n := range streams {
		for i := range length {
			frames[n] = append(frames[n], hum(n, i))
			p, err := hear(t, c, fmt.Sprint("alone ", n), frames[n][i], i == 0, i == length-1)
			if err != nil {
				t.Fatal(err)
			}
			alone[n] = append(alone[n], p)
		}
	}
	if low, high := slices.Min(alone[0]), slices.Max(alone[0]); high-low < 0.01 {
		t.Errorf("all probabilities of a stream are between %v and %v: they show nothing", low, high)
	}
	servertest.Hold(t, "frames in a batch", servertest.StrictOr(8.0, 4), streams, func() float64 {
		before := s.Batches("silero_vad")
		var all sync.WaitGroup
		for n := range streams {
			all.Go(func() {
				for i, frame := range frames[n] {
					p, err := hear(t, c, n+1, frame, i == 0, i == length-1)
					if err != nil || math.Float32bits(p) != math.Float32bits(alone[n][i]) {
						t.Errorf("stream %d, frame %d: %v, %v, alone %v", n, i, p, err, alone[n][i])
						return
					}
				}
			})
		}
		all.Wait()
		batches := 0
		for size, b := range s.Batches("silero_vad") {
			batches += b.Count - before[size].Count
		}
		return float64(streams*length) / float64(batches)
	})
}

// TestAStreamThatFallsSilentGivesItsSlotAway fills all slots with streams that send no more. Another one
// gets a slot when they have been idle for the configured time, and they have to start again.
func TestAStreamThatFallsSilentGivesItsSlotAway(t *testing.T) {
	const slots, idle = 4, 1500 * time.Millisecond
	s := voices(t, "max_candidate_sequences: 256", fmt.Sprint("max_candidate_sequences: ", slots),
		"max_sequence_idle_microseconds: 5000000", fmt.Sprint("max_sequence_idle_microseconds: ", idle.Microseconds()))
	c := s.Client()
	servertest.Hold(t, "ms until a slot is free, above the idle time", 0, servertest.StrictOr(50.0, 500), func() float64 {
		began := time.Now()
		for n := range slots {
			if _, err := hear(t, c, fmt.Sprint("silent ", n), hum(n, 0), true, false); err != nil {
				t.Error(err)
				return 0
			}
		}
		if _, err := hear(t, c, "another", hum(slots, 0), true, true); err != nil {
			t.Error(err)
		}
		took := time.Since(began)
		if _, err := hear(t, c, "silent 0", hum(0, 1), false, false); err == nil {
			t.Error("a frame of a stream that was idle for too long was answered, want that it has to start again")
		}
		return float64((took - idle).Milliseconds())
	})
}
