package listen

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/proto"

	"github.com/shoal-serving/shoal/internal/http2meter"
	"github.com/shoal-serving/shoal/internal/http2meter/http2test"
	"github.com/shoal-serving/shoal/internal/identity/identitytest"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/kserve/kservegrpc"
	"github.com/shoal-serving/shoal/internal/kserve/kservepb"
	"github.com/shoal-serving/shoal/internal/kserve/kservetest"
)

// A stoppable is a drainer that closes a channel, and may have requests in flight.
type stoppable struct {
	stop     chan struct{}
	inFlight atomic.Int64
}

func (s *stoppable) Drain()        { close(s.stop) }
func (s *stoppable) InFlight() int { return int(s.inFlight.Load()) }

// openGRPC opens a port of a gRPC server, and returns its address.
func openGRPC(t *testing.T, d Drainer, backend *kservetest.Server, opts kservegrpc.Options) (*Ports, string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := GRPC("", kservegrpc.New(backend, backend, backend, opts), opts.Meter, "")
	port.listen = func() (net.Listener, error) { return listener, nil }
	ports, err := Open(d, []Port{port}, Options{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return ports, listener.Addr().String()
}

// inference returns a request as it is sent.
func inference(t *testing.T) []byte {
	t.Helper()
	encoded, err := proto.Marshal(&kservepb.ModelInferRequest{ModelName: "failing", Inputs: []*kservepb.ModelInferRequest_InferInputTensor{{
		Name: "INPUT", Datatype: "FP32", Shape: []int64{1, 4}, Contents: &kservepb.InferTensorContents{Fp32Contents: []float32{1, 2, 3, 4}},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	return http2test.Message(encoded)
}

// TestAServerDoesNotWaitForUnfinishedCallsForLong has calls without a message, with half of one, and
// with one that may not be the last, while another one runs. One connection has sent half of a frame,
// and another one nothing.
func TestAServerDoesNotWaitForUnfinishedCallsForLong(t *testing.T) {
	backend := kservetest.New(t, kservetest.Recorded...)
	d := &stoppable{stop: make(chan struct{})}
	backend.Stop = d.stop
	running, leave := make(chan struct{}), make(chan struct{})
	backend.Before = func(ctx context.Context, _ *infer.Request) error {
		d.inFlight.Add(1)
		defer d.inFlight.Add(-1)
		close(running)
		<-leave
		return ctx.Err()
	}
	meter := &http2meter.Meter{}
	ports, address := openGRPC(t, d, backend, kservegrpc.Options{Meter: meter})
	silent, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = silent.Close() }()
	message := inference(t)
	half := http2test.Dial(t, address)
	half.Headers(1, "ModelInfer")
	half.Half(1, message)
	c := http2test.Dial(t, address)
	c.Headers(1, "ModelInfer")
	c.Headers(3, "ModelInfer")
	c.Data(3, message[:len(message)-1], false, time.Minute)
	c.Headers(5, "ModelInfer")
	c.Data(5, message, false, time.Minute)
	c.Headers(7, "ModelStreamInfer")
	c.Headers(9, "ServerMetadata")
	c.Headers(11, "ModelInfer")
	c.Data(11, message, true, time.Minute)
	patience := time.NewTimer(15 * time.Second)
	defer patience.Stop()
	select {
	case <-running:
	case <-patience.C:
		t.Fatalf("the call does not run: status %q", c.Status(11))
	}
	began, stopped := time.Now(), make(chan error, 1)
	go func() { stopped <- ports.Stop(time.Minute) }()
	for meter.State().Refused < 4 && time.Since(began) < 10*linger {
		time.Sleep(time.Millisecond)
	}
	close(leave)
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	// grpc waits 5 s for a client that does not answer its ping.
	if took := time.Since(began); took < 2*linger || took > 20*linger {
		t.Errorf("stopped after %v, want some seconds", took)
	}
	for !c.Ended() && time.Since(began) < time.Minute {
		time.Sleep(time.Millisecond)
	}
	// grpc resets the stream after its status, because its client has not finished.
	got := slices.DeleteFunc(c.Resets(), func(code http2.ErrCode) bool { return code == http2.ErrCodeNo })
	refused := http2.ErrCodeRefusedStream
	if want := []http2.ErrCode{refused, refused, refused, refused}; !slices.Equal(got, want) {
		t.Errorf("reset with %v, %+v, want %v for the calls 1, 3, 9, and 5", got, meter.State(), want)
	}
	if running, stream := c.Status(11), c.Status(7); running != "0" || stream != "14" {
		t.Errorf("status %q of the call that ran, %q of the stream, want 0 and 14", running, stream)
	}
}

// TestAnIdleServerDoesNotWaitForClientsForLong has nothing in flight from the start.
func TestAnIdleServerDoesNotWaitForClientsForLong(t *testing.T) {
	cert, err := tls.LoadX509KeyPair(identitytest.NewCA(t).Issue(t, "server"))
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name        string
		credentials credentials.TransportCredentials
		begin       func(t *testing.T, address string)
	}{
		{"a message that may not be the last", nil, func(t *testing.T, address string) {
			c := http2test.Dial(t, address)
			c.Headers(1, "ModelInfer")
			c.Data(1, inference(t), false, time.Minute)
		}},
		{"half of a frame", nil, func(t *testing.T, address string) {
			c := http2test.Dial(t, address)
			c.Headers(1, "ModelInfer")
			c.Half(1, inference(t))
		}},
		{"no handshake", credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{cert}}), func(t *testing.T, address string) {
			c, err := net.Dial("tcp", address)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = c.Close() })
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel() // grpc waits 5 s for a client that does not answer its ping
			backend := kservetest.New(t, kservetest.Recorded...)
			d := &stoppable{stop: make(chan struct{})}
			backend.Stop = d.stop
			ports, address := openGRPC(t, d, backend, kservegrpc.Options{Credentials: test.credentials, Meter: &http2meter.Meter{}})
			test.begin(t, address)
			time.Sleep(linger / 4) // until grpc has read it
			began := time.Now()
			if err := ports.Stop(time.Minute); err != nil {
				t.Error(err)
			}
			if took := time.Since(began); took < linger || took > 20*linger {
				t.Errorf("stopped after %v, want some seconds", took)
			}
		})
	}
}
