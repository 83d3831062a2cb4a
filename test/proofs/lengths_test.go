//go:build e2e && proofs

package proofs

import (
	"fmt"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/client"
	"github.com/shoal-serving/shoal/internal/bench"
	"github.com/shoal-serving/shoal/test/servertest"
)

// TestProofPaddingIsRejectedWhereItDoesNotPay has 64 clients send requests of different
// lengths to MiniLM, which costs by the element on a CPU, once with padding allowed and once
// with it forbidden, in turn. What padding costs is that it is tried.
func TestProofPaddingIsRejectedWhereItDoesNotPay(t *testing.T) {
	file := servertest.RealModel(t, "minilm")
	// Both models run alike, so that only padding differs.
	const pinned = `instance_group { count: 2 } parameters { key: "intra_op_thread_count" value { string_value: "1" } } `
	warm, one := servertest.StrictOr(15*time.Second, 2*time.Second), servertest.StrictOr(5*time.Second, time.Second)
	for _, lengths := range [][2]int{{8, 24}, {8, 256}} {
		t.Run(fmt.Sprintf("lengths of %d to %d", lengths[0], lengths[1]), func(t *testing.T) {
			s := servertest.Start(t, servertest.ONNXRepository(t, map[string]servertest.ONNXModel{
				"padded":   {File: file, Config: pinned + `parameters { key: "pad" value { string_value: "auto" } }`},
				"separate": {File: file, Config: pinned + `parameters { key: "pad" value { string_value: "off" } }`},
			}), "--compute-nice=0")
			s.AwaitMeasured(t, "padded")
			s.AwaitMeasured(t, "separate")
			run := func(model string, lasts time.Duration) (f figures) {
				var before, after servertest.Usage
				c := servertest.Crowd{Clients: 64, Sharing: 6, Request: func(n int) *client.Request {
					return textRequest(model, lengths[0]+n*(lengths[1]-lengths[0])/63)
				}, During: func() {
					before = s.Usage()
					time.Sleep(lasts)
					after = s.Usage()
				}}
				f.perSecond = c.Run(t, s).Steady()
				f.perCPU = f.perSecond * lasts.Seconds() / (after.CPU - before.CPU).Seconds()
				return f
			}
			run("separate", warm)
			run("padded", warm)
			var ratios, perCPU []float64
			for round := range servertest.Rounds() {
				a, b := run("separate", one), run("padded", one)
				ratios = append(ratios, b.perSecond/a.perSecond)
				perCPU = append(perCPU, b.perCPU/a.perCPU)
				e := s.Explanation("padded").Policy
				t.Logf("round %d: %.1f and %.1f req/s, %.1f and %.1f per CPU second; padded %d batches, not padded %d", round+1, a.perSecond, b.perSecond, a.perCPU, b.perCPU, e.Padded.Batches, e.NotPadded.Batches)
			}
			mid, low, high := bench.Median(perCPU)
			t.Logf("%.3f (%.3f to %.3f) per CPU second", mid, low, high)
			mid, low, high = bench.Median(ratios)
			t.Logf("%.3f (%.3f to %.3f) of the throughput without padding", mid, low, high)
			if need := servertest.StrictOr(0.97, 0.8); mid < need {
				t.Errorf("with padding allowed: %.3f of the throughput without, want at least %.2f", mid, need)
			}
		})
	}
}

// figures are those of one run. On a machine that others use, too, the throughput depends on
// what they leave. The requests per second of CPU time depend on it less, and help to tell
// padding from neighbors; the throughput is what is promised.
type figures struct{ perSecond, perCPU float64 }

// textRequest returns a request of one row of the given number of tokens.
func textRequest(model string, tokens int) *client.Request {
	ids, mask, types := make([]int64, tokens), make([]int64, tokens), make([]int64, tokens)
	for i := range ids {
		ids[i], mask[i] = int64(1000+31*i%20000), 1
	}
	shape := []int64{1, int64(tokens)}
	return &client.Request{Model: model, Inputs: []client.Tensor{
		client.NewTensor("input_ids", ids, shape...), client.NewTensor("attention_mask", mask, shape...), client.NewTensor("token_type_ids", types, shape...),
	}}
}
