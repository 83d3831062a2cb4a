package mmshttp

import (
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoal-serving/shoal/internal/logtest"
	"github.com/shoal-serving/shoal/internal/mms"
)

// where answers with the directory of its environment.
const where = `
import sys

def handle(data, context):
    return None if data is None else [sys.prefix for _ in data]
`

func TestRequirementsAreInstalledOnlyIfTheSettingsSaySo(t *testing.T) {
	if exec.Command("python3", "-m", "pip", "--version").Run() != nil {
		t.Skip("python3 has no pip")
	}
	for _, install := range []bool{false, true} {
		var log logtest.Log
		f := startWithLog(t, mms.TorchServe, func(s *mms.Settings) { s.Python, s.Install = "python3", install }, slog.New(slog.NewTextHandler(&log, nil)))
		for name, text := range map[string]string{
			"service.py": where, "requirements.txt": "--no-index\n",
			"MAR-INF/MANIFEST.json": `{"runtime": "python", "model": {"modelName": "m", "handler": "service:handle", "requirementsFile": "requirements.txt"}}`,
		} {
			path := filepath.Join(f.store, "m", name)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		f.want("POST", f.manage+"/models?url=m&initial_workers=1", "", 200)
		_, prefix := f.ask("POST", f.infer+"/predictions/m", "", "")
		if own := filepath.Base(prefix) == "environment"; own != install {
			t.Errorf("install %t: the handler runs in %s", install, prefix)
		}
		f.want("GET", f.manage+"/models/m", "", 200, map[bool]string{false: `"useVenv": false`, true: `"useVenv": true`}[install])
		if said := strings.Contains(log.String(), "install_py_dep_per_model=true"); said == install {
			t.Errorf("install %t: the log says %s", install, log.String())
		}
		f.want("DELETE", f.manage+"/models/m", "", 200)
		if _, err := os.Stat(prefix); install && err == nil {
			t.Errorf("%s is left", prefix)
		}
	}
}
