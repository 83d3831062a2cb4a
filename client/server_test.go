package client_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	"github.com/shoal-serving/shoal/client"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/kserve/kservegrpc"
	"github.com/shoal-serving/shoal/internal/kserve/kservehttp"
	"github.com/shoal-serving/shoal/internal/kserve/kservetest"
	"github.com/shoal-serving/shoal/internal/leak"
	"github.com/shoal-serving/shoal/tensor"
)

func TestMain(m *testing.M) { leak.Main(m) }

// newBackend returns a server that answers requests with their inputs.
func newBackend(t testing.TB) *kservetest.Server {
	s := kservetest.New(t, kservetest.Recorded...)
	s.Entries, s.Stats = kservetest.RecordedIndex, kservetest.RecordedStatistics
	return s
}

// listen serves a backend over both protocols, at listeners of the test.
func listen(t testing.TB, s *kservetest.Server, overHTTP, overGRPC net.Listener) {
	t.Helper()
	web := &http.Server{Handler: kservehttp.New(s, s, s, kservehttp.Options{Version: "1.2.3"})}
	rpc := kservegrpc.New(s, s, s, kservegrpc.Options{Version: "1.2.3"})
	served := make(chan error, 2) // one for each
	go func() { served <- web.Serve(overHTTP) }()
	go func() { served <- rpc.Serve(overGRPC) }()
	t.Cleanup(func() {
		if err := web.Close(); err != nil {
			t.Error(err)
		}
		rpc.Stop()
		for range 2 {
			// A server that is stopped before it has begun to serve reports that.
			if err := <-served; err != nil && !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, grpc.ErrServerStopped) {
				t.Error(err)
			}
		}
	})
}

// connectTCP returns a client of each kind of a backend, over TCP.
func connectTCP(t testing.TB, s *kservetest.Server) map[string]*client.Client {
	t.Helper()
	var listeners [2]net.Listener
	for i := range listeners {
		var err error
		if listeners[i], err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
	}
	listen(t, s, listeners[0], listeners[1])
	return clientsOf(t, "http://"+listeners[0].Addr().String(), listeners[1].Addr().String(), client.Options{}, client.Options{})
}

// A pipeListener accepts connections in memory. Those of bufconn can time out after their deadline
// was taken back, which a server does between two requests over HTTP.
type pipeListener struct {
	accepted chan net.Conn
	closed   context.Context //nolint:containedctx // ends when the listener is closed
	close    context.CancelFunc
}

func newPipeListener() *pipeListener {
	l := &pipeListener{accepted: make(chan net.Conn)}
	l.closed, l.close = context.WithCancel(context.Background())
	return l
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.accepted:
		return c, nil
	case <-l.closed.Done():
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) DialContext(ctx context.Context) (net.Conn, error) {
	near, far := net.Pipe()
	select {
	case l.accepted <- far:
		return near, nil
	case <-l.closed.Done():
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (l *pipeListener) Close() error {
	l.close()
	return nil
}

func (*pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "pipe"} }

// connect returns a client of each kind of a backend, over connections in memory.
func connect(t testing.TB, s *kservetest.Server, opts client.Options) map[string]*client.Client {
	t.Helper()
	overHTTP, overGRPC := newPipeListener(), bufconn.Listen(1<<20)
	listen(t, s, overHTTP, overGRPC)
	dial := func(to func(context.Context) (net.Conn, error)) client.Options {
		opts := opts
		opts.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) { return to(ctx) }
		return opts
	}
	return clientsOf(t, "http://127.0.0.1:1", "127.0.0.1:1", dial(overHTTP.DialContext), dial(overGRPC.DialContext))
}

// clientsOf returns a client of each kind, which are closed at the end of the test.
func clientsOf(t testing.TB, url, target string, httpOptions, grpcOptions client.Options) map[string]*client.Client {
	t.Helper()
	web, err := client.NewHTTP(url, httpOptions)
	if err != nil {
		t.Fatal(err)
	}
	rpc, err := client.NewGRPC(target, grpcOptions)
	if err != nil {
		t.Fatal(err)
	}
	clients := map[string]*client.Client{"HTTP": web, "gRPC": rpc}
	t.Cleanup(func() {
		for _, c := range clients {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	return clients
}

// overBoth runs a test with a client of each kind, each of a backend of its own.
func overBoth(t *testing.T, opts client.Options, test func(t *testing.T, s *kservetest.Server, c *client.Client)) {
	t.Helper()
	for _, protocol := range []string{"HTTP", "gRPC"} {
		t.Run(protocol, func(t *testing.T) {
			s := newBackend(t)
			test(t, s, connect(t, s, opts)[protocol])
		})
	}
}

// identity returns a request to the model of that name, for one row.
func identity() *client.Request {
	return &client.Request{Model: "identity", Inputs: []client.Tensor{client.NewTensor("INPUT", make([]float32, 16), 1, 16)}}
}

// A counter answers a request with the numbers below its one, and with a last response
// that is empty.
type counter struct{ next, end int32 }

// newCounter is for [kservetest.Server.Stream].
func newCounter(req *infer.Request) infer.ResponseStream {
	if req.Model != "repeat" {
		return nil
	}
	n, err := client.Values[int32](&req.Inputs[0])
	if err != nil {
		panic(err)
	}
	return &counter{end: n[0]}
}

// Next implements [infer.ResponseStream].
func (c *counter) Next(_ context.Context, resp *infer.Response) error {
	resp.Version = "1"
	if c.next == c.end {
		resp.Last, resp.Empty = true, true
		return nil
	}
	resp.Outputs = append(resp.Outputs, tensor.Tensor{Name: "INDEX", Type: tensor.Int32, Shape: []int64{1}, Data: tensor.Data([]int32{c.next})})
	c.next++
	if c.next == 13 {
		return infer.Errorf(infer.Invalid, "there is no number 12")
	}
	return nil
}

// Close implements [infer.ResponseStream].
func (c *counter) Close() {}

// An exampleServer is a server for an example, which has no test.
type exampleServer struct {
	testing.TB

	URL, Target string
	stop        func()
}

// startServer serves models at free ports: "identity" returns its input INPUT as OUTPUT.
func startServer() *exampleServer { return startServerWith(func(*kservetest.Server) {}) }

// startDecoupledServer serves a model that answers any number of times: "repeat" returns
// as many numbers as its input COUNT says.
func startDecoupledServer() *exampleServer {
	return startServerWith(func(s *kservetest.Server) { s.Stream = newCounter })
}

// startBusyServer serves models whose queues are full.
func startBusyServer() *exampleServer {
	return startServerWith(func(s *kservetest.Server) {
		s.Before = func(context.Context, *infer.Request) error {
			return &infer.Error{Code: infer.Overloaded, Text: "Exceeds maximum queue size", RetryAfter: 2 * time.Second}
		}
	})
}

func startServerWith(change func(*kservetest.Server)) *exampleServer {
	s := &exampleServer{}
	backend := newBackend(s)
	change(backend)
	overHTTP, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	overGRPC, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	s.URL, s.Target = "http://"+overHTTP.Addr().String(), overGRPC.Addr().String()
	listen(s, backend, overHTTP, overGRPC)
	return s
}

func (s *exampleServer) Helper()           {}
func (s *exampleServer) Cleanup(f func())  { s.stop = f }
func (s *exampleServer) Error(args ...any) { panic(fmt.Sprint(args...)) }
func (s *exampleServer) Fatal(args ...any) { panic(fmt.Sprint(args...)) }
func (s *exampleServer) Close()            { s.stop() }
