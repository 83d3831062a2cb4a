//go:build e2e

package e2e

import (
	"context"
	"errors"
	"net/http"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/shoal-serving/shoal/client"
	"github.com/shoal-serving/shoal/internal/kserve/kservepb"
	"github.com/shoal-serving/shoal/test/servertest"
)

// postRow asks the model m for one row over HTTP, and returns the status and what
// goes with it. It is for tests of the status and of headers.
func postRow(ctx context.Context, s *servertest.Server, parameters string) (int, http.Header, error) {
	body := `{"inputs":[{"name":"INPUT","datatype":"FP32","shape":[1,4],"data":[1,2,3,4]}]` + parameters + `}`
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.HTTP+"/v2/models/m/infer", strings.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	got, header, _, err := servertest.Fetch(req)
	return got, header, err
}

// full reports whether the queue of the model m is full. If it is not, the one who
// asked has left it again.
func full(t *testing.T, c *client.Client) bool {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	return errors.Is(servertest.Ask(ctx, c, "m", 1), client.Overloaded)
}

// TestQueuedClientsThatLeaveDoNotRun fills a queue of 24 behind one that runs. If
// they ran although they have left, the last one would wait for 25 runs.
func TestQueuedClientsThatLeaveDoNotRun(t *testing.T) {
	const takes = 1500 * time.Millisecond
	for _, protocol := range []string{"http", "grpc"} {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel() // they sleep
			s := servertest.Start(t, servertest.Repository(t, map[string]string{"m": servertest.Config(takes, "1", "")}), "--max-queue-size=24")
			c := s.Client()
			var wg sync.WaitGroup
			ctx, leave := context.WithCancel(t.Context())
			for range 25 {
				wg.Go(func() {
					for ctx.Err() == nil { // again, if the one who looks had taken the last place
						if protocol == "grpc" {
							_ = servertest.Ask(ctx, c, "m", 1)
						} else {
							_, _, _ = postRow(ctx, s, "")
						}
					}
				})
			}
			servertest.Eventually(t, "a full queue", func() bool { return full(t, c) })
			leave()
			wg.Wait()
			began := time.Now()
			servertest.Eventually(t, "an answer", func() bool { return servertest.Ask(t.Context(), c, "m", 1) == nil })
			if took := time.Since(began); took > 5*takes {
				t.Errorf("answered after %v, want about %v: those who left have run", took, takes)
			}
		})
	}
}

// TestARunningClientThatLeavesFreesTheInstance lets one leave that would run for
// eight times as long as the one behind it.
func TestARunningClientThatLeavesFreesTheInstance(t *testing.T) {
	const row = time.Second
	s := servertest.Start(t, servertest.Repository(t, map[string]string{
		"m": servertest.Config(0, "1", `parameters { key: "per_row_us" value { string_value: "1000000" } }`),
	}), "--max-queue-size=1")
	c := s.Client()
	ctx, leave := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { _ = servertest.Ask(ctx, c, "m", 8) })
	time.Sleep(300 * time.Millisecond)
	leave()
	wg.Wait()
	began := time.Now()
	if got, _, err := postRow(t.Context(), s, ""); err != nil || got != http.StatusOK {
		t.Errorf("status %d, %v", got, err)
	}
	if took := time.Since(began); took > 5*row {
		t.Errorf("answered after %v, want about %v: the one who left has run to its end", took, row)
	}
}

