//go:build e2e && proofs

package e2e

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/shoal-serving/shoal/internal/bench"
	"github.com/shoal-serving/shoal/internal/kserve/kservepb"
)

// A text recogniser's request and answer: 12.8 KB in, 4 KB out. The model takes no
// time, so that all there is to measure is the way to it and back.
const (
	bytesIn, bytesOut = 12_800, 4096

	swift = `backend: "simulated" max_batch_size: 16
		input { name: "input.1" data_type: TYPE_FP32 dims: [ 1, 32, 100 ] } output { name: "y" data_type: TYPE_FP32 dims: 1024 }
		dynamic_batching { max_queue_delay_microseconds: 0 } instance_group { count: 2 }`
)

// TestProofTheWayCostsLittle compares a server whose model takes no time with one that
// does nothing but answer, in the same protocol and with as many bytes. Both are
// processes of their own; the clients are in that of the test.
func TestProofTheWayCostsLittle(t *testing.T) {
	s := start(t, repositoryOf(t, map[string]string{"swift": swift}))
	bare := startBare(t)
	for _, p := range []struct {
		protocol string
		calls    func(*testing.T, *server) []func() error
	}{{"gRPC", grpcCalls}, {"HTTP", httpCalls}} {
		t.Run(p.protocol, func(t *testing.T) {
			one := choose(3*time.Second, time.Second)
			served, echoed := p.calls(t, s), p.calls(t, bare)
			var more []float64
			hold(t, "throughput, times that of the bare server", choose(0.6, 0.3), 2, func() float64 {
				b, m := drive(t, bare, echoed, one), drive(t, s, served, one)
				more = append(more, (m.cpu-b.cpu).Seconds()*1e6)
				t.Logf("bare %.0f calls a second for %v of CPU each, served %.0f for %v", b.perSecond, b.cpu, m.perSecond, m.cpu)
				return m.perSecond / b.perSecond
			})
			mid, from, to := bench.Median(more)
			t.Logf("the server takes %.1f [%.1f, %.1f] µs of CPU more for each request, want 30 at the most", mid, from, to)
			if *strict && from > 30 {
				t.Errorf("%.1f µs more", mid)
			}
		})
	}
}

// driven is what a closed loop of clients saw.
type driven struct {
	perSecond float64
	cpu       time.Duration // of the server, for each call
}

// drive lets each of the calls be made over and over.
func drive(t *testing.T, s *server, calls []func() error, d time.Duration) driven {
	t.Helper()
	var stop atomic.Bool
	var count atomic.Int64
	var all sync.WaitGroup
	for _, call := range calls {
		all.Go(func() {
			for !stop.Load() {
				if err := call(); err != nil {
					t.Error(err)
					return
				}
				count.Add(1)
			}
		})
	}
	time.Sleep(d / 4) // until all are at it
	cpu, n, began := s.usage().cpu, count.Load(), time.Now()
	time.Sleep(d)
	cpu, n = s.usage().cpu-cpu, count.Load()-n
	took := time.Since(began)
	stop.Store(true)
	all.Wait()
	if n == 0 {
		t.Fatal("nothing was answered")
	}
	return driven{float64(n) / took.Seconds(), cpu / time.Duration(n)}
}

const driving = 64 // clients

func grpcCalls(t *testing.T, s *server) (calls []func() error) {
	var client kservepb.GRPCInferenceServiceClient
	for n := range driving {
		if n%6 == 0 { // as many share a connection as with Triton's own clients
			conn, err := grpc.NewClient(s.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = conn.Close() })
			client = kservepb.NewGRPCInferenceServiceClient(conn)
		}
		mine, req := client, seedRequest("swift", 1)
		calls = append(calls, func() error {
			resp, err := mine.ModelInfer(context.Background(), req)
			if err == nil && len(resp.GetRawOutputContents()[0]) != bytesOut {
				err = fmt.Errorf("answered with %d bytes", len(resp.GetRawOutputContents()[0]))
			}
			return err
		})
	}
	return calls
}

func httpCalls(t *testing.T, s *server) (calls []func() error) {
	const header = `{"inputs":[{"name":"input.1","datatype":"FP32","shape":[1,1,32,100],"parameters":{"binary_data_size":12800}}],"parameters":{"binary_data_output":true}}`
	body := append([]byte(header), make([]byte, bytesIn)...)
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: driving, DisableCompression: true}}
	t.Cleanup(client.CloseIdleConnections)
	for range driving {
		answer := new(bytes.Buffer)
		calls = append(calls, func() error {
			req, err := http.NewRequestWithContext(context.Background(), http.MethodPost, s.http+"/v2/models/swift/infer", bytes.NewReader(body))
			if err != nil {
				return err
			}
			req.Header.Set("Inference-Header-Content-Length", strconv.Itoa(len(header)))
			resp, err := client.Do(req)
			if err != nil {
				return err
			}
			answer.Reset()
			_, err = answer.ReadFrom(resp.Body)
			if resp.StatusCode != http.StatusOK || answer.Len() < bytesOut {
				err = errors.Join(err, fmt.Errorf("answered with %d, %d bytes", resp.StatusCode, answer.Len()))
			}
			return errors.Join(err, resp.Body.Close())
		})
	}
	return calls
}

// bareEnv makes the program of the test the bare server.
const bareEnv = "SHOAL_E2E_BARE"

// startBare runs the bare server.
func startBare(t *testing.T) *server {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestTheBareServer$")
	cmd.Env = append(os.Environ(), bareEnv+"=1")
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	addresses := strings.Fields(line)
	if err != nil || len(addresses) != 2 {
		t.Fatalf("the bare server says %q: %v", line, err)
	}
	return &server{t: t, cmd: cmd, grpc: addresses[0], http: "http://" + addresses[1]}
}

// TestTheBareServer is the bare server, if it is run as such.
func TestTheBareServer(t *testing.T) {
	if os.Getenv(bareEnv) == "" {
		t.Skip("It is only run by other tests.")
	}
	grpcListener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	httpListener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, _ = fmt.Fprintln(os.Stdout, grpcListener.Addr(), httpListener.Addr()) // whoever started it reads that
	s := grpc.NewServer()
	kservepb.RegisterGRPCInferenceServiceServer(s, bareServer{})
	go func() { _ = s.Serve(grpcListener) }() // until the process is ended
	_ = http.Serve(httpListener, http.HandlerFunc(bareHTTP))
}

type bareServer struct {
	kservepb.UnimplementedGRPCInferenceServiceServer
}

var bareAnswer = make([]byte, bytesOut)

func (bareServer) ModelInfer(context.Context, *kservepb.ModelInferRequest) (*kservepb.ModelInferResponse, error) {
	return &kservepb.ModelInferResponse{
		ModelName: "swift", ModelVersion: "1", RawOutputContents: [][]byte{bareAnswer},
		Outputs: []*kservepb.ModelInferResponse_InferOutputTensor{{Name: "y", Datatype: "FP32", Shape: []int64{1, 1024}}},
	}, nil
}

var bareBodies = sync.Pool{New: func() any { return new([16 << 10]byte) }}

func bareHTTP(w http.ResponseWriter, r *http.Request) {
	body := bareBodies.Get().(*[16 << 10]byte)
	defer bareBodies.Put(body)
	if _, err := io.ReadFull(r.Body, body[:r.ContentLength]); err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Length", strconv.Itoa(bytesOut))
	_, _ = w.Write(bareAnswer)
}
