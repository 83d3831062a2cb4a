//go:build e2e

package e2e

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/shoal-serving/shoal/client"
	"github.com/shoal-serving/shoal/internal/engine/onnx/onnxtest"
	"github.com/shoal-serving/shoal/test/servertest"
)

func TestABareModelWhoseRowsSeeEachOtherIsServedRight(t *testing.T) {
	onnxtest.Library(t)
	s := servertest.Start(t, servertest.BareFile(t, "centred"))
	var all sync.WaitGroup
	for i := range 32 {
		all.Go(func() {
			// What is left of a row that is alone without its mean is nothing, as long as
			// nobody else's row is in its batch.
			rows := [][]float32{{float32(i), 1, 2, 3}}
			want := [][]float32{{0, 0, 0, 0}}
			if i%4 == 0 {
				rows, want = append(rows, []float32{float32(i) + 2, 1, 2, 5}), [][]float32{{-1, 0, 0, -1}, {1, 0, 0, 1}}
			}
			for range 20 {
				if got := centred(s, t, rows); fmt.Sprint(got) != fmt.Sprint(want) {
					t.Errorf("%v: got %v, want %v", rows, got, want)
				}
			}
		})
	}
	all.Wait()
	if _, config := s.Get("/v2/models/centred/config"); strings.Contains(config, "dynamic_batching") || !strings.Contains(config, `"max_batch_size":0`) {
		t.Errorf("the configuration is %s", config)
	}
	const why = "rows are not independent"
	s.AwaitLog(why)
	if index, err := s.Web().Index(t.Context()); err != nil || len(index) != 1 || !strings.Contains(index[0].Reason, "requests are not combined: "+why) {
		t.Errorf("%v; the index is %v", err, index)
	}
}

// centred asks the model of that name.
func centred(s *servertest.Server, t *testing.T, rows [][]float32) [][]float32 {
	in := client.NewTensor("x", slices.Concat(rows...), int64(len(rows)), 4)
	resp, err := s.Web().Infer(t.Context(), &client.Request{Model: "centred", Inputs: []client.Tensor{in}})
	if err != nil {
		t.Error(err)
		return nil
	}
	values, err := client.Values[float32](&resp.Outputs[0])
	if err != nil || len(values) != 4*len(rows) {
		t.Errorf("%v: %v", err, values)
		return nil
	}
	var all [][]float32
	for i := range rows {
		all = append(all, values[4*i:4*i+4])
	}
	return all
}

// TestABareFileIsMeasuredOnce starts a server until one finds what another one has measured.
// What was measured while others used the cores is not kept, and is measured again.
func TestABareFileIsMeasuredOnce(t *testing.T) {
	onnxtest.Library(t)
	models, dir := servertest.BareFile(t, "mlp"), filepath.Join(t.TempDir(), "kept")
	kept := false // by a server before
	for run := 1; run <= 8; run++ {
		s := servertest.Start(t, models, "--calibration-dir="+dir)
		line := s.AwaitLog(`msg="model measured" model=mlp version=1`)
		if found := strings.Contains(line, "steps=0 "); found != kept {
			t.Fatalf("start %d, with results of an earlier one: %v; it logged %s", run, kept, line)
		}
		if _, config := s.Get("/v2/models/mlp/config"); !strings.Contains(config, `"max_batch_size":64`) || !strings.Contains(config, "dynamic_batching") {
			t.Errorf("the configuration is %s", config)
		}
		s.Terminate()
		if !s.EndsWithin(servertest.StartPatience) {
			t.Fatal("it does not end")
		}
		if kept {
			return
		}
		kept = !strings.Contains(line, "disturbed=true")
	}
	t.Log("others used the cores each time, so that nothing was kept")
}
