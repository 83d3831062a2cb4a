package servertest

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/bench"
	"github.com/shoal-serving/shoal/internal/device"
)

// Simulated is what the simulator says of all requests.
type Simulated struct {
	Answered, Batches int
	Latency           struct {
		Mean time.Duration `json:"mean_ns"`
	}
}

// Simulate plays a recording again in the simulator of a device.
func Simulate(t *testing.T, device device.Curve, trace string) Simulated {
	t.Helper()
	scenario := filepath.Join(filepath.Dir(trace), "scenario.yaml")
	text := strings.Join([]string{
		"model: {max_batch_size: 8, fixed: " + device.Fixed.String() + ", per_row: " + device.PerRow.String() + "}",
		"arrivals: {file: " + filepath.Base(trace) + "}",
	}, "\n")
	if err := os.WriteFile(scenario, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(Root+"/bin/shoal", "simulate", scenario, "--json", "-").Output()
	if err != nil {
		t.Fatal(err)
	}
	var report struct{ Runs []struct{ Total Simulated } }
	if err := json.Unmarshal(out, &report); err != nil || len(report.Runs) != 1 {
		t.Fatalf("%v: %d runs, want one", err, len(report.Runs))
	}
	return report.Runs[0].Total
}

// BenchCommand returns `shoal bench` for a server and a protocol.
func BenchCommand(s *Server, protocol string, args ...string) *exec.Cmd {
	address := map[string]string{"http": strings.TrimPrefix(s.HTTP, "http://"), "grpc": s.GRPC}[protocol]
	return exec.CommandContext(s.T.Context(), filepath.Join(Root, "bin", "shoal"), append([]string{"bench", "-i", protocol, "-u", address}, args...)...)
}

// RunBench runs `shoal bench` and returns its text and its figures.
func RunBench(t *testing.T, s *Server, protocol string, args ...string) (string, bench.Report) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "figures.json")
	cmd := BenchCommand(s, protocol, append(args, "--json", file)...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v\n%s", cmd.Args, err, out)
	}
	figures, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var r bench.Report
	if err := json.Unmarshal(figures, &r); err != nil || len(r.Levels) == 0 {
		t.Fatalf("%v: %s", err, figures)
	}
	return string(out), r
}
