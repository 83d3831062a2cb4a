//go:build e2e

package e2e

import (
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/shoal-serving/shoal/client"
	"github.com/shoal-serving/shoal/internal/engine/onnx/onnxtest"
	"github.com/shoal-serving/shoal/test/servertest"
)

var mixed = flag.Int("mixed", 1_500, "how many requests of mixed lengths are compared with their own rows")

// lengthsConfig is the seed device with a cost by elements. It returns each row as it is.
const lengthsConfig = `
backend: "simulated"
max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: -1 }
output { name: "y" data_type: TYPE_FP32 dims: -1 }
dynamic_batching { }
instance_group { count: 1 }
parameters { key: "fixed_us" value { string_value: "1921" } }
parameters { key: "per_element_us" value { string_value: "1.8" } }
parameters { key: "pad" value { string_value: "%s" } }
`

// infersMixed sends requests of 1 to 64 elements and one or two rows from 64 clients, and
// compares each answer with what becomes of the request's own rows.
func infersMixed(t *testing.T, s *servertest.Server, model string, inputs func(x []float32, rows, length int) []client.Tensor, want func(x []float32, rows, length int) []float32) {
	t.Helper()
	const clients = 64
	var all sync.WaitGroup
	for n := range clients {
		all.Go(func() {
			chance := rand.New(rand.NewPCG(7, uint64(n)))
			for range *mixed / clients {
				rows, length := 1+chance.IntN(2), 1+chance.IntN(64)
				x := make([]float32, rows*length)
				for i := range x {
					x[i] = chance.Float32() + float32(n)
				}
				resp, err := s.Web().Infer(t.Context(), &client.Request{Model: model, Inputs: inputs(x, rows, length)})
				if err != nil {
					t.Error(err)
					return
				}
				got, err := client.Values[float32](&resp.Outputs[0])
				if err != nil || !near(got, want(x, rows, length)) {
					t.Errorf("%v: %d rows of %d: got %v for %v", err, rows, length, got, x)
					return
				}
			}
		})
	}
	all.Wait()
}

// near reports whether numbers are equal within the tolerance of the check at load.
func near(got, want []float32) bool {
	if len(got) != len(want) {
		return false
	}
	for i := range got {
		if !(math.Abs(float64(got[i]-want[i])) <= 1e-3*math.Abs(float64(want[i]))+1e-4) { // nor is NaN near
			return false
		}
	}
	return true
}

func onlyX(x []float32, rows, length int) []client.Tensor {
	return []client.Tensor{client.NewTensor("x", x, int64(rows), int64(length))}
}

func withMask(x []float32, rows, length int) []client.Tensor {
	mask := make([]int64, len(x))
	for i := range mask {
		mask[i] = 1
	}
	return append(onlyX(x, rows, length), client.NewTensor("mask", mask, int64(rows), int64(length)))
}

func itself(x []float32, _, _ int) []float32 { return x }

func meanOfRows(x []float32, rows, length int) (means []float32) {
	for row := range rows {
		sum := float32(0)
		for _, v := range x[row*length : (row+1)*length] {
			sum += v
		}
		means = append(means, sum/float32(length))
	}
	return means
}

func multiples(x []float32, _, _ int) (all []float32) {
	for _, v := range x {
		for k := range 8 {
			all = append(all, float32(k+1)*v)
		}
	}
	return all
}

func TestRequestsOfDifferentLengthsGetTheirOwnRows(t *testing.T) {
	s := servertest.Start(t, servertest.Repository(t, map[string]string{
		"padded": fmt.Sprintf(lengthsConfig, "x=0"), "separate": fmt.Sprintf(lengthsConfig, "off"),
	}))
	infersMixed(t, s, "padded", onlyX, itself)
	infersMixed(t, s, "separate", onlyX, itself)
	padded, separate := s.Explanation("padded"), s.Explanation("separate")
	if padded.Policy.Padded.Batches == 0 || padded.Policy.Padded.Together >= padded.Policy.Padded.Separate {
		t.Errorf("padding was not used: %+v", padded.Policy.Padded)
	}
	if n := separate.Policy.Padded.Batches; n > 0 {
		t.Errorf("%d batches were padded although the configuration forbids it", n)
	}
	if 4*padded.Totals.Batches > separate.Totals.Batches*3 {
		t.Errorf("%d batches with padding, and %d without", padded.Totals.Batches, separate.Totals.Batches)
	}
}

func TestModelsWithAMaskGiveTheSameAnswersWithPadding(t *testing.T) {
	onnxtest.Library(t)
	for model, want := range map[string]func([]float32, int, int) []float32{"mean_pool": meanOfRows, "masked_pool": meanOfRows, "token_scale": multiples} {
		t.Run(model, func(t *testing.T) {
			s := servertest.Start(t, servertest.ONNXRepository(t, map[string]servertest.ONNXModel{
				model: {File: onnxtest.Model(model), Config: `parameters { key: "pad" value { string_value: "auto" } }`},
			}))
			infersMixed(t, s, model, withMask, want)
			p := s.Explanation(model).Batching.Padding
			if p == nil || !p.Detected && p.Why == "" || (p.Verdict == "unsafe") != (model == "mean_pool") {
				t.Errorf("the verdict on padding is %+v", p)
			}
		})
	}
}
