//go:build e2e && linux

package e2e

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gocloud.dev/blob"
	_ "gocloud.dev/blob/s3blob" // s3://

	"github.com/shoal-serving/shoal/test/servertest"
)

// An objectStore is a real S3 server behind a proxy that injects faults, and one that answers
// 500 in place of the server.
type objectStore struct {
	t      *testing.T
	blob   *blob.Bucket          // past the proxies
	url    string                // through them
	proxy  *servertest.Toxiproxy // the first of them
	broken atomic.Int64          // how many reads of objects are answered with 500
	failed atomic.Int64          // how many were
	reads  atomic.Int64          // how many there were in all
	short  atomic.Int64          // how many of the next answers end after half of their bytes
	flip   atomic.Bool           // answers have a wrong byte
	halved atomic.Int64          // answers that ended early
	wrong  atomic.Int64          // answers with a wrong byte
}

// startS3 starts a real S3 server with an empty bucket, and returns its address. It skips the test
// if tools/get-versitygw has not been run.
func startS3(t *testing.T) (address string) {
	t.Helper()
	gateway := filepath.Join(servertest.Root, "bin", "versitygw")
	if _, err := os.Stat(gateway); err != nil {
		t.Skipf("%v; run tools/get-versitygw", err)
	}
	for name, value := range map[string]string{"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secretsecret", "AWS_REGION": "us-east-1", "ROOT_ACCESS_KEY": "key", "ROOT_SECRET_KEY": "secretsecret"} {
		t.Setenv(name, value)
	}
	root := t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "models"), 0o755); err != nil {
		t.Fatal(err)
	}
	address = servertest.FreeAddress(t)
	servertest.RunTool(t, address, gateway, "--port", address, "posix", root)
	return address
}

// startStore starts a store with an empty bucket.
func startStore(t *testing.T) *objectStore {
	t.Helper()
	direct := startS3(t)
	s := &objectStore{t: t, proxy: servertest.StartToxiproxy(t)}
	target := &url.URL{Scheme: "http", Host: s.proxy.Forward("s3", direct)}
	forward := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(target)
		r.Out.Host = r.In.Host // which the client has signed
	}}
	forward.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError) // faults are meant
	forward.Transport = &http.Transport{DisableKeepAlives: true}               // so that a fault meets every request
	forward.ModifyResponse = func(r *http.Response) error {
		if !strings.Contains(r.Request.URL.Path, "/weights") || !s.flip.Load() && s.short.Load() <= 0 {
			return nil
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return err
		}
		if s.flip.Load() {
			s.wrong.Add(1)
			body[len(body)/2] ^= 1
		}
		if s.short.Add(-1) >= 0 {
			s.halved.Add(1)
			body = body[:len(body)/2]
			r.Header.Set("Content-Length", strconv.Itoa(len(body)))
			r.ContentLength = int64(len(body))
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		return nil
	}
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		weights := strings.Contains(r.URL.Path, "/weights")
		if weights {
			s.reads.Add(1)
		}
		if weights && s.broken.Add(-1) >= 0 {
			s.failed.Add(1)
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		forward.ServeHTTP(w, r)
	}))
	t.Cleanup(front.Close)
	s.url = "s3://models/m?use_path_style=true&endpoint=" + front.URL
	s.blob = openBucket(t, "s3://models?use_path_style=true&endpoint=http://"+direct)
	return s
}

// with injects a fault while do runs.
func (s *objectStore) with(kind string, attributes map[string]any, do func()) {
	s.t.Helper()
	s.proxy.Call("/proxies/s3/toxics", map[string]any{"name": kind, "type": kind, "attributes": attributes})
	do()
	s.proxy.Call("/proxies/s3/toxics/"+kind, nil)
}

const weightsSize = 20 << 20

// put writes a model. Its weights are of no use, but large.
func (s *objectStore) put(name string, seed byte) {
	s.t.Helper()
	s.putSize(name, seed, weightsSize)
}

func (s *objectStore) putSize(name string, seed byte, size int) {
	s.t.Helper()
	weights := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(weights) // it never fails
	for key, content := range map[string][]byte{"config.pbtxt": []byte(servertest.Config(time.Millisecond, "1", "")), "1/weights": weights} {
		if err := s.blob.WriteAll(s.t.Context(), "m/"+name+"/"+key, content, nil); err != nil {
			s.t.Fatal(err)
		}
	}
}

// checkCache checks that every file of a cache is what its name says, and returns their number.
func checkCache(t *testing.T, dir string) int {
	t.Helper()
	blobs, err := os.ReadDir(filepath.Join(dir, "blobs"))
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range blobs {
		f, err := os.Open(filepath.Join(dir, "blobs", b.Name()))
		if err != nil {
			t.Fatal(err)
		}
		h := sha256.New()
		_, err = io.Copy(h, f)
		if err := errors.Join(err, f.Close()); err != nil || hex.EncodeToString(h.Sum(nil)) != b.Name() {
			t.Errorf("blob %s is not what its name says: %v", b.Name(), err)
		}
	}
	return len(blobs)
}

