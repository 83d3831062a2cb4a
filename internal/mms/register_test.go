package mms

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/access"
	"github.com/shoal-serving/shoal/internal/engine/python"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/pacer"
	"github.com/shoal-serving/shoal/internal/servable"
	"github.com/shoal-serving/shoal/internal/server"
)

func TestARegistrationHasLimits(t *testing.T) {
	number := func(n int) *int { return &n }
	for _, tt := range []struct {
		reg  Registration
		want string // what the error begins with; "" means that it is accepted
	}{
		{Registration{}, "Parameter url is required."},
		{Registration{BatchSize: -1}, "batch_size: found -1, "},
		{Registration{BatchSize: 4096}, ""},
		{Registration{BatchSize: 4097}, "batch_size: found 4097, "},
		{Registration{MaxBatchDelay: number(0)}, ""},
		{Registration{MaxBatchDelay: number(-1)}, "max_batch_delay: found -1, "},
		{Registration{Workers: number(1024)}, ""},
		{Registration{Workers: number(1025)}, "initial_workers: found 1025, "},
		{Registration{Workers: number(-1)}, "initial_workers: found -1, "},
		{Registration{ResponseTimeout: -1}, "response_timeout: found -1, "},
		{Registration{StartupTimeout: -1}, "startup_timeout: found -1, "},
		{Registration{ResponseTimeout: 1 << 62}, "response_timeout: found 4611686018427387904, "},
		{Registration{StartupTimeout: 1 << 62}, "startup_timeout: found 4611686018427387904, "},
		{Registration{MaxBatchDelay: number(1 << 62)}, "max_batch_delay: found 4611686018427387904, "},
		{Registration{Runtime: "python3"}, ""},
		{Registration{Runtime: "java"}, "Invalid RuntimeType value: java"},
	} {
		if tt.want != "Parameter url is required." {
			tt.reg.URL = "m.mar"
		}
		got := ""
		if err := tt.reg.check(); err != nil {
			got = err.Error()
			if told, ok := errors.AsType[*Error](err); !ok || told.Status != http.StatusBadRequest {
				t.Errorf("%+v: %v has another status", tt.reg, err)
			}
		}
		if !strings.HasPrefix(got, tt.want) || tt.want == "" && got != "" {
			t.Errorf("%+v: found %q, want %q", tt.reg, got, tt.want)
		}
	}
}

// The sizes in an archive's directory are forged, so that a file has more bytes than it says.
func TestAnArchiveThatUnpacksToMoreThanItSaysIsRefused(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "m.mar")
	entry := entry("zeros", strings.Repeat("0", 100_000))
	writeArchive(t, file, entry)
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	size := []byte{0xa0, 0x86, 1, 0} // 100,000
	if bytes.Count(data, size) == 0 {
		t.Fatal("no size is forged")
	}
	data = bytes.ReplaceAll(data, size, []byte{10, 0, 0, 0})
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	private := t.TempDir()
	s := store{dir: dir, private: private, limits: limits{Bytes: 1000}}
	if _, _, err := s.open(t.Context(), "m.mar"); err == nil {
		t.Error("it was unpacked")
	}
	if left, _ := os.ReadDir(private); len(left) != 0 {
		t.Errorf("%v are left", left)
	}
}

// A zip is read by a library that notices that itself.
func TestAFileThatIsLongerThanItSaysIsRefused(t *testing.T) {
	root, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = root.Close() }()
	for size, want := range map[int]error{1000: nil, 1001: errTooLarge} {
		u := unpacker{root: root, filesLeft: 1, bytesLeft: 1000}
		open := func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(strings.Repeat("0", size))), nil }
		if err := u.write(fmt.Sprint(size), 0o600, 10, open); !errors.Is(err, want) {
			t.Errorf("%d bytes: %v, want %v", size, err, want)
		}
	}
}

func TestADownloadHasALimit(t *testing.T) {
	dir := t.TempDir()
	writeArchive(t, filepath.Join(dir, "m.mar"), entry("MAR-INF/MANIFEST.json", manifest))
	data, err := os.ReadFile(filepath.Join(dir, "m.mar"))
	if err != nil {
		t.Fatal(err)
	}
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(data) }))
	defer web.Close()
	for limit, want := range map[int64]string{int64(len(data)): "", int64(len(data)) - 1: "more than"} {
		private := t.TempDir()
		s := store{private: private, limits: limits{Bytes: limit}, allowed: []*regexp.Regexp{regexp.MustCompile(".*")}}
		_, done, err := s.open(t.Context(), web.URL+"/m.mar")
		if err == nil {
			err = done()
		}
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("a limit of %d bytes for %d: %v", limit, len(data), err)
		}
		if left, _ := os.ReadDir(private); len(left) != 0 {
			t.Errorf("%v are left", left)
		}
	}
}

