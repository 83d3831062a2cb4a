//go:build e2e

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoal-serving/shoal/internal/engine/onnx/onnxtest"
	"github.com/shoal-serving/shoal/test/servertest"
)

// explain runs the command against the server.
func explain(s *servertest.Server, args ...string) (string, error) {
	s.T.Helper()
	args = append([]string{"explain", "-u", strings.TrimPrefix(s.HTTP, "http://")}, args...)
	cmd := exec.CommandContext(s.T.Context(), filepath.Join(servertest.Root, "bin", "shoal"), args...)
	cmd.Env = append(os.Environ(), "COLUMNS=500") // so that no sentence is wrapped
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// explains fails if the page of a model lacks one of some texts.
func explains(s *servertest.Server, model string, want ...string) {
	s.T.Helper()
	text, err := explain(s, model)
	if err != nil {
		s.T.Errorf("%s: %v\n%s", model, err, text)
		return
	}
	for _, w := range want {
		if !strings.Contains(text, w) {
			s.T.Errorf("%s: no %q in\n%s", model, w, text)
		}
	}
}

func TestModelsAreExplained(t *testing.T) {
	s := servertest.Start(t, filepath.Join(servertest.Root, "examples", "seed-device"))
	s.AwaitLog(`msg="model measured" model=seed_auto version=1`)
	explains(s, "seed_auto",
		"seed_auto, version 1, run by simulated", "Shoal decides when a batch closes: dynamic_batching has no max_queue_delay_microseconds in",
		"seed_auto/config.pbtxt:8.", "\n▶      8 ", "1 instance, configured in", "No requests yet.")
	explains(s, "seed_dynamic",
		"Batching is configured in", "seed_dynamic/config.pbtxt:", "Requests are not held for further requests.", "No batch has run yet.")
	explains(s, "seed_none", "requests are never combined, because the configuration does not ask for it")
	if text, err := explain(s, "seed_atuo"); err == nil || !strings.Contains(text, `there is no model "seed_atuo"; did you mean "seed_auto"?`) {
		t.Errorf("%v\n%s", err, text)
	}
}

func TestAModelWhoseRowsSeeEachOtherIsExplained(t *testing.T) {
	onnxtest.Library(t)
	s := servertest.Start(t, servertest.BareFile(t, "centred"))
	centred(s, t, [][]float32{{1, 2, 3, 4}})
	explains(s, "centred",
		"requests run one by one, because their rows did not pass the check", "Rows must not share a batch: rows are not independent",
		"1 request succeeded", "alone               1  100 %")
}
