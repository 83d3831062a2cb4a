//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/client"
	"github.com/shoal-serving/shoal/internal/engine/onnx/onnxtest"
	"github.com/shoal-serving/shoal/test/servertest"
)

// appendConfig is a member that appends two digits to a number, which are the number of its version.
const appendConfig = `
backend: "onnxruntime"
max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: 1 }
output { name: "y" data_type: TYPE_FP32 dims: 1 }
dynamic_batching { }
instance_group { count: 1 }
`

// TestMembersAreReplacedUnderAnEnsemble replaces two members of an ensemble in turn while clients
// send requests. No request may fail, and each answer must come from versions that served at the same
// time: a is one version ahead of b, or both have the same.
func TestMembersAreReplacedUnderAnEnsemble(t *testing.T) {
	onnxtest.Library(t)
	const clients = 8
	replacements := servertest.StrictOr(50, 6)
	dir := servertest.Repository(t, map[string]string{
		// The ensemble calls a, b and a again, with time between for one of them to be replaced. A part of
		// it is an ensemble of its own. Its answer has the versions that were used as digits.
		"traced": chain(1, "IN", "OUT", "a", "slow", "inner"), "inner": chain(1, "x", "y", "b", "slow", "a"),
		"a": appendConfig, "b": appendConfig, "slow": member(1, 20*time.Millisecond),
	})
	addVersion := func(model string, n int) {
		t.Helper()
		to := filepath.Join(dir, model, fmt.Sprint(n))
		if err := os.MkdirAll(to, 0o755); err != nil {
			t.Fatal(err)
		}
		onnxtest.WriteAppend(t, filepath.Join(to, "model.onnx"), n)
	}
	addVersion("a", 1)
	addVersion("b", 1)
	s := servertest.Start(t, dir, "--model-control-mode=explicit", "--load-model=traced")

	var done atomic.Bool
	var answers, spread atomic.Int64 // spread: answers during whose request a member was replaced
	var current atomic.Int64         // the version of b that serves
	current.Store(1)
	var all sync.WaitGroup
	defer all.Wait()
	defer done.Store(true)
	for n := range clients {
		c := s.Client()
		if n%2 == 0 {
			c = s.Web()
		}
		all.Go(func() {
			for !done.Load() {
				before := current.Load()
				resp, err := c.Infer(t.Context(), &client.Request{Model: "traced", Inputs: []client.Tensor{client.NewTensor("IN", []float32{0}, 1, 1)}})
				if err != nil {
					t.Error(err)
					return
				}
				got, err := client.Values[float32](&resp.Outputs[0])
				if err != nil || len(got) != 1 {
					t.Errorf("%v, %v, want one number", got, err)
					return
				}
				digits := int64(got[0])
				first, b, second := digits/10000, digits/100%100, digits%100
				if first != second || first != b && first != b+1 || b < before {
					t.Errorf("one answer used version %d of a, %d of b, and %d of a, and b had been %d before", first, b, second, before)
					return
				}
				answers.Add(1)
				if current.Load() != before {
					spread.Add(1)
				}
			}
		})
	}
	for n := 2; n <= replacements+1 && !t.Failed(); n++ {
		since := answers.Load()
		for _, model := range []string{"a", "b"} {
			addVersion(model, n)
			s.Load(model)
		}
		current.Store(int64(n))
		servertest.Eventually(t, "answers after a replacement", func() bool { return t.Failed() || answers.Load() >= since+clients })
	}
	done.Store(true)
	all.Wait()
	t.Logf("%d replacements of two members, %d answers, %d of requests during which b was replaced", replacements, answers.Load(), spread.Load())
	if spread.Load() < int64(replacements) {
		t.Errorf("b was replaced during %d requests, want at least one for each replacement", spread.Load())
	}
}