// A presigned address has what it takes to read the archive, and callers that may only infer can read
// the addresses of models.
func TestTheCredentialsOfAnAddressAreOnlyForItsDownload(t *testing.T) {
	dir := t.TempDir()
	writeArchive(t, filepath.Join(dir, "m.mar"), entry("MAR-INF/MANIFEST.json", manifest))
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, password, _ := r.BasicAuth()
		switch {
		case r.URL.Path == "/elsewhere.mar":
			http.Redirect(w, r, "/refused/m.mar?"+r.URL.RawQuery, http.StatusFound)
		case user != "ann" || password != "PASS" || r.URL.Query().Get("sig") != "SECRET":
			w.WriteHeader(http.StatusForbidden)
		default:
			http.ServeFile(w, r, filepath.Join(dir, filepath.Base(r.URL.Path)))
		}
	}))
	defer web.Close()
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	path := filepath.Join(dir, "audit.log")
	audit, err := access.OpenAudit(path, access.AuditOptions{})
	if err != nil {
		t.Fatal(err)
	}
	settings := NewSettings()
	settings.Allowed = []*regexp.Regexp{regexp.MustCompile("^http://[^/]*/[a-z.]*mar")}
	_, s := newGuardedStore(t, settings, &access.Gate{Audit: audit, Open: true})
	with := func(url, path string) string {
		return strings.Replace(url, "http://", "http://ann:PASS@", 1) + path + "?sig=SECRET#SECRET"
	}
	none := 0
	o, err := s.Register(t.Context(), Registration{URL: with(web.URL, "/m.mar"), Workers: &none})
	if err != nil {
		t.Fatal(err)
	}
	if got := About(o.Version).URL; got != web.URL+"/m.mar" {
		t.Errorf("the address is %q", got)
	}
	for _, url := range []string{
		with(web.URL, "/absent.mar"), with(web.URL, "/elsewhere.mar"), with(web.URL, "/refused/m.mar"), with(gone.URL, "/m.mar"),
		"ftp://ann:PASS@host/m.mar?sig=SECRET", "http://ann:PASS@host:x/m.mar?sig=SECRET",
	} {
		if _, err := s.Register(t.Context(), Registration{URL: url}); err == nil || strings.Contains(err.Error(), "SECRET") || strings.Contains(err.Error(), "PASS") {
			t.Errorf("%s: %v", url, err)
		}
	}
	if err := audit.Close(); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if n := strings.Count(string(text), "\n"); err != nil || n != 7 || strings.Contains(string(text), "SECRET") || strings.Contains(string(text), "PASS") || !strings.Contains(string(text), web.URL+"/m.mar") {
		t.Errorf("%d records, %v: %s", n, err, text)
	}
}

// newStore returns a store with a server that has not started. The test closes both at its end.
func newStore(t *testing.T, settings *Settings) (*server.Server, *Store) {
	t.Helper()
	return newGuardedStore(t, settings, nil)
}

func newGuardedStore(t *testing.T, settings *Settings, gate *access.Gate) (*server.Server, *Store) {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	engine, pace := python.New(python.Options{Log: log}), pacer.New()
	held := server.New(servable.NewEnv(servable.Options{
		Runners: map[string]servable.Runner{python.Name: {Engine: engine}}, Pacer: pace, Log: log,
	}), server.Options{Log: log, Access: gate})
	s, err := New(held, Options{Settings: settings, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Close()
		if err := errors.Join(held.Close(), s.RemoveFiles(), engine.Close()); err != nil {
			t.Error(err)
		}
		pace.Close()
	})
	return held, s
}

func TestADownloadEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush()
		cancel()
		<-r.Context().Done() // the client has left
	}))
	settings := NewSettings()
	settings.Allowed = []*regexp.Regexp{regexp.MustCompile(".*")}
	settings.Load = []Load{{URL: web.URL + "/a.mar"}, {URL: web.URL + "/b.mar"}}
	_, s := newStore(t, settings)
	if err := s.Start(ctx); err == nil || !strings.Contains(err.Error(), "/a.mar: ") || strings.Contains(err.Error(), "/b.mar") {
		t.Errorf("it ended with %v, want the error of the first, and no attempt with the second", err)
	}
	web.Close()
}

func TestWhileTheServerStartsNoModelIsSaidToBeMissing(t *testing.T) {
	held, s := newStore(t, NewSettings())
	status := func(version string) int {
		_, err := s.Find("m", version)
		told, ok := errors.AsType[*Error](err)
		if !ok {
			t.Fatalf("found with %v, want an error for clients", err)
		}
		return told.Status
	}
	for _, version := range []string{"", "1.0"} {
		if got := status(version); got != http.StatusServiceUnavailable {
			t.Errorf("version %q: status %d before the archives are registered, want 503", version, got)
		}
	}
	held.MarkStarted()
	if got := status(""); got != http.StatusNotFound {
		t.Errorf("status %d after the start, want 404", got)
	}
}

func TestATenantOverItsLimitLearnsWhenToRetry(t *testing.T) {
	_, s := newStore(t, NewSettings())
	over := infer.Errorf(infer.Overloaded, "%w", &access.LimitError{Tenant: "a", Limit: access.Rate, RetryAfter: 3 * time.Second})
	got, ok := errors.AsType[*Error](s.toClientError(t.Context(), nil, over))
	if !ok || got.Status != http.StatusTooManyRequests || got.RetryAfter != 3*time.Second || got.Message != over.Error() {
		t.Errorf("got %+v", got)
	}
}
