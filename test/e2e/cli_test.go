//go:build e2e

package e2e

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/test/servertest"
)

// shoal runs a command of the built binary, and returns what it prints and its exit status.
func shoal(t *testing.T, args ...string) (string, int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(servertest.Root, "bin", "shoal"), args...)
	out, err := cmd.CombinedOutput()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return string(out), exit.ExitCode()
	}
	if err != nil {
		t.Fatal(err)
	}
	return string(out), 0
}

// A try is a command, and what it must print and return.
type try struct {
	args   string
	status int
	want   string // a regular expression
}

// tryAll runs commands against the server at an address.
func tryAll(t *testing.T, address, protocol string, tries []try) {
	t.Helper()
	for _, one := range tries {
		text, status := shoal(t, append(strings.Fields(one.args), "-u", address, "-i", protocol)...)
		if status != one.status || !regexp.MustCompile(one.want).MatchString(text) {
			t.Errorf("shoal %s over %s: status %d, want %d and %s; it printed\n%s", one.args, protocol, status, one.status, one.want, text)
		}
	}
}

func TestCommandsUseAServer(t *testing.T) {
	dir := servertest.Repository(t, map[string]string{"good": servertest.Config(time.Millisecond, "1", "dynamic_batching { }")})
	broken := filepath.Join(dir, "broken", "1")
	if err := errors.Join(os.MkdirAll(broken, 0o755), os.WriteFile(filepath.Join(broken, "model.onnx"), []byte("no model"), 0o644)); err != nil {
		t.Fatal(err)
	}
	s := servertest.Start(t, dir, "--model-control-mode=explicit", "--load-model=good", "--log-requests")
	web := strings.TrimPrefix(s.HTTP, "http://")
	for protocol, address := range map[string]string{"http": web, "grpc": s.GRPC} {
		tryAll(t, address, protocol, []try{
			{"ls", 0, `(?m)^good +1 +READY +\S+ FP32\[n,`},
			{"health", 0, `^the server is ready\n$`},
			{"health good", 0, `^model "good" is ready\n$`},
			{"infer good --random --request-id id-" + protocol, 0, `good, version 1, in `},
			{"load broken", 1, `broken`},
			{"health broken", 1, `model "broken" is not ready: version 1 is UNAVAILABLE`},
			{"infer broken --random", 1, `model "broken" is not ready: version 1 is UNAVAILABLE: .*shoal load broken`},
			{"infer god --random", 1, `there is no model "god"; did you mean "good"\?`},
			{"unload good", 0, `^unloaded good\n$`},
			{"health good", 1, `model "good" is (not |being unloaded)`}, // depending on how far it is
			{"load good", 0, `^loaded good, version 1: `},
		})
	}
	servertest.Contains(t, "the log", s.Log(), "msg=ready took=", "msg=request model=good version=1 id=id-http latency=", "id=id-grpc latency=")
	tryAll(t, web, "http", []try{{"bench good --quick", 0, `(?s)^good: \d+ req/s with 1 client, p50 .* ms, p99 .* ms; \d+ req/s with 16 clients, .* times the throughput\.\n$`}})
	metrics := strings.TrimPrefix(s.Metrics, "http://")
	for _, args := range []string{"ls", "health", "infer good --random", "load good", "unload good", "explain good", "bench good --quick"} {
		tryAll(t, metrics, "http", []try{{args, 1, regexp.QuoteMeta(metrics) + ` does not speak KServe v2 over HTTP: it answered "404 Not Found"; -u must name the HTTP port`}})
		tryAll(t, s.GRPC, "http", []try{{args, 1, `is not an HTTP port, but probably a gRPC port: use -i grpc`}})
	}
}