// TestABurstIsRefusedAtOnce sends 600 at once to a queue of 100. The refused ones
// are told so before anybody has an answer.
func TestABurstIsRefusedAtOnce(t *testing.T) {
	const all, queue = 600, 100
	s := servertest.Start(t, servertest.Repository(t, map[string]string{"m": servertest.Config(25*time.Second, "1", "")}), "--max-queue-size=100")
	ctx, leave := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var refused, others atomic.Int64
	for range all {
		wg.Go(func() {
			switch got, header, err := postRow(ctx, s, ""); {
			case got == http.StatusTooManyRequests && header.Get("Retry-After") == "1":
				refused.Add(1)
			case errors.Is(err, context.Canceled):
			default:
				t.Errorf("status %d, %v, %v", got, header, err)
				others.Add(1)
			}
		})
	}
	servertest.Eventually(t, "that all others are refused", func() bool { return refused.Load() == all-queue-1 || others.Load() > 0 })
	leave()
	wg.Wait()
	if refused.Load() != all-queue-1 {
		t.Errorf("%d were refused, want %d", refused.Load(), all-queue-1)
	}
}

func TestAFullQueueIsToldInTritonsWayIfAskedFor(t *testing.T) {
	for _, tt := range []struct {
		flags []string
		http  int
		grpc  codes.Code
	}{{nil, 429, codes.ResourceExhausted}, {[]string{"--triton-status"}, 503, codes.Unavailable}} {
		s := servertest.Start(t, servertest.Repository(t, map[string]string{"m": servertest.Config(25*time.Second, "1", "")}), append(tt.flags, "--max-queue-size=1")...)
		c := s.Client()
		ctx, leave := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for range 2 { // one runs, one waits
			wg.Go(func() { _ = servertest.Ask(ctx, c, "m", 1) })
			time.Sleep(200 * time.Millisecond)
		}
		if got, header, err := postRow(t.Context(), s, ""); err != nil || got != tt.http || header.Get("Retry-After") != "1" {
			t.Errorf("%q: status %d, %v, %v", tt.flags, got, header, err)
		}
		// The trailer and the code are what is asked about here, so that the call is grpc's own.
		var trailer metadata.MD
		_, err := kservepb.NewGRPCInferenceServiceClient(s.Dial()).ModelInfer(t.Context(), servertest.RawRequest(servertest.SmallRequest("m", 1)), grpc.Trailer(&trailer))
		if again := trailer.Get("retry-after"); status.Code(err) != tt.grpc || len(again) != 1 || again[0] != "1" ||
			!strings.Contains(err.Error(), "Exceeds maximum queue size") {
			t.Errorf("%q: %v, %v", tt.flags, err, trailer)
		}
		leave()
		wg.Wait()
	}
}

func TestTheTimeoutOfARequestIsItsDeadline(t *testing.T) {
	const takes = 10 * time.Second
	s := servertest.Start(t, servertest.Repository(t, map[string]string{"m": servertest.Config(takes, "1", "dynamic_batching { }")}))
	began := time.Now()
	got, _, err := postRow(t.Context(), s, `,"parameters":{"timeout":100000}`)
	if took := time.Since(began); err != nil || got != http.StatusGatewayTimeout || took > takes/2 {
		t.Errorf("status %d, %v, after %v", got, err, took)
	}
}

