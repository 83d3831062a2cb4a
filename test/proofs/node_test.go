//go:build e2e && proofs

package proofs

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/test/measure"
	"github.com/shoal-serving/shoal/test/servertest"
)

// TestProofTheNodesPage reads the page of a server with 1,000 loaded models, and compares what a
// closed loop of clients gets with ten readers that wait for changes of the page and without.
func TestProofTheNodesPage(t *testing.T) {
	models := map[string]string{}
	for i := range servertest.StrictOr(1000, 100) {
		models[fmt.Sprintf("model_%04d", i)] = instant + joining + line
	}
	s := servertest.Start(t, servertest.Repository(t, models), "--batching=automatic")
	samples := servertest.Samples(t, "node")
	const milliseconds, kilobytes, throughput = "milliseconds for the page", "KB of the page", "requests/s with ten readers that wait, times those without"
	for range servertest.Rounds() {
		took := time.Hour
		size := 0
		for range 5 { // of which the best: others use the cores, too
			time.Sleep(1100 * time.Millisecond) // so that it is read anew
			began := time.Now()
			status, body := s.Get("/v2/node")
			if status != http.StatusOK {
				t.Fatalf("%d %s", status, body)
			}
			took, size = min(took, time.Since(began)), len(body)
		}
		servertest.Add(t, samples, milliseconds, took.Seconds()*1e3)
		servertest.Add(t, samples, kilobytes, float64(size)/1e3)
	}
	caller := askOver(t, "HTTP", s.HTTP, "model_0000", rowOf(1, 32, 100))
	d := servertest.StrictOr(3*time.Second, time.Second)
	pairs := servertest.StrictOr(3, 1) * servertest.Rounds() // one percent is less than what throughput varies by
	for round := len(samples.Of(throughput)); round < pairs; round++ {
		without, with := measure.Pair(round,
			func() pull { return pullAt(t, s, caller, 4, d) },
			func() pull {
				defer waitForPages(t, s, 10)()
				return pullAt(t, s, caller, 4, d)
			})
		servertest.Add(t, samples, throughput, with.perSecond/without.perSecond)
	}
	servertest.Judge(t, milliseconds, measure.AtMost(5), samples.Of(milliseconds))
	servertest.Judge(t, kilobytes, measure.AtMost(600), samples.Of(kilobytes))
	servertest.Judge(t, throughput, measure.AtLeast(0.99), samples.Of(throughput))
}

// waitForPages has readers wait for changes until stop is called.
func waitForPages(t *testing.T, s *servertest.Server, readers int) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	reader := &http.Client{Timeout: time.Minute}
	var all sync.WaitGroup
	for range readers {
		all.Go(func() {
			for tag := ""; ctx.Err() == nil; {
				req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.HTTP+"/v2/node?wait=10s", nil)
				if err != nil {
					t.Error(err)
					return
				}
				if tag != "" {
					req.Header.Set("If-None-Match", tag)
				}
				resp, err := reader.Do(req)
				if err != nil {
					return // it was stopped
				}
				tag = resp.Header.Get("ETag")
				_ = resp.Body.Close() // what it had does not matter here
			}
		})
	}
	return func() {
		cancel()
		all.Wait()
		reader.CloseIdleConnections()
	}
}
