//go:build e2e

package e2e

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-serving/shoal/internal/engine/onnx/onnxtest"
)

func TestTheONNXExampleComputes(t *testing.T) {
	onnxtest.Library(t)
	addAndSubtract(t, start(t, filepath.Join(root, "examples", "onnx")))
}

func TestAnONNXFileAloneIsServed(t *testing.T) {
	onnxtest.Library(t)
	dir := filepath.Join(t.TempDir(), "models")
	if err := os.CopyFS(filepath.Join(dir, "add_sub", "1"), os.DirFS(filepath.Join(root, "examples", "onnx", "add_sub", "1"))); err != nil {
		t.Fatal(err)
	}
	s := start(t, dir)
	addAndSubtract(t, s)
	if _, metadata := s.get("/v2/models/add_sub"); !strings.Contains(metadata, `{"name":"INPUT0","datatype":"FP32","shape":[-1,16]}`) {
		t.Errorf("metadata is %s", metadata)
	}
}

// addAndSubtract asks the model of the example for 3 + 1 and 3 - 1.
func addAndSubtract(t *testing.T, s *server) {
	t.Helper()
	row := func(v string) string { return "[" + strings.TrimSuffix(strings.Repeat(v+",", 16), ",") + "]" }
	body := `{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,16],"data":` + row("3") +
		`},{"name":"INPUT1","datatype":"FP32","shape":[1,16],"data":` + row("1") + `}]}`
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.http+"/v2/models/add_sub/infer", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	status, _, answer, err := fetch(req)
	if err != nil || status != http.StatusOK {
		t.Fatalf("status %d, %v: %s", status, err, answer)
	}
	var got struct {
		Outputs []struct{ Data []float32 }
	}
	if err := json.Unmarshal(answer, &got); err != nil {
		t.Fatal(err)
	}
	for i, want := range []float32{4, 2} {
		if !slices.Equal(got.Outputs[i].Data, slices.Repeat([]float32{want}, 16)) {
			t.Errorf("output %d is %v, want %v sixteen times", i, got.Outputs[i].Data, want)
		}
	}
}
