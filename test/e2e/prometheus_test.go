//go:build e2e && linux

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/test/servertest"
)

// A prometheus is a real one, with the alert rules of deploy.
type prometheus struct {
	t  *testing.T
	at string // http://host:port
}

// startPrometheus runs the Prometheus of Debian, which scrapes s and evaluates the rules once
// a second, or skips the test.
func startPrometheus(t *testing.T, s *servertest.Server) *prometheus {
	t.Helper()
	program, err := exec.LookPath("prometheus")
	if err != nil {
		t.Skip("prometheus is not installed; Debian has it as prometheus")
	}
	rules, err := filepath.Abs(servertest.Root + "/deploy/prometheus/shoal.rules.yml")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	config := fmt.Sprintf("global: {scrape_interval: 1s, evaluation_interval: 1s}\nrule_files: [%s]\nscrape_configs:\n- job_name: shoal\n  static_configs: [{targets: [%s]}]\n",
		rules, strings.TrimPrefix(s.Metrics, "http://"))
	file := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(file, []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	free, err := net.Listen("tcp", "127.0.0.1:0") // Prometheus does not report the port it chose
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	if err := free.Close(); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	cmd := exec.CommandContext(ctx, program, "--config.file="+file, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+address, "--log.level=warn")
	log := &strings.Builder{}
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stop()
		_ = cmd.Wait() // it was killed
		if t.Failed() {
			t.Logf("prometheus: %s", log)
		}
	})
	return &prometheus{t, "http://" + address}
}

// get decodes an answer of the API, and reports whether there was one.
func (p *prometheus) get(path string, into any) bool {
	resp, err := (&http.Client{Timeout: 10 * time.Second}).Get(p.at + path)
	if err != nil {
		return false // it is not up yet
	}
	defer func() { _ = resp.Body.Close() }()
	return resp.StatusCode == http.StatusOK && json.NewDecoder(resp.Body).Decode(into) == nil
}

// samples returns the number of scrapes in the last minute in which a metric was present.
func (p *prometheus) samples(metric string) string {
	var answer struct {
		Data struct{ Result []struct{ Value [2]any } }
	}
	if !p.get("/api/v1/query?query=count_over_time("+metric+"[1m])", &answer) || len(answer.Data.Result) != 1 {
		return "0"
	}
	return fmt.Sprint(answer.Data.Result[0].Value[1])
}

// firing returns the alerts that fire, as NAME model.
func (p *prometheus) firing() (all []string) {
	var answer struct {
		Data struct {
			Alerts []struct {
				State  string
				Labels map[string]string
			}
		}
	}
	if !p.get("/api/v1/alerts", &answer) {
		p.t.Error("prometheus does not report its alerts")
	}
	for _, a := range answer.Data.Alerts {
		if a.State == "firing" {
			all = append(all, a.Labels["alertname"]+" "+a.Labels["model"])
		}
	}
	return all
}

// TestAnAlertFiresWhenAWorkerIsKilled runs the rules that users get in a real Prometheus.
func TestAnAlertFiresWhenAWorkerIsKilled(t *testing.T) {
	s := servertest.Start(t, writeApp(t, `import shoal

@shoal.model(inputs={"x": ("FP32", [-1, 3])}, outputs={"y": ("FP32", [-1])}, max_batch=8)
def total(x):
    return {"y": x.sum(axis=1)}
`))
	p := startPrometheus(t, s)
	var rules struct {
		Data struct {
			Groups []struct {
				Rules []struct{ Name, Health, LastError string }
			}
		}
	}
	patience := time.Now().Add(time.Minute)
	for n := p.samples("shoal_worker_restarts_total"); n == "0" || n == "1" || n == "2"; n = p.samples("shoal_worker_restarts_total") {
		if time.Now().After(patience) {
			t.Fatal("prometheus has not scraped the server three times in a minute")
		}
		time.Sleep(100 * time.Millisecond)
	}
	if !p.get("/api/v1/rules", &rules) || len(rules.Data.Groups) != 1 || len(rules.Data.Groups[0].Rules) < 5 {
		t.Fatalf("prometheus has the rules %+v", rules)
	}
	for _, r := range rules.Data.Groups[0].Rules {
		if r.Health == "err" || r.LastError != "" {
			t.Errorf("rule %s: %s", r.Name, r.LastError)
		}
	}
	if got := p.firing(); got != nil {
		t.Errorf("alerts of a healthy server: %q", got)
	}

	workers := servertest.Children(s.Cmd.Process.Pid)
	if len(workers) != 1 {
		t.Fatalf("workers %v, want one", workers)
	}
	if err := syscall.Kill(workers[0], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	killed := time.Now()
	for {
		got := p.firing()
		if len(got) > 0 && got[0] == "ShoalWorkerRestarted total" {
			t.Logf("%s fires %v after the kill", got[0], time.Since(killed).Round(100*time.Millisecond))
			return
		}
		if time.Since(killed) > time.Minute {
			t.Fatalf("a minute after the kill the alerts are %q", got)
		}
		time.Sleep(100 * time.Millisecond)
	}
}
