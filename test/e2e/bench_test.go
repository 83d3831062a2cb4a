//go:build e2e

package e2e

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/test/servertest"
)

func TestBenchEndsWithWhatWasMeasured(t *testing.T) {
	s := servertest.Start(t, servertest.Root+"/examples/seed-device")
	cmd := servertest.BenchCommand(s, "grpc", "-m", "seed_dynamic", "--request-rate-range", "50:100:50", "-p", "60000")
	var out strings.Builder
	cmd.Stdout = &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Second)
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	servertest.Contains(t, "report", out.String(), "Request Rate: 50 inference requests per seconds", "p99 latency: ", "compute infer", "Interrupted: ", "Request Rate: 50, throughput: ")
	if strings.Contains(out.String(), "Request Rate: 100") {
		t.Errorf("it went on: %s", out.String())
	}
}

func TestBenchSaysThatTheModelIsNotThere(t *testing.T) {
	s := servertest.Start(t, servertest.Root+"/examples/seed-device")
	for _, protocol := range []string{"http", "grpc"} {
		out, err := servertest.BenchCommand(s, protocol, "-m", "nobody").CombinedOutput()
		if err == nil {
			t.Error("no model, and no error")
		}
		servertest.Contains(t, protocol, string(out), `shoal: there is no model "nobody"; the server has seed_auto, `)
	}
}