// TestSIGTERMLosesNobodyWhoIsInside stops a server with 24 inside, and goes on
// asking it.
func TestSIGTERMLosesNobodyWhoIsInside(t *testing.T) {
	s := servertest.Start(t, servertest.Repository(t, map[string]string{"m": servertest.Config(time.Second, "1", "dynamic_batching { }")}))
	c := s.Client()
	var wg sync.WaitGroup
	var closes atomic.Int64
	inside := func(i int) {
		if i%2 == 0 {
			if err := servertest.Ask(t.Context(), c, "m", 1); err != nil {
				t.Errorf("a request that was here: %v", err)
			}
			return
		}
		got, header, err := postRow(t.Context(), s, "")
		if err != nil || got != http.StatusOK {
			t.Errorf("a request that was here: %d %v", got, err)
		}
		if header.Get("Connection") == "close" {
			closes.Add(1)
		}
	}
	wg.Go(func() { inside(0) })
	time.Sleep(100 * time.Millisecond) // it runs, and the others wait for up to three batches
	for i := range 23 {
		wg.Go(func() { inside(i) })
	}
	time.Sleep(500 * time.Millisecond)
	s.Terminate()
	servertest.Eventually(t, "that it is not ready", func() bool { got, _ := s.Get("/v2/health/ready"); return got == http.StatusBadRequest })
	servertest.Eventually(t, "that the late are sent elsewhere", func() bool {
		got, header, err := postRow(t.Context(), s, "")
		return err == nil && got == http.StatusServiceUnavailable && header.Get("Connection") == "close"
	})
	for name, late := range map[string]*client.Client{"an old connection": c, "a new connection": s.Client()} {
		servertest.Eventually(t, "that the late are sent elsewhere over "+name, func() bool { return errors.Is(servertest.Ask(t.Context(), late, "m", 1), client.Unavailable) })
	}
	if got, _ := s.Get("/v2/health/live"); got != http.StatusOK {
		t.Errorf("live is %d while requests end", got)
	}
	wg.Wait()
	if !s.EndsWithin(10*time.Second) || s.Err != nil {
		t.Errorf("ended with %v\n%s", s.Err, s.Log())
	}
	if closes.Load() == 0 {
		t.Error("no answer asked its client to connect anew")
	}
	if !strings.Contains(s.Log(), "waiting for requests to end") {
		t.Errorf("nothing was said of those who are inside\n%s", s.Log())
	}
}

func TestRequestsAreTakenDuringTheShutdownDelay(t *testing.T) {
	s := servertest.Start(t, servertest.Repository(t, map[string]string{"m": servertest.Config(time.Millisecond, "1", "")}), "--shutdown-delay=3")
	conn := s.Dial() // for grpc's own health service
	s.Terminate()
	servertest.Eventually(t, "that it is not ready", func() bool { got, _ := s.Get("/v2/health/ready"); return got == http.StatusBadRequest })
	health, err := grpc_health_v1.NewHealthClient(conn).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	if err != nil || health.GetStatus() != grpc_health_v1.HealthCheckResponse_NOT_SERVING {
		t.Errorf("health over gRPC is %v, %v", health, err)
	}
	if got, header, err := postRow(t.Context(), s, ""); err != nil || got != http.StatusOK || header.Get("Connection") == "close" {
		t.Errorf("a request during the delay: %d, %v, %v", got, header, err)
	}
	if err := servertest.Ask(t.Context(), s.Client(), "m", 1); err != nil {
		t.Errorf("a request during the delay: %v", err)
	}
	if !s.EndsWithin(15*time.Second) || s.Err != nil {
		t.Errorf("ended with %v\n%s", s.Err, s.Log())
	}
}

func TestAServerThatHasToCutRequestsOffSaysSo(t *testing.T) {
	s := servertest.Start(t, servertest.Repository(t, map[string]string{"m": servertest.Config(60*time.Second, "1", "")}), "--exit-timeout-secs=1")
	c := s.Client()
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := servertest.Ask(context.Background(), c, "m", 1); err == nil {
			t.Error("it was answered")
		}
	})
	time.Sleep(300 * time.Millisecond)
	s.Terminate()
	wg.Wait()
	var exit *exec.ExitError
	if !s.EndsWithin(10*time.Second) || !errors.As(s.Err, &exit) || exit.ExitCode() != 1 || !strings.Contains(s.Log(), "aborted 1 requests") {
		t.Errorf("ended with %v\n%s", s.Err, s.Log())
	}
}

func TestOtherMachinesAreNotLetInByAccident(t *testing.T) {
	out, err := exec.Command(servertest.Root+"/bin/shoal", "serve", servertest.Root+"/examples/seed-device", "--address=0.0.0.0", "--http-port=0", "--grpc-port=0").CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 2 || !strings.Contains(string(out), "--insecure-bind") {
		t.Errorf("ended with %v:\n%s", err, out)
	}
	servertest.Start(t, servertest.Root+"/examples/seed-device", "--address=0.0.0.0", "--insecure-bind")
}
