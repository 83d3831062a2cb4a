//go:build e2e

package proofs

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/shoal-serving/shoal/internal/buf"
	"github.com/shoal-serving/shoal/internal/kserve/kservepb"
	"github.com/shoal-serving/shoal/tensor"
	"github.com/shoal-serving/shoal/test/servertest"
)

// An echo is a process that does nothing but answer: what a request costs before a
// server does anything with it. It puts the body into one piece of pooled memory, as
// an engine needs it, and answers with bytes that are ready.
//
// Over gRPC it has the options of kservegrpc, and a codec that reads no field.

// TestARequestCostsLittleMoreThanAnEcho compares the CPU time of the server, whose model
// takes none, with that of the echo. Time that others take from them does not count,
// so that it holds on a busy machine, with room for what that does to caches.
func TestARequestCostsLittleMoreThanAnEcho(t *testing.T) {
	const d = 300 * time.Millisecond
	s := servertest.Start(t, servertest.Repository(t, instants))
	echo, _, _ := startEcho(t)
	for _, p := range []struct {
		protocol, model string
		in              []tensor.Tensor
		most            float64 // times the echo
	}{
		{"gRPC", "small", rowOf(1, 32, 100), 2.2},
		{"HTTP", "small", rowOf(1, 32, 100), 2.2},
		{"gRPC", "large", rowOf(3, 224, 224), 1.8},
		{"HTTP", "large", rowOf(3, 224, 224), 1.9},
	} {
		echoed, served := askOver(t, p.protocol, echo.At(p.protocol), p.model, p.in), askOver(t, p.protocol, s.At(p.protocol), p.model, p.in)
		servertest.Hold(t, p.protocol+", "+p.model+": CPU for a request, times the echo's", 0, p.most, func() float64 {
			b, m := pullAt(t, echo, echoed, 16, d), pullAt(t, s, served, 16, d)
			t.Logf("the echo takes %.1f µs for a request, the server %.1f", b.cpu, m.cpu)
			return m.cpu / b.cpu
		})
	}
	small := askOver(t, "HTTP", s.HTTP, "small", rowOf(1, 32, 100))
	servertest.Hold(t, "garbage collection, share of the CPU", 0, 0.05, func() float64 {
		before := goCPUOf(s)
		after := before
		for tries := 0; after == before && tries < 10; tries++ { // until there was a collection
			pullAt(t, s, small, 16, 2*d)
			after = goCPUOf(s)
		}
		return after.since(before)
	})
}

// echoEnv makes the program of the test the echo.
const echoEnv = "SHOAL_E2E_ECHO"

// bytesOut is how long the output of an answer is: 4 KB, as a text recogniser's.
const bytesOut = 4096

// startEcho runs the echo. It is a server that has no metrics, and two more addresses.
func startEcho(t *testing.T) (echo *servertest.Server, lean, handing string) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), echoEnv+"=1")
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { servertest.Kill(cmd) })
	line, err := bufio.NewReader(out).ReadString('\n')
	at := strings.Fields(line)
	if err != nil || len(at) != 4 {
		t.Fatalf("the echo says %q: %v", line, err)
	}
	return &servertest.Server{T: t, Cmd: cmd, GRPC: at[0], HTTP: "http://" + at[1]}, at[2], at[3]
}

// TestMain runs the tests, or the echo if the program is run as such.
func TestMain(m *testing.M) {
	if os.Getenv(echoEnv) == "" {
		m.Run() // whose status the program exits with
		return
	}
	if err := runEcho(); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, err)
	}
}

// runEcho serves until the process is ended, and returns why it cannot.
func runEcho() error {
	answer, err := proto.Marshal(&kservepb.ModelInferResponse{
		ModelName: "small", ModelVersion: "1", RawOutputContents: [][]byte{make([]byte, bytesOut)},
		Outputs: []*kservepb.ModelInferResponse_InferOutputTensor{{Name: "y", Datatype: "FP32", Shape: []int64{1, bytesOut / 4}}},
	})
	if err != nil {
		return err
	}
	var listeners []net.Listener
	for range 4 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		listeners = append(listeners, l)
	}
	s := grpc.NewServer(grpc.NumStreamWorkers(64), grpc.ReadBufferSize(128<<10), grpc.MaxRecvMsgSize(64<<20), grpc.ForceServerCodecV2(echoCodec{answer}))
	s.RegisterService(&grpc.ServiceDesc{
		ServiceName: kservepb.GRPCInferenceService_ServiceDesc.ServiceName, HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{{MethodName: "ModelInfer", Handler: echoInfer}},
	}, nil)
	// All of them until the process is ended.
	go func() { _ = s.Serve(listeners[0]) }()
	go func() { _ = http.Serve(listeners[1], http.HandlerFunc(echoHTTP)) }()
	go serveLean(listeners[2], answer, false)
	go serveLean(listeners[3], answer, true)
	for _, l := range listeners {
		_, _ = fmt.Fprint(os.Stdout, l.Addr(), " ") // whoever started it reads that
	}
	_, _ = fmt.Fprintln(os.Stdout)
	select {}
}

var echoInfer grpc.MethodHandler = func(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
	return struct{}{}, decode(nil) // no answer at all would be written without the codec
}

type echoCodec struct{ answer []byte }

func (echoCodec) Name() string { return "proto" }

func (echoCodec) Unmarshal(data mem.BufferSlice, _ any) error {
	data.MaterializeToBuffer(mem.DefaultBufferPool()).Free()
	return nil
}

func (c echoCodec) Marshal(any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(c.answer)}, nil
}

var echoed = make([]byte, bytesOut)

func echoHTTP(w http.ResponseWriter, r *http.Request) {
	body := buf.Get(int(r.ContentLength))
	defer body.Release()
	if _, err := io.ReadFull(r.Body, body.B); err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Length", strconv.Itoa(bytesOut))
	_, _ = w.Write(echoed)
}