// TestABucketWithFaultsHarmsNoLoadedModel serves models of a real S3 server that is slow, breaks
// off, answers 500, is down, and has an object replaced; then the server is killed in the middle
// of a fetch. A loaded model answers every request, and nothing wrong is ever kept.
func TestABucketWithFaultsHarmsNoLoadedModel(t *testing.T) {
	store := startStore(t)
	for i, name := range []string{"warm", "slow", "cut", "errors", "down", "changed", "killed"} {
		store.put(name, byte(i))
	}
	store.putSize("flipped", 50, 1<<20) // written in one piece, so that the store lists its MD5
	store.putSize("halved", 51, 1<<20)
	cache := filepath.Join(t.TempDir(), "cache")
	flags := []string{"--model-control-mode=demand", "--model-memory=1GiB", "--calibration-dir=", "--model-cache=" + cache, "--repository-poll-secs=3600"}
	s := servertest.Start(t, store.url, flags...)
	c := s.Client()
	ask := func(name string) error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		return servertest.Ask(ctx, c, name, 1)
	}
	must := func(name string) (took time.Duration) {
		t.Helper()
		began := time.Now()
		if err := ask(name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		took = time.Since(began)
		t.Logf("%s: answered after %v", name, took.Round(time.Millisecond))
		return took
	}
	must("warm")
	stop, asked := make(chan struct{}), 0
	var background sync.WaitGroup
	background.Go(func() {
		every := time.NewTicker(20 * time.Millisecond)
		defer every.Stop()
		for ; ; <-every.C {
			select {
			case <-stop:
				return
			default:
			}
			asked++
			if err := ask("warm"); err != nil {
				t.Errorf("the loaded model: %v", err)
			}
		}
	})
	latency := time.Second
	if *servertest.Strict {
		latency = 5 * time.Second
	}
	store.with("latency", map[string]any{"latency": latency.Milliseconds()}, func() {
		if took := must("slow"); took < latency {
			t.Errorf("the store was not slow: %v", took)
		}
	})
	before := store.reads.Load()
	store.with("limit_data", map[string]any{"bytes": 5 << 20}, func() { must("cut") }) // less than a range
	if n := store.reads.Load() - before; n < 5 {
		t.Errorf("three ranges were read with %d requests, of which two were to be cut", n)
	}
	store.broken.Store(5)
	must("errors")
	if n := store.failed.Load(); n != 5 {
		t.Errorf("%d requests were answered with 500, want 5", n)
	}
	store.proxy.Call("/proxies/s3", map[string]any{"enabled": false})
	if err := ask("down"); err == nil || !strings.Contains(err.Error(), "cannot be fetched") {
		t.Errorf("down: %v", err)
	}
	store.proxy.Call("/proxies/s3", map[string]any{"enabled": true})
	store.flip.Store(true)
	if err := ask("flipped"); err == nil || !strings.Contains(err.Error(), "checksum") || store.wrong.Load() == 0 {
		t.Errorf("flipped: %d answers were wrong: %v", store.wrong.Load(), err)
	}
	store.flip.Store(false)
	servertest.Eventually(t, "the right object is served", func() bool { return ask("flipped") == nil })
	store.short.Store(3)
	must("halved")
	if n := store.halved.Load(); n != 3 {
		t.Errorf("%d answers ended early, want 3", n)
	}
	store.put("changed", 100)
	if err := ask("changed"); err == nil || !strings.Contains(err.Error(), "replaced") {
		t.Errorf("changed: %v", err)
	}
	servertest.Eventually(t, "the new objects are served", func() bool { return ask("changed") == nil })
	store.with("bandwidth", map[string]any{"rate": 2000}, func() { // KB/s
		background.Go(func() { _ = ask("killed") }) // the server is killed before it answers
		servertest.Eventually(t, "a fetch is under way", func() bool {
			partial, _ := filepath.Glob(filepath.Join(cache, "partial", "*"))
			for _, file := range partial {
				if info, err := os.Stat(file); err == nil && info.Size() > 0 {
					return true
				}
			}
			return false
		})
		close(stop)
		time.Sleep(100 * time.Millisecond) // the last request for the loaded model is answered
		s.Kill()
		background.Wait()
	})
	t.Logf("the loaded model answered %d requests", asked)
	whole := checkCache(t, cache)
	s = servertest.Start(t, store.url, flags...)
	c = s.Client()
	must("killed")
	must("warm")
	if partial, _ := filepath.Glob(filepath.Join(cache, "partial", "*")); len(partial) > 0 {
		t.Errorf("left over are %v", partial)
	}
	if after := checkCache(t, cache); after != whole+1 {
		t.Errorf("the cache has %d files after %d, want one more", after, whole)
	}
	servertest.Contains(t, "the log", s.Log(), "model fetched", fmt.Sprintf("bytes=%d", weightsSize))
}
