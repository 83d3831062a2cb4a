//go:build e2e

package proofs

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/shoal-serving/shoal/client"
	"github.com/shoal-serving/shoal/internal/bench"
	"github.com/shoal-serving/shoal/internal/kserve/kservepb"
	"github.com/shoal-serving/shoal/test/servertest"
)

func TestTimeoutsAreAnsweredAtTheirDeadline(t *testing.T) {
	s := servertest.Start(t, servertest.Repository(t, map[string]string{
		"m": servertest.Config(400*time.Millisecond, "1", "dynamic_batching { default_queue_policy { default_timeout_microseconds: 100000 } }"),
	}))
	c := s.Client()
	// late returns how many milliseconds after its time an answer comes, while the
	// instance is busy.
	late := func(want time.Duration, code client.Code, f func() error) float64 {
		var wg sync.WaitGroup
		defer wg.Wait()
		wg.Go(func() {
			if err := servertest.Ask(t.Context(), c, "m", 8); err != nil {
				t.Error(err)
			}
		})
		time.Sleep(100 * time.Millisecond)
		began := time.Now()
		if err := f(); !errors.Is(err, code) {
			t.Errorf("answered with %v, want %v", err, code)
		}
		return float64(time.Since(began)-want) / float64(time.Millisecond)
	}
	most := servertest.StrictOr(5.0, 20.0)
	servertest.Hold(t, "queue timeout, ms late", 0, most, func() float64 {
		return late(100*time.Millisecond, client.Unavailable, func() error { return servertest.Ask(t.Context(), c, "m", 1) })
	})
	// A deadline is answered a millisecond early, so that the answer comes before grpc
	// resets the stream.
	servertest.Hold(t, "deadline, ms late", -1, most, func() float64 {
		return late(50*time.Millisecond, client.Deadline, func() error {
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			return servertest.Ask(ctx, c, "m", 1)
		})
	})
}

// TestOneClientAloneNeverWaits asks the seed device as it is left, by one client, and
// with no delay. Where nobody else asks there is nobody to wait for.
func TestOneClientAloneNeverWaits(t *testing.T) {
	s := servertest.Start(t, servertest.Root+"/examples/seed-device")
	s.AwaitLog(`msg="model measured" model=seed_auto version=1`)
	s.AwaitLog(`msg="model measured" model=seed_auto_two version=1`)
	middle := func(model string) float64 {
		latencies := servertest.ClosedLoop(t, s, model, 1, servertest.StrictOr(time.Second, 300*time.Millisecond)).Latencies
		slices.Sort(latencies)
		return float64(latencies[len(latencies)/2])
	}
	for _, model := range []string{"seed_auto", "seed_auto_two"} {
		servertest.Hold(t, model+", latency of one client, times that without a delay", 0, servertest.StrictOr(1.03, 1.2), func() float64 {
			greedy := middle("seed_dynamic")
			return middle(model) / greedy
		})
	}
}

// TestIdleConnectionsAreCheap keeps connections open that have been used once.
func TestIdleConnectionsAreCheap(t *testing.T) {
	connections := servertest.StrictOr(10_000, 500)
	for _, p := range []struct {
		protocol string
		most     float64 // KB
		use      func(t *testing.T, s *servertest.Server)
	}{
		{"HTTP", 50, useHTTP},
		{"gRPC", 50, useGRPC},
	} {
		t.Run(p.protocol, func(t *testing.T) {
			s := servertest.Start(t, servertest.Root+"/examples/seed-device")
			before := s.Resident()
			for range connections {
				p.use(t, s)
			}
			each := float64(s.Resident()-before) / float64(connections)
			t.Logf("each of %d idle connections: %.1f KB, want at most %.0f", connections, each, p.most)
			if each > p.most {
				t.Errorf("each of %d idle connections takes %.1f KB, want at most %.0f", connections, each, p.most)
			}
		})
	}
}

// useHTTP opens a connection, and asks once. It is the connection that is measured, so that
// there is no client around it.
func useHTTP(t *testing.T, s *servertest.Server) {
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.HTTP, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, "GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReaderSize(conn, 256), nil)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%v, %v", resp, err)
	}
	if err := resp.Body.Close(); err != nil {
		t.Fatal(err)
	}
}

// useGRPC opens a connection, and asks once. The buffers are smaller than the public client's,
// for the test's own sake.
func useGRPC(t *testing.T, s *servertest.Server) {
	conn, err := grpc.NewClient(s.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithReadBufferSize(1<<10), grpc.WithWriteBufferSize(1<<10))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if _, err := kservepb.NewGRPCInferenceServiceClient(conn).ServerLive(t.Context(), &kservepb.ServerLiveRequest{}); err != nil {
		t.Fatal(err)
	}
}

// TestBenchMeasuresTheSeedDevice holds the figures of `shoal bench` against what
// the device can do, and the server's side against the clients'.
func TestBenchMeasuresTheSeedDevice(t *testing.T) {
	s := servertest.Start(t, servertest.Root+"/examples/seed-device")
	limit := 2 / servertest.SeedCurve.Takes(2).Seconds()
	for _, protocol := range []string{"http", "grpc"} {
		servertest.Hold(t, fmt.Sprintf("seed_none over %s, share of %.0f infer/s", protocol, limit), servertest.StrictOr(0.9, 0.65), 1.1, func() float64 {
			// Other work on the machine is no reason to call it unstable.
			out, err := servertest.BenchCommand(s, protocol, "-m", "seed_none", "-b", "2", "--concurrency-range", "4", "-p", "400", "-s", "300", "--json", "-").Output()
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
	if takes := servertest.SeedCurve.Takes(2); each.Infer < takes || each.Queue < takes {
		t.Errorf("a request waits %v and computes %v, want at least %v each", each.Queue, each.Infer, takes)
	}
}
