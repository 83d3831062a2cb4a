package mmshttp

import (
	"encoding/json"
	"log/slog"
	"strings"
	"testing"

	"github.com/shoal-serving/shoal/internal/logtest"
	"github.com/shoal-serving/shoal/internal/mms"
)

// yamlHandler answers with what it reads of the model's configuration.
const yamlHandler = `
def handle(data, context):
    if data is None:
        return None
    return [context.model_yaml_config for _ in data]
`

func TestAnArchiveConfiguresItsModel(t *testing.T) {
	var log logtest.Log
	f := startWithLog(t, mms.TorchServe, func(s *mms.Settings) {
		s.Models = map[string]map[string]mms.Preset{"m": {"1.0": {BatchSize: 4, MinWorkers: 3, StartupTimeout: 77}}}
	}, slog.New(slog.NewTextHandler(&log, nil)))
	writeMar(t, f.store, "m", "1.0", "service:handle", map[string]string{
		"service.py":        yamlHandler,
		"model-config.yaml": "minWorkers: 2\nbatchSize: 16\nclientTimeoutInMills: 60000\nminWorker: 5\nmine:\n  rate: 0.5\n",
	})
	f.want("POST", f.manage+"/models?url=m-1.0.mar", "", 200, `Model \"m\" Version: 1.0 registered with 2 initial workers`)
	f.want("GET", f.manage+"/models/m", "", 200, `"minWorkers": 2`, `"maxWorkers": 2`, `"batchSize": 16`, `"startupTimeout": 77`, `"clientTimeoutInMills": 60000`)
	var described []struct{ Workers []struct{ ID string } }
	if _, text := f.ask("GET", f.manage+"/models/m", "", ""); json.Unmarshal([]byte(text), &described) != nil || len(described) != 1 || len(described[0].Workers) != 2 {
		t.Errorf("found other workers than two: %s", text)
	}
	f.want("POST", f.infer+"/predictions/m", "x", 200, `"batchSize": 16`, `"rate": 0.5`)
	for _, want := range []string{
		"at=model-config.yaml:4 field=minWorker warning=\"has no effect: unknown key, which only the handler can read; did you mean minWorkers?\"",
		"file=model-config.yaml keys=[mine]",
	} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log has no %s:\n%s", want, log.String())
		}
	}
	f.want("DELETE", f.manage+"/models/m", "", 200)

	f.want("POST", f.manage+"/models?url=m-1.0.mar&batch_size=3&initial_workers=1&startup_timeout=50", "", 200, "registered with 1 initial workers")
	f.want("GET", f.manage+"/models/m", "", 200, `"minWorkers": 1`, `"maxWorkers": 1`, `"batchSize": 3`, `"startupTimeout": 50`)
}

// The archive hides the YAML parser that the interpreter may have.
func TestAHandlerReadsItsConfigurationWithoutAYAMLParser(t *testing.T) {
	f := start(t, mms.TorchServe, nil)
	for name, config := range map[string]string{"plain": "minWorkers: 1\nmine: {rate: 0.5}\n", "odd": "minWorkers: 1\nmine: {2: .inf}\n"} {
		writeMar(t, f.store, name, "1.0", "service:handle", map[string]string{"service.py": yamlHandler, "model-config.yaml": config, "yaml.py": "raise ImportError\n"})
	}
	f.want("POST", f.manage+"/models?url=plain-1.0.mar", "", 200)
	f.want("POST", f.infer+"/predictions/plain", "x", 200, `"rate": 0.5`)
	f.want("POST", f.manage+"/models?url=odd-1.0.mar", "", 500, "model-config.yaml has keys or numbers that JSON cannot represent", "install pyyaml")
}

func TestAnArchiveThatNeedsSequencesIsRefusedWithTheReason(t *testing.T) {
	f := start(t, mms.TorchServe, nil)
	writeMar(t, f.store, "m", "1.0", "service:handle", map[string]string{"service.py": yamlHandler, "model-config.yaml": "sequenceBatching: true\n"})
	f.want("POST", f.manage+"/models?url=m-1.0.mar", "", 400, "InvalidModelException", "model-config.yaml:1: sequenceBatching: sequences are not supported yet; ")
	f.want("GET", f.manage+"/models/m", "", 404)
}

// slowHandler takes longer than the client waits.
const slowHandler = `
import time

def handle(data, context):
    if data is not None:
        time.sleep(2)
    return data
`

func TestAModelGivesUpARequestAfterItsTimeout(t *testing.T) {
	f := start(t, mms.TorchServe, nil)
	writeMar(t, f.store, "m", "1.0", "service:handle", map[string]string{"service.py": slowHandler, "model-config.yaml": "clientTimeoutInMills: 200\nminWorkers: 1\n"})
	f.want("POST", f.manage+"/models?url=m-1.0.mar", "", 200)
	f.want("POST", f.infer+"/predictions/m", "x", 503, "ServiceUnavailableException", "clientTimeoutInMills")
}
