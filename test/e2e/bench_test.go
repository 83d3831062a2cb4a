//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"math"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/bench"
)

// benchCommand returns `shoal bench` for a server and a protocol.
func benchCommand(s *server, protocol string, args ...string) *exec.Cmd {
	address := map[string]string{"http": strings.TrimPrefix(s.http, "http://"), "grpc": s.grpc}[protocol]
	return exec.CommandContext(s.t.Context(), filepath.Join(root, "bin", "shoal"), append([]string{"bench", "-i", protocol, "-u", address}, args...)...)
}

// TestBenchMeasuresTheSeedDevice holds the figures of `shoal bench` against what
// the device can do, and the server's side against the clients'.
func TestBenchMeasuresTheSeedDevice(t *testing.T) {
	s := start(t, root+"/examples/seed-device")
	limit := 2 / seedCurve.Takes(2).Seconds()
	for _, protocol := range []string{"http", "grpc"} {
		hold(t, fmt.Sprintf("seed_none over %s, share of %.0f infer/s", protocol, limit), 0.9, 1.1, func() float64 {
			// Other work on the machine is no reason to call it unstable.
			out, err := benchCommand(s, protocol, "-m", "seed_none", "-b", "2", "--concurrency-range", "4", "-p", "400", "-s", "300", "--json", "-").Output()
			var r bench.Report
			if err != nil || json.Unmarshal(out, &r) != nil || len(r.Levels) != 1 || r.Levels[0].Server == nil {
				t.Fatalf("%v: %s", err, out)
			}
			serverAgrees(t, r.Levels[0])
			return r.Levels[0].Client.InfersPerSecond / limit
		})
	}
}

// serverAgrees checks that both sides have seen the same requests of two rows, and
// that the parts of their time are the whole.
func serverAgrees(t *testing.T, l bench.Level) {
	t.Helper()
	// At each end of the windows, those that wait may be counted on one side only.
	if off := l.Server.Requests - l.Client.Requests; math.Abs(float64(off)) > max(8, 0.05*float64(l.Client.Requests)) {
		t.Errorf("the server counts %d requests, the clients %d", l.Server.Requests, l.Client.Requests)
	}
	if l.Client.Failed != 0 || math.Abs(float64(l.Server.Inferences-2*l.Server.Requests)) > 2 {
		t.Errorf("got %+v, %+v", l.Client, l.Server)
	}
	each := l.Server.Each()
	if sum := each.Overhead + each.Queue + each.Input + each.Infer + each.Output; (sum - each.Total).Abs() > time.Microsecond {
		t.Errorf("the parts are %v together, the whole is %v", sum, each.Total)
	}
	if takes := seedCurve.Takes(2); each.Infer < takes || each.Queue < takes {
		t.Errorf("a request waits %v and computes %v, want at least %v each", each.Queue, each.Infer, takes)
	}
}

func TestBenchEndsWithWhatWasMeasured(t *testing.T) {
	s := start(t, root+"/examples/seed-device")
	cmd := benchCommand(s, "grpc", "-m", "seed_dynamic", "--request-rate-range", "50:100:50", "-p", "60000")
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
	within(t, "report", out.String(), "Request Rate: 50 inference requests per seconds", "p99 latency: ", "compute infer", "Interrupted: ", "Request Rate: 50, throughput: ")
	if strings.Contains(out.String(), "Request Rate: 100") {
		t.Errorf("it went on: %s", out.String())
	}
}

func TestBenchSaysThatTheModelIsNotThere(t *testing.T) {
	s := start(t, root+"/examples/seed-device")
	for _, protocol := range []string{"http", "grpc"} {
		out, err := benchCommand(s, protocol, "-m", "nobody").CombinedOutput()
		if err == nil {
			t.Error("no model, and no error")
		}
		within(t, protocol, string(out), `shoal: model "nobody" at 127.0.0.1:`, "Request for unknown model: 'nobody' is not found")
	}
}
