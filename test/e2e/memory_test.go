//go:build e2e && linux

package e2e

import (
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding/gzip"

	"github.com/shoal-serving/shoal/client"
	"github.com/shoal-serving/shoal/internal/kserve/kservepb"
	"github.com/shoal-serving/shoal/tensor"
	"github.com/shoal-serving/shoal/test/servertest"
)

// memoryBudget is that of the servers under attack.
const memoryBudget = 256 << 20

// TestRequestsStayWithinTheMemoryBudget attacks a fresh server in each way that takes much
// memory for little work. It grows by at most 1.3 times its budget, and answers others.
func TestRequestsStayWithinTheMemoryBudget(t *testing.T) {
	for name, attack := range map[string]func(t *testing.T, s *servertest.Server) (end func()){
		"bodies whose last byte does not come": func(t *testing.T, s *servertest.Server) func() { return withhold(t, s, 60, 60<<20) },
		"bodies that are only announced":       func(t *testing.T, s *servertest.Server) func() { return withhold(t, s, 500, 0) },
		"compressed messages over gRPC":        compressedMessages,
	} {
		t.Run(name, func(t *testing.T) {
			s := servertest.Start(t, servertest.Repository(t, map[string]string{"m": servertest.Config(time.Millisecond, "1", ""), "other": servertest.Config(time.Millisecond, "1", "")}),
				fmt.Sprintf("--memory-budget=%d", memoryBudget))
			c := s.Client()
			if err := servertest.Ask(t.Context(), c, "other", 1); err != nil {
				t.Fatal(err)
			}
			idle, peak := s.Resident()<<10, 0
			end := attack(t, s)
			for range 20 {
				peak = max(peak, s.Resident()<<10)
				if err := servertest.Ask(t.Context(), c, "other", 1); err != nil {
					t.Errorf("another client: %v", err)
				}
				time.Sleep(50 * time.Millisecond)
			}
			end()
			grown := peak - idle
			t.Logf("grew by %d MiB from %d MiB, %.2f times the budget", grown>>20, idle>>20, float64(grown)/memoryBudget)
			if grown > memoryBudget*13/10 {
				t.Errorf("grew by %d MiB with a budget of %d MiB", grown>>20, memoryBudget>>20)
			}
			// The server has the memory back as soon as it notices that the connections are closed.
			servertest.Eventually(t, "an answer of the attacked model", func() bool { return servertest.Ask(t.Context(), c, "m", 1) == nil })
		})
	}
}

// withhold opens connections that announce a body of 60 MiB, and send so much of it.
func withhold(t *testing.T, s *servertest.Server, connections, bytes int) func() {
	part := []byte(strings.Repeat(" ", 1<<20))
	var all []net.Conn
	var senders sync.WaitGroup
	for range connections {
		c, err := net.Dial("tcp", strings.TrimPrefix(s.HTTP, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, c)
		senders.Go(func() {
			_, err := fmt.Fprintf(c, "POST /v2/models/m/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n", 60<<20+1)
			for sent := 0; sent < bytes && err == nil; sent += len(part) {
				_, err = c.Write(part) // an error is a refusal
			}
		})
	}
	return func() {
		for _, c := range all {
			_ = c.Close()
		}
		senders.Wait()
	}
}

// compressedMessages sends zeros, which are small until they are decompressed.
func compressedMessages(t *testing.T, s *servertest.Server) func() {
	const size = 60 << 20
	in := servertest.RawRequest(&client.Request{Model: "m", Inputs: []client.Tensor{{Name: "INPUT", Type: tensor.FP32, Shape: []int64{size / 16, 4}, Data: make([]byte, size)}}})
	c := kservepb.NewGRPCInferenceServiceClient(s.Dial())
	var senders sync.WaitGroup
	for range 2 { // at a time, because the client needs memory as well
		senders.Go(func() {
			for range 8 {
				if _, err := c.ModelInfer(t.Context(), in, grpc.UseCompressor(gzip.Name)); err == nil {
					t.Error("60 MiB of zeros were accepted")
				}
			}
		})
	}
	return senders.Wait
}
