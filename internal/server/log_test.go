package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/infer"
)

// told runs a request against a server that logs from level on, and returns the
// records.
func told(t *testing.T, level slog.Level, req *infer.Request) (all []map[string]any) {
	t.Helper()
	var out bytes.Buffer
	s := start(t)
	s.log = slog.New(slog.NewJSONHandler(&out, &slog.HandlerOptions{Level: level}))
	var resp infer.Response
	if s.Infer(t.Context(), req, &resp) == nil {
		resp.Release()
	}
	for line := range strings.Lines(out.String()) {
		var r map[string]any
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(err)
		}
		all = append(all, r)
	}
	return all
}

func TestRequestsAreLoggedAtDebugLevelOnly(t *testing.T) {
	req := request()
	req.ID = "seven"
	if all := told(t, slog.LevelInfo, req); len(all) != 0 {
		t.Errorf("at info level: %v", all)
	}
	all := told(t, slog.LevelDebug, req)
	if len(all) != 1 {
		t.Fatalf("got %v", all)
	}
	for key, want := range map[string]any{"model": "echo", "version": "3", "id": "seven", "rows": 2.0, "batch": 2.0, "closed": "idle"} {
		if got := all[0][key]; got != want {
			t.Errorf("%s is %v, want %v", key, got, want)
		}
	}
	for _, key := range []string{"queue", "compute"} {
		if took, ok := all[0][key].(float64); !ok || took < 0 {
			t.Errorf("%s is %v", key, all[0][key])
		}
	}
}

func TestARequestWithoutIDIsLoggedWithoutOne(t *testing.T) {
	all := told(t, slog.LevelDebug, request())
	if _, ok := all[0]["id"]; ok {
		t.Errorf("got %v", all[0])
	}
}

func TestARequestThatDidNotRunIsLoggedWithoutTimes(t *testing.T) {
	req := request()
	req.Model = "no\r\nbody"
	all := told(t, slog.LevelDebug, req)
	if len(all) != 1 || all[0]["model"] != req.Model || all[0]["code"] != "not found" || all[0]["batch"] != nil {
		t.Errorf("got %v", all)
	}
}

func TestOnlyInternalErrorsAreLoggedAsErrors(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want int
	}{
		{nil, 0},
		{infer.Errorf(infer.Invalid, "no"), 0},
		{infer.Errorf(infer.Overloaded, "no"), 0},
		{context.Canceled, 0},
		{errors.New("the model is broken"), 1},
	} {
		var out bytes.Buffer
		s := Server{log: slog.New(slog.NewTextHandler(&out, nil))}
		s.logRequest(t.Context(), &infer.Request{ID: "a b"}, &infer.Response{Model: "m", Version: "1"}, 2*time.Millisecond, tt.err)
		if got := strings.Count(out.String(), "\n"); got != tt.want {
			t.Errorf("%v: %d records, want %d: %s", tt.err, got, tt.want, &out)
		}
		if tt.want > 0 && !strings.Contains(out.String(), `level=ERROR msg="request failed" model=m version=1 id="a b" latency=2ms rows=0 code=internal error="the model is broken"`) {
			t.Errorf("got %s", &out)
		}
	}
}

// A client may know an input on which the model fails, and choose a long id.
func TestTheLogOfFailedRequestsIsLimited(t *testing.T) {
	for logRequests, want := range map[bool]int{false: maxFailures, true: maxFailures + 50} {
		var out bytes.Buffer
		s := Server{log: slog.New(slog.NewTextHandler(&out, nil)), logRequests: logRequests}
		for range maxFailures + 50 {
			s.logRequest(t.Context(), &infer.Request{ID: strings.Repeat("i", 1<<10)}, &infer.Response{}, 0, errors.New("broken"))
		}
		if got := strings.Count(out.String(), "request failed"); got != want || strings.Contains(out.String(), strings.Repeat("i", maxLoggedID+1)) {
			t.Errorf("all requests logged %v: %d records, want %d; the first is %.400s", logRequests, got, want, &out)
		}
	}
}

func TestRequestsAreLoggedIfThatIsAskedFor(t *testing.T) {
	var out bytes.Buffer
	s := Server{log: slog.New(slog.NewTextHandler(&out, nil)), logRequests: true}
	s.logRequest(t.Context(), &infer.Request{ID: "7"}, &infer.Response{Model: "m", Version: "1"}, 2*time.Millisecond, nil)
	if got := out.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, `level=INFO msg=request model=m version=1 id=7 latency=2ms rows=0`) {
		t.Errorf("got %s", got)
	}
}

func TestALogThatIsOffCostsNothing(t *testing.T) {
	s := Server{log: slog.New(slog.NewTextHandler(new(bytes.Buffer), nil))}
	ctx, req, resp := t.Context(), request(), &infer.Response{}
	if n := testing.AllocsPerRun(100, func() { s.logRequest(ctx, req, resp, time.Millisecond, nil) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
