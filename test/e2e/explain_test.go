//go:build e2e

package e2e

import (
	"encoding/json"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoal-serving/shoal/internal/engine/onnx/onnxtest"
	"github.com/shoal-serving/shoal/internal/explain"
)

// explain runs the command against the server.
func (s *server) explain(args ...string) (string, error) {
	s.t.Helper()
	args = append([]string{"explain", "-u", strings.TrimPrefix(s.http, "http://")}, args...)
	out, err := exec.CommandContext(s.t.Context(), filepath.Join(root, "bin", "shoal"), args...).CombinedOutput()
	return string(out), err
}

// explanation returns what the server knows of a model.
func (s *server) explanation(model string) (m explain.Model) {
	s.t.Helper()
	code, body := s.get("/v2/models/" + model + "/explain")
	if err := json.Unmarshal([]byte(body), &m); err != nil || code != http.StatusOK {
		s.t.Fatalf("%s: %d %v %s", model, code, err, body)
	}
	return m
}

// explains fails if the page of a model lacks one of some texts.
func (s *server) explains(model string, want ...string) {
	s.t.Helper()
	text, err := s.explain(model)
	if err != nil {
		s.t.Errorf("%s: %v\n%s", model, err, text)
		return
	}
	for _, w := range want {
		if !strings.Contains(text, w) {
			s.t.Errorf("%s: no %q in\n%s", model, w, text)
		}
	}
}

func TestModelsAreExplained(t *testing.T) {
	s := start(t, filepath.Join(root, "examples", "seed-device"))
	s.awaitLog(`msg="model measured" model=seed_auto version=1`)
	s.explains("seed_auto",
		"seed_auto, version 1, run by simulated", "Shoal decides when a batch closes: dynamic_batching has no max_queue_delay_microseconds in",
		"seed_auto/config.pbtxt:8.", "calibrated  ◀ efficient size", "1 instance, configured in", "No requests yet.")
	s.explains("seed_dynamic",
		"Batching is configured in", "seed_dynamic/config.pbtxt:", "Requests are not held for further requests.", "No batch has run yet.")
	s.explains("seed_none", "requests are never combined, because the configuration does not ask for it")
	if text, err := s.explain("seed_atuo"); err == nil || !strings.Contains(text, `there is no model "seed_atuo": the server has seed_auto,`) {
		t.Errorf("%v\n%s", err, text)
	}
}

func TestAModelWhoseRowsSeeEachOtherIsExplained(t *testing.T) {
	onnxtest.Library(t)
	s := start(t, lone(t, "centred"))
	s.centred(t, [][]float32{{1, 2, 3, 4}})
	s.explains("centred",
		"requests run one by one, because their rows did not pass the check", "Rows must not share a batch: rows are not independent",
		"1 request succeeded", "alone             1  100 %")
}
