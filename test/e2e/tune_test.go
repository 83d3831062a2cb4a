//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/engine/onnx/onnxtest"
)

// lone returns a directory with a model's file and nothing else.
func lone(t *testing.T, model string) string {
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

// awaitLog waits until the log has a line with a text, and returns the line.
func (s *server) awaitLog(text string) string {
	s.t.Helper()
	return s.awaitLogFor(text, startPatience)
}

func (s *server) awaitLogFor(text string, patience time.Duration) string {
	s.t.Helper()
	for began := time.Now(); time.Since(began) < patience; time.Sleep(5 * time.Millisecond) {
		for line := range strings.Lines(s.logged()) {
			if strings.Contains(line, text) {
				return line
			}
		}
	}
	s.t.Fatalf("the log has no %q after %v\n%s", text, patience, s.logged())
	return ""
}

func TestABareModelWhoseRowsSeeEachOtherIsServedRight(t *testing.T) {
	onnxtest.Library(t)
	s := start(t, lone(t, "centred"))
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
				if got := s.centred(t, rows); fmt.Sprint(got) != fmt.Sprint(want) {
					t.Errorf("%v: got %v, want %v", rows, got, want)
				}
			}
		})
	}
	all.Wait()
	if _, config := s.get("/v2/models/centred/config"); strings.Contains(config, "dynamic_batching") || !strings.Contains(config, `"max_batch_size":0`) {
		t.Errorf("the configuration is %s", config)
	}
	const why = "rows are not independent"
	s.awaitLog(why)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.http+"/v2/repository/index", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, index, err := fetch(req); err != nil || !strings.Contains(string(index), "requests are not combined: "+why) {
		t.Errorf("%v; the index is %s", err, index)
	}
}

// centred asks the model of that name.
func (s *server) centred(t *testing.T, rows [][]float32) [][]float32 {
	data, err := json.Marshal(rows)
	if err != nil {
		t.Error(err)
		return nil
	}
	body := fmt.Sprintf(`{"inputs":[{"name":"x","datatype":"FP32","shape":[%d,4],"data":%s}]}`, len(rows), data)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.http+"/v2/models/centred/infer", strings.NewReader(body))
	if err != nil {
		t.Error(err)
		return nil
	}
	status, _, answer, err := fetch(req)
	var got struct {
		Outputs []struct{ Data []float32 }
	}
	if err == nil {
		err = json.Unmarshal(answer, &got)
	}
	if err != nil || status != http.StatusOK || len(got.Outputs) != 1 || len(got.Outputs[0].Data) != 4*len(rows) {
		t.Errorf("status %d, %v: %s", status, err, answer)
		return nil
	}
	var all [][]float32
	for i := range rows {
		all = append(all, got.Outputs[0].Data[4*i:4*i+4])
	}
	return all
}

func TestABareFileIsMeasuredOnce(t *testing.T) {
	onnxtest.Library(t)
	models, kept := lone(t, "mlp"), filepath.Join(t.TempDir(), "kept")
	for _, want := range []string{"steps=", "steps=0 "} {
		s := start(t, models, "--calibration-dir="+kept)
		line := s.awaitLog(`msg="model measured" model=mlp version=1`)
		if !strings.Contains(line, want) || want == "steps=" && strings.Contains(line, "steps=0 ") {
			t.Errorf("logged %s, want %q", line, want)
		}
		if strings.Contains(line, "disturbed=true") {
			t.Skip("others used the cores while it was measured, so that it is not kept")
		}
		if _, config := s.get("/v2/models/mlp/config"); !strings.Contains(config, `"max_batch_size":64`) || !strings.Contains(config, "dynamic_batching") {
			t.Errorf("the configuration is %s", config)
		}
		s.signal()
		if !s.endsWithin(startPatience) {
			t.Fatal("it does not end")
		}
	}
}

// TestOneClientAloneNeverWaits asks the seed device as it is left, by one client, and
// with no delay. Where nobody else asks there is nobody to wait for.
func TestOneClientAloneNeverWaits(t *testing.T) {
	s := start(t, root+"/examples/seed-device")
	s.awaitLog(`msg="model measured" model=seed_auto version=1`)
	s.awaitLog(`msg="model measured" model=seed_auto_two version=1`)
	middle := func(model string) float64 {
		latencies := closedLoop(t, s, model, 1, choose(time.Second, 300*time.Millisecond)).latencies
		slices.Sort(latencies)
		return float64(latencies[len(latencies)/2])
	}
	for _, model := range []string{"seed_auto", "seed_auto_two"} {
		hold(t, model+", latency of one client, times that without a delay", 0, choose(1.03, 1.2), func() float64 {
			greedy := middle("seed_dynamic")
			return middle(model) / greedy
		})
	}
}

// awaitMeasured waits until a model that nobody configured is found out about, and
// runs as was found best, and says how.
func (s *server) awaitMeasured(t *testing.T, model string) {
	t.Helper()
	line := s.awaitLogFor(fmt.Sprintf(`msg="model measured" model=%s `, model), 10*time.Minute)
	_, what, _ := strings.Cut(strings.TrimSpace(line), "version=1 ")
	t.Logf("%s: %s", model, what)
	if !strings.Contains(line, " threads=1 ") { // which all begin with
		s.awaitLogFor(fmt.Sprintf(`msg="reloaded with tuned settings" model=%s `, model), time.Minute)
	}
}
