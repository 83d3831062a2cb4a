package mms

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestTheKeysForTheServerAreRead(t *testing.T) {
	y, err := parseYAML("model-config.yaml", []byte(`
minWorkers: 2
maxWorkers: 3
batchSize: 16
maxBatchDelay: 0
responseTimeout: 7
startupTimeout: 8
clientTimeoutInMills: 90
jobQueueSize: 5
deviceType: cpu
useJobTicket: false
handler: {a: [1, yes], 2: b}
pippy:
  rpc_timeout: 1800
`))
	if err != nil {
		t.Fatal(err)
	}
	if *y.Workers != (scale{2, 3}) || y.BatchSize != 16 || y.MaxBatchDelay == nil || *y.MaxBatchDelay != 0 || y.ResponseTimeout != 7*time.Second ||
		y.StartupTimeout != 8*time.Second || y.ClientTimeout != 90*time.Millisecond || y.Queue != 5 {
		t.Errorf("found %+v", y.parameters)
	}
	if len(y.Findings) != 0 || !slices.Equal(y.Others, []string{"handler", "pippy"}) {
		t.Errorf("found %v, and the handler's keys %v", y.Findings, y.Others)
	}
}

func TestOneOfTwoNumbersOfWorkersIsEnough(t *testing.T) {
	for text, want := range map[string]scale{
		"minWorkers: 2": {2, 2}, "maxWorkers: 3": {1, 3}, "{minWorkers: 4, maxWorkers: 3}": {4, 4},
	} {
		y, err := parseYAML("f", []byte(text))
		if err != nil || y.Workers == nil || *y.Workers != want {
			t.Errorf("%s: found %v, %v, want %v", text, y.Workers, err, want)
		}
	}
	if y, err := parseYAML("f", []byte("batchSize: 2")); err != nil || y.Workers != nil {
		t.Errorf("without numbers: found %v, %v", y.Workers, err)
	}
}

func TestAKeyWithoutEffectIsNamedWithItsLine(t *testing.T) {
	for text, want := range map[string]string{
		"a: 1\nminWorkers: two":      `f:2: minWorkers: has no effect: found "two", expected a whole number from 1 to 1024`,
		"batchSize: 4097":            `f:1: batchSize: has no effect: found "4097", expected a whole number from 1 to 4096`,
		`batchSize: "8"`:             `f:1: batchSize: has no effect: found "8", expected a whole number from 1 to 4096`,
		"batchSize: [1]":             `f:1: batchSize: has no effect: found "", expected a whole number from 1 to 4096`,
		"minWorker: 2":               "f:1: minWorker: has no effect: unknown key, which only the handler can read; did you mean minWorkers?",
		"deviceType: gpu":            "f:1: deviceType: has no effect: the server assigns no GPUs",
		"maxRetryTimeoutInSec: 9":    "f:1: maxRetryTimeoutInSec: has no effect: a worker that ended is restarted",
		"{jobQueueSize: 0, b: null}": `f:1: jobQueueSize: has no effect: found "0", expected`,
	} {
		y, err := parseYAML("f", []byte(text))
		if err != nil || len(y.Findings) != 1 || !strings.HasPrefix(y.Findings[0].String(), want) {
			t.Errorf("%s: found %v, %v, want %s", text, y.Findings, err, want)
		}
		if y.BatchSize != 0 || y.Workers != nil || y.Queue != 0 {
			t.Errorf("%s has an effect: %+v", text, y.parameters)
		}
	}
}

func TestAKeyThatWouldChangeAnswersIsRefused(t *testing.T) {
	for text, want := range map[string]string{
		"sequenceBatching: true":                         "f:1: sequenceBatching: sequences are not supported yet; keep the state",
		"x: 1\ncontinuousBatching: 1":                    "f:2: continuousBatching: continuous batching is not supported yet; ",
		"torchrun: {nproc-per-node: 4, deviceType: cpu}": "f:1: torchrun: models that run in several processes are not supported yet; ",
		"a: [": "f: yaml: ",
		"- a":  "f: yaml: ",
		"a: &x [1]\nb: &y [*x,*x,*x,*x,*x,*x,*x,*x,*x]\nc: &z [*y,*y,*y,*y,*y,*y,*y,*y,*y]\nd: &w [*z,*z,*z,*z,*z,*z,*z,*z,*z]\n" +
			"e: &v [*w,*w,*w,*w,*w,*w,*w,*w,*w]\nf: &u [*v,*v,*v,*v,*v,*v,*v,*v,*v]\ng: [*u,*u,*u,*u,*u,*u,*u,*u,*u]": "f: yaml: document contains excessive aliasing",
	} {
		_, err := parseYAML("f", []byte(text))
		refused, ok := errors.AsType[*Error](err)
		if !ok || refused.Status != 400 || !strings.HasPrefix(refused.Message, want) {
			t.Errorf("%s: found %v, want %s", text, err, want)
		}
	}
	for _, text := range []string{"", "# nothing", "sequenceBatching: false", "parallelType: none"} {
		if y, err := parseYAML("f", []byte(text)); err != nil || len(y.Findings) != 0 {
			t.Errorf("%q: found %v, %v", text, y.Findings, err)
		}
	}
}

func TestTheFileIsTheOneThatTheManifestNames(t *testing.T) {
	dir := t.TempDir()
	outside := filepath.Join(t.TempDir(), "outside.yaml")
	for path, text := range map[string]string{
		filepath.Join(dir, "model-config.yaml"): "batchSize: 2", filepath.Join(dir, "mine.yaml"): "batchSize: 3", outside: "batchSize: 4",
		filepath.Join(dir, "large.yaml"): "a: " + strings.Repeat("x", maxYAML),
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(outside, filepath.Join(dir, "link.yaml")); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		dir, name string
		batch     int // 0 means an error, and -1 neither
	}{
		{dir, "", 2},
		{dir, "mine.yaml", 3},
		{t.TempDir(), "", -1},
		{dir, "absent.yaml", 0},
		{dir, "link.yaml", 0},
		{dir, "../" + filepath.Base(filepath.Dir(outside)) + "/outside.yaml", 0},
		{dir, "large.yaml", 0},
	} {
		a := archive{dir: tt.dir}
		a.manifest.Model.ConfigFile = tt.name
		y, err := readYAML(&a)
		if (err != nil) != (tt.batch == 0) || err == nil && y.BatchSize != max(0, tt.batch) {
			t.Errorf("%q: found %+v, %v", tt.name, y.parameters, err)
		}
	}
}
