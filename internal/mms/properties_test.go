package mms

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestPropertiesAreRead(t *testing.T) {
	s := NewSettings()
	err := s.Parse("config.properties", `
# where to listen
inference_address=http://127.0.0.1:9080
management_address: http://127.0.0.1:9081
model_store = $$STORE$$/models
load_models=a.mar, b=c.mar
job_queue_size=1000
default_response_timeout=7
default_workers_per_model=2
allowed_urls=https://good/.*, http://also/.*
number_of_netty_threads=32
models={\
  "b": {"1.0": {"marName": "c.mar", "minWorkers": 3, "batchSize": 4, "maxBatchDelay": 0, "teapot": 1},\
    "2.0": {"marName": "d.mar", "defaultVersion": true, "maxWorkers": 2, "teapot": 2, "cup": 1}}\
}
`, func(name string) string { return "/" + strings.ToLower(name) })
	if err != nil {
		t.Fatal(err)
	}
	if s.Inference != "127.0.0.1:9080" || s.Management != "127.0.0.1:9081" || s.Metrics != "127.0.0.1:8082" || s.Store != "/store/models" {
		t.Errorf("addresses %s, %s, %s; store %s", s.Inference, s.Management, s.Metrics, s.Store)
	}
	if s.Queue != 1000 || s.ResponseTimeout != 7*time.Second || s.Workers != 2 || s.MaxRequest != 6553500 || !s.Decode {
		t.Errorf("settings %+v", s)
	}
	if len(s.Load) != 2 || s.Load[0] != (Load{"", "a.mar"}) || s.Load[1] != (Load{"b", "c.mar"}) || s.All {
		t.Errorf("loads %+v", s.Load)
	}
	if !s.Allowed[0].MatchString("https://good/x") || s.Allowed[1].MatchString("x http://also/y") {
		t.Errorf("allowed %v", s.Allowed)
	}
	if p := s.Models["b"]["1.0"]; p.MinWorkers != 3 || p.BatchSize != 4 || *p.MaxBatchDelay != 0 {
		t.Errorf("preset %+v", p)
	}
	if p := s.Models["b"]["2.0"]; !p.Default || *p.parameters().Workers != (scale{1, 2}) {
		t.Errorf("preset %+v, want it to be the default, with 1 to 2 workers", p)
	}
	if want := []string{"number_of_netty_threads", "models.cup", "models.teapot"}; !slices.Equal(s.Ignored, want) {
		t.Errorf("ignored %q", s.Ignored)
	}
}

func TestAWrongPropertyIsToldWithItsLine(t *testing.T) {
	for text, want := range map[string]string{
		"\njob_queue_size=many":               `p:2: job_queue_size: found "many", expected a whole number of at least 0`,
		"inference_address=https://0.0.0.0:1": `p:1: inference_address: found "https://0.0.0.0:1", expected an address such as http://127.0.0.1:8080`,
		"keystore=k.p12":                      `p:1: keystore: TLS is not configured here; remove it, and encrypt all ports with --tls-cert and --tls-key`,
		"job_queue=1":                         `p:1: job_queue: unknown key; did you mean job_queue_size?`,
		"teapot=1":                            `p:1: teapot: unknown key; docs/how-to/migrate-from-mms.md lists the known ones`,
		"just words":                          `p:1: found "just words", expected a key and its value, such as job_queue_size=100`,
	} {
		err := NewSettings().Parse("p", text, func(string) string { return "" })
		if err == nil || err.Error() != want {
			t.Errorf("%q: error %v, want %s", text, err, want)
		}
	}
}

func TestEverySupportedKeyIsSet(t *testing.T) {
	for _, key := range supported {
		s := NewSettings()
		if err := s.Parse("p", key+"=", func(string) string { return "" }); err != nil && strings.Contains(err.Error(), "unknown key") {
			t.Error(err)
		}
		if len(s.Ignored) > 0 {
			t.Errorf("%s has no effect", key)
		}
	}
}

func TestTheKeysOfAPresetAreKnown(t *testing.T) {
	text, err := json.Marshal(map[string]map[string]Preset{"m": {"1.0": {}}})
	if err != nil {
		t.Fatal(err)
	}
	if _, unknown, err := presets(string(text)); err != nil || len(unknown) > 0 {
		t.Errorf("%q are said to have no effect; %v", unknown, err)
	}
}

func TestAnswersAreNotBelieved(t *testing.T) {
	for _, b := range [][]byte{nil, make([]byte, 11), make([]byte, 12), {200, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 255, 255, 255, 255}} {
		if _, err := decodeAnswer(b); err == nil {
			t.Errorf("%v is an answer", b)
		}
	}
}
