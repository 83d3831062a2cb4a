//go:build e2e && linux

package e2e

import (
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/test/servertest"
)

const dyingApp = `
import os
import numpy as np
import shoal

if os.path.exists(os.path.join(os.path.dirname(__file__), "broken")):
    import no_such_module

@shoal.model(inputs={"x": ("FP32", [-1, 3])}, outputs={"y": ("FP32", [-1])}, max_batch=32)
def total(x):
    if (x < 0).any():
        os._exit(3)
    return {"y": x.sum(axis=1)}
`

// TestNoRequestWaitsForAWorkerThatCannotBeStarted has a worker die that cannot be started
// again. Queued and new requests are answered, and the index says why; when the cause is
// gone, the model comes back.
func TestNoRequestWaitsForAWorkerThatCannotBeStarted(t *testing.T) {
	app := writeApp(t, dyingApp)
	s := servertest.Start(t, app)
	// Status and header are what is asked about here, so that the request is net/http's own.
	ask := func(body string) (status int, retry, text string, took time.Duration) {
		began := time.Now()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.HTTP+"/v2/models/total/infer", strings.NewReader(body))
		if err != nil {
			t.Error(err)
			return 0, "", "", 0
		}
		status, header, answer, err := servertest.Fetch(req)
		if err != nil {
			t.Error(err)
		}
		return status, header.Get("Retry-After"), string(answer), time.Since(began)
	}
	if status, _, text, _ := ask(threeNumbers); status != http.StatusOK || !strings.Contains(text, "7") {
		t.Fatalf("status %d: %s", status, text)
	}

	broken := filepath.Join(filepath.Dir(app), "broken")
	rewrite(t, broken, "")
	if status, _, text, _ := ask(strings.Replace(threeNumbers, "1,2,4", "-1,2,4", 1)); status != http.StatusServiceUnavailable {
		t.Errorf("the request that ends the worker gets status %d: %s", status, text)
	}
	const want = "ModuleNotFoundError: No module named 'no_such_module'"
	type answer struct {
		sent time.Time
		took time.Duration
	}
	answers := make(chan answer, 8*20)
	var clients sync.WaitGroup
	for range 8 { // some wait while the worker is started, others come when that has failed
		clients.Go(func() {
			for range 20 {
				sent := time.Now()
				status, retry, text, took := ask(threeNumbers)
				if status != http.StatusServiceUnavailable || !strings.Contains(text, want) || retry == "" {
					t.Errorf("status %d, Retry-After %q: %s", status, retry, text)
				}
				answers <- answer{sent, took}
			}
		})
	}
	clients.Wait()
	close(answers)
	// Those that wait are answered when the first attempt has failed. That takes half a second on
	// a quiet machine, and ten times as long on a busy one.
	failed := failedToStart(t, s.Log())
	longest := time.Duration(0)
	for a := range answers {
		longest = max(longest, a.took)
		if late := min(a.took, a.sent.Add(a.took).Sub(failed)); late > 2*time.Second {
			t.Errorf("answered after %v, %v after the worker could not be started", a.took, late)
		}
	}
	t.Logf("figures: answered after at most %v", longest.Round(time.Millisecond))
	if index, err := s.Web().Index(t.Context()); err != nil || len(index) != 1 || index[0].State != "UNAVAILABLE" || !strings.Contains(index[0].Reason, want) {
		t.Errorf("the index is %v, %v", index, err)
	}
	if status, _ := s.Get("/v2/models/total/ready"); status == http.StatusOK {
		t.Error("the model is ready")
	}

	if err := os.Remove(broken); err != nil {
		t.Fatal(err)
	}
	for began := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		if status, _, text, _ := ask(threeNumbers); status == http.StatusOK && strings.Contains(text, "7") {
			break
		}
		if time.Since(began) > 30*time.Second {
			t.Fatalf("the model did not come back\n%s", s.Log())
		}
	}
	if status, _ := s.Get("/v2/models/total/ready"); status != http.StatusOK {
		t.Errorf("the model is back, and ready says %d", status)
	}
}

var failedLine = regexp.MustCompile(`(?m)^time=(\S+) .*msg="failed to start the model's worker"`)

// failedToStart returns when the first attempt to start a worker failed.
func failedToStart(t *testing.T, log string) time.Time {
	t.Helper()
	m := failedLine.FindStringSubmatch(log)
	if m == nil {
		t.Fatalf("the log has no failed start:\n%s", log)
	}
	at, err := time.Parse(time.RFC3339Nano, m[1])
	if err != nil {
		t.Fatal(err)
	}
	return at
}
