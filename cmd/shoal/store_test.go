package main

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestAStoreTakesNoSettingsOfARepository(t *testing.T) {
	dir := t.TempDir()
	open := filepath.Join(dir, "config.properties")
	if err := os.WriteFile(open, []byte("inference_address=http://0.0.0.0:8080\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"--model-store", dir, "--http-port=9000"}, `http-port: found "9000" beside --model-store or --mms-config, expected nothing`},
		{[]string{"--model-store", dir, "models"}, `model-repository: found "models" beside --model-store or --mms-config, expected nothing`},
		{[]string{"--mms-config", open}, `inference_address: found "0.0.0.0", expected an address of this machine alone`},
		{[]string{"--mms-config", filepath.Join(dir, "absent")}, "mms-config: open "},
	} {
		cmd := newServeCommand()
		cmd.SilenceUsage, cmd.SilenceErrors = true, true
		cmd.SetArgs(tt.args)
		if err := cmd.ExecuteContext(t.Context()); exitStatus(err) != 2 || !strings.HasPrefix(err.Error(), tt.want) {
			t.Errorf("%v: error %v, want %s", tt.args, err, tt.want)
		}
	}
}

func TestAStoreListensOnThreePortsAndStops(t *testing.T) {
	opts, _, err := serveFlags(nil, "--model-store", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	settings, err := opts.store.settings()
	if err != nil {
		t.Fatal(err)
	}
	settings.Inference, settings.Management, settings.Metrics = "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0"
	l := listeners{slog.NewTextHandler(io.Discard, nil), make(chan [2]string, 3)}
	ctx, stop := context.WithCancel(t.Context())
	var done sync.WaitGroup
	done.Go(func() {
		if err := serveStore(ctx, opts, settings, slog.New(l)); err != nil {
			t.Error(err)
		}
	})
	at := map[string]string{}
	for range 3 {
		one := <-l.all
		at[one[0]] = one[1]
	}
	for getStatus(t, "http://"+at["inference"]+"/ping") != http.StatusOK {
		time.Sleep(time.Millisecond) // it listens before it has looked for models; the test's own timeout ends it
	}
	for url, want := range map[string]int{
		at["inference"] + "/models": 404, at["management"] + "/models": 200, at["metrics"] + "/metrics": 200,
	} {
		if got := getStatus(t, "http://"+url); got != want {
			t.Errorf("%s answers %d, want %d", url, got, want)
		}
	}
	stop()
	done.Wait()
}
