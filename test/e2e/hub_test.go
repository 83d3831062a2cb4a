//go:build e2e && linux

package e2e

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/client"
	"github.com/shoal-serving/shoal/internal/bucket/hubtest"
	"github.com/shoal-serving/shoal/internal/engine/onnx/onnxtest"
	"github.com/shoal-serving/shoal/tensor"
	"github.com/shoal-serving/shoal/test/servertest"
)

// startHub starts a Hub with one model, of 16 KiB, which needs a token.
func startHub(t *testing.T) (h *hubtest.Hub, commit string) {
	t.Helper()
	dir := t.TempDir()
	onnxtest.Dense{Rows: 64, Columns: 64}.Write(t, dir)
	model, err := os.ReadFile(filepath.Join(dir, "model.onnx"))
	if err != nil {
		t.Fatal(err)
	}
	h = hubtest.New(t)
	h.Token = "hf_secret"
	commit = h.Commit("main", map[string][]byte{"onnx/model.onnx": model, "README.md": []byte("A model.")})
	t.Setenv("HF_ENDPOINT", h.URL)
	t.Setenv("HF_TOKEN", h.Token)
	return h, commit
}

// tinyRequest is a request to the model of the Hub.
func tinyRequest() *client.Request {
	return &client.Request{Model: "tiny-model", Inputs: []client.Tensor{{Name: "x", Type: tensor.FP32, Shape: []int64{1, 64}, Data: make([]byte, 256)}}}
}

// TestAModelOfTheHubIsServed serves a gated repository at a commit. Its download is redirected
// to a storage and breaks off once.
func TestAModelOfTheHubIsServed(t *testing.T) {
	h, commit := startHub(t)
	h.Breaks.Store(1)
	s := servertest.Start(t, "hf://"+hubtest.Repository+"@"+commit, "--calibration-dir=", "--model-cache="+t.TempDir())
	if _, err := s.Client().Infer(t.Context(), tinyRequest()); err != nil {
		t.Error(err)
	}
	if h.Broken.Load() != 1 || h.Redirects.Load() < 2 || h.Leaked.Load() > 0 {
		t.Errorf("%d downloads broke off, %d were redirected, and the storage got %d tokens", h.Broken.Load(), h.Redirects.Load(), h.Leaked.Load())
	}
	if strings.Contains(s.Log(), h.Token) {
		t.Error("the log has the token")
	}
}

// TestAHundredClientsOfAColdModelCauseOneLoad asks a hundred times at once for a model that is
// not on this machine.
func TestAHundredClientsOfAColdModelCauseOneLoad(t *testing.T) {
	h, _ := startHub(t)
	s := servertest.Start(t, "hf://"+hubtest.Repository, "--model-control-mode=demand", "--calibration-dir=", "--model-cache="+t.TempDir())
	c := s.Client()
	var all sync.WaitGroup
	var answered atomic.Int64
	for range 100 {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if _, err := c.Infer(ctx, tinyRequest()); err != nil {
				t.Error(err)
				return
			}
			answered.Add(1)
		})
	}
	all.Wait()
	figures := demandFigures(t, s)
	if answered.Load() != 100 || h.Redirects.Load() != 1 || !strings.Contains(figures, `shoal_demand_loads_total{outcome="success"} 1 `) {
		t.Errorf("%d answers, %d downloads, %s; want 100 with one download and one load", answered.Load(), h.Redirects.Load(), figures)
	}
}

// TestAWrongFileOfTheHubIsNeverLoaded has the storage send another content than the Hub lists.
func TestAWrongFileOfTheHubIsNeverLoaded(t *testing.T) {
	h, _ := startHub(t)
	h.Wrong.Store(true)
	cache := t.TempDir()
	s := servertest.Start(t, "hf://"+hubtest.Repository, "--model-control-mode=demand", "--calibration-dir=", "--model-cache="+cache)
	if _, err := s.Client().Infer(t.Context(), tinyRequest()); err == nil || !strings.Contains(err.Error(), "checksum") || h.Changed.Load() == 0 {
		t.Errorf("%d files were changed, and the request got %v", h.Changed.Load(), err)
	}
	if n := checkCache(t, cache); n != 0 {
		t.Errorf("the cache has %d files", n)
	}
	h.Wrong.Store(false)
	servertest.Eventually(t, "the right file is served", func() bool {
		_, err := s.Client().Infer(t.Context(), tinyRequest())
		return err == nil
	})
}
