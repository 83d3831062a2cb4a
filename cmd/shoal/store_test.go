package main

import (
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestSettingsOfAStoreThatMakeNoSenseAreRefused(t *testing.T) {
	dir := t.TempDir()
	open := filepath.Join(dir, "config.properties")
	if err := os.WriteFile(open, []byte("inference_address=http://0.0.0.0:8080\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"--mms-config", open}, `inference_address: "0.0.0.0" can be reached from other machines`},
		{[]string{"--mms-config", filepath.Join(dir, "absent")}, "--mms-config: open "},
	} {
		cmd := newServeCommand()
		cmd.SilenceUsage, cmd.SilenceErrors = true, true
		cmd.SetArgs(tt.args)
		if err := cmd.ExecuteContext(t.Context()); exitStatus(err) != 2 || !strings.HasPrefix(err.Error(), tt.want) {
			t.Errorf("%v: error %v, want %s", tt.args, err, tt.want)
		}
	}
}

func TestAStoreHasPortsOfItsOwnBesideTheOthers(t *testing.T) {
	dir := t.TempDir()
	properties := filepath.Join(dir, "config.properties")
	text := "inference_address=http://127.0.0.1:0\nmanagement_address=http://127.0.0.1:0\nmetrics_address=http://127.0.0.1:0\n"
	if err := os.WriteFile(properties, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	at := running(t, 6, slog.DiscardHandler, "--model-store", dir, "--mms-config", properties)
	for getStatus(t, "http://"+at["inference"]+"/ping") != http.StatusOK {
		time.Sleep(time.Millisecond) // it listens before it has looked for models; the test's own timeout ends it
	}
	for url, want := range map[string]int{
		at["inference"] + "/models": 404, at["management"] + "/models": 200, at["mms_metrics"] + "/metrics": 200,
		at["http"] + "/v2/models/seed_auto": 200, at["metrics"] + "/metrics": 200, at["management"] + "/models/seed_auto": 409,
	} {
		if got := getStatus(t, "http://"+url); got != want {
			t.Errorf("%s answers %d, want %d", url, got, want)
		}
	}
}
