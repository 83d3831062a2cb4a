package kservegrpc_test

import (
	"bytes"
	"context"
	"math/rand/v2"
	"net"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/shoal-serving/shoal/internal/budget"
	"github.com/shoal-serving/shoal/internal/http2meter"
	"github.com/shoal-serving/shoal/internal/http2meter/http2test"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/kserve/kservegrpc"
	"github.com/shoal-serving/shoal/internal/kserve/kservepb"
	"github.com/shoal-serving/shoal/internal/kserve/kservetest"
)

// TestTheRatioOfACompressedMessageIsLimited sends zeros, which are compressed to a
// thousandth of their size. Up to 1 MiB that is harmless.
func TestTheRatioOfACompressedMessageIsLimited(t *testing.T) {
	_, conn := newServer(t, kservegrpc.Options{})
	client := kservepb.NewGRPCInferenceServiceClient(conn)
	for _, compressor := range []string{gzip.Name, "deflate"} {
		for size, want := range map[int]string{900 << 10: "", 16 << 20: "limit of compression ratio exceeded"} {
			in := bytesInput(size)
			clear(in.RawInputContents[0][4:])
			_, err := client.ModelInfer(t.Context(), in, grpc.UseCompressor(compressor))
			if text := status.Convert(err).Message(); (err == nil) != (want == "") || !strings.Contains(text, want) {
				t.Errorf("%s, %d zeros: %v, want %q", compressor, size, err, want)
			}
		}
	}
}

func TestARequestBeyondTheBudgetIsRejected(t *testing.T) {
	all := budget.New(4 << 20)
	backend, conn := newServer(t, kservegrpc.Options{Budget: all})
	client := kservepb.NewGRPCInferenceServiceClient(conn)
	inside, leave := make(chan int64, 1), make(chan struct{})
	backend.Before = func(context.Context, *infer.Request) error {
		inside <- all.State().Used
		<-leave
		return nil
	}
	first := make(chan error, 1)
	go func() {
		_, err := client.ModelInfer(t.Context(), bytesInput(1000<<10))
		first <- err
	}()
	// It came in many frames, and is now in one buffer.
	if used := <-inside; used < 1<<20 || used > 1050<<10 {
		t.Errorf("a request of 1000 KiB is charged with %d bytes", used)
	}
	// A model gets half of the budget.
	if _, err := client.ModelInfer(t.Context(), bytesInput(1000<<10)); status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "--memory-budget") {
		t.Errorf("the second request: %v, want RESOURCE_EXHAUSTED", err)
	}
	close(leave)
	if err := <-first; err != nil {
		t.Errorf("the request within the budget: %v", err)
	}
	if used := all.State().Used; used != 0 {
		t.Errorf("%d bytes in use after the last answer", used)
	}
}

// newTCPServer returns a server, and a client and the address of it.
func newTCPServer(t *testing.T, opts kservegrpc.Options) (kservepb.GRPCInferenceServiceClient, string) {
	t.Helper()
	backend := kservetest.New(t, kservetest.Recorded...)
	server := kservegrpc.New(backend, backend, backend, opts)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return kservepb.NewGRPCInferenceServiceClient(conn), listener.Addr().String()
}

// rawMessage returns a request with so many bytes as it is sent.
func rawMessage(t *testing.T, size int) []byte {
	t.Helper()
	encoded, err := proto.Marshal(bytesInput(size))
	if err != nil {
		t.Fatal(err)
	}
	return http2test.Message(encoded)
}

func eventually(t *testing.T, what string, yes func() bool) {
	t.Helper()
	for began := time.Now(); !yes(); time.Sleep(5 * time.Millisecond) {
		if time.Since(began) > 20*time.Second {
			t.Fatalf("%s has not come true in 20 s", what)
		}
	}
}

// TestMessagesThatAreNotCompleteAreCharged sends all of a message but its last byte, on many
// streams of one connection. Those that do not fit the budget are refused, and a call on
// another connection is answered.
func TestMessagesThatAreNotCompleteAreCharged(t *testing.T) {
	all := budget.New(16 << 20)
	client, address := newTCPServer(t, kservegrpc.Options{Budget: all})
	c := http2test.Dial(t, address)
	const streams = 32
	message := rawMessage(t, 1<<20)
	for i := range uint32(streams) {
		c.Headers(2*i+1, "ModelInfer")
		c.Data(2*i+1, message[:len(message)-1], false, 10*time.Second)
	}
	eventually(t, "refusals", func() bool { return len(c.Resets()) >= streams/2 })
	for _, code := range c.Resets() {
		if code != http2.ErrCodeEnhanceYourCalm {
			t.Errorf("refused with %v, want ENHANCE_YOUR_CALM", code)
		}
	}
	const calls = streams * 16 << 10
	if got := all.State(); got.Used > got.Total/2+calls || got.Used < got.Total/4 {
		t.Errorf("%d MiB are charged; a connection gets %d MiB, and its calls %d", got.Used>>20, got.Total>>21, calls>>20)
	}
	if _, err := client.ModelInfer(t.Context(), bytesInput(100)); err != nil {
		t.Errorf("another client: %v", err)
	}
	c.Close()
	eventually(t, "all is given back", func() bool { return all.State().Used == 0 })
}

// TestAStalledMessageIsReset sends a part of a message, and nothing after it. The other
// stream of the connection is slow, but gets on, and is answered.
func TestAStalledMessageIsReset(t *testing.T) {
	_, address := newTCPServer(t, kservegrpc.Options{Meter: &http2meter.Meter{Stall: time.Second}})
	c := http2test.Dial(t, address)
	message := rawMessage(t, 2<<20)
	c.Headers(1, "ModelInfer")
	c.Data(1, message[:1000], false, time.Second)
	c.Headers(3, "ModelInfer")
	for part := range slices.Chunk(message, len(message)/15) { // takes three times the timeout
		c.Data(3, part, false, 10*time.Second)
		time.Sleep(200 * time.Millisecond)
	}
	if got := c.Resets(); len(got) != 1 || got[0] != http2.ErrCodeEnhanceYourCalm {
		t.Errorf("streams were reset with %v, want ENHANCE_YOUR_CALM", got)
	}
	c.Data(3, nil, true, time.Second)
	eventually(t, "an answer, which the client does not read", func() bool { return len(c.Resets()) == 2 })
}

// TestACallThatDoesNotEndIsReset sends a whole message, and does not end the call, without which grpc
// does not run it. Its charge is that of the model.
func TestACallThatDoesNotEndIsReset(t *testing.T) {
	for _, method := range []string{"ModelInfer", "RepositoryModelLoad"} {
		all := budget.New(64 << 20)
		_, address := newTCPServer(t, kservegrpc.Options{Budget: all, Meter: &http2meter.Meter{Budget: all, Stall: 500 * time.Millisecond}})
		c := http2test.Dial(t, address)
		c.Headers(1, method)
		c.Data(1, rawMessage(t, 1<<20), false, 10*time.Second)
		eventually(t, "a charge", func() bool { return all.State().Used >= 1<<20 })
		eventually(t, "a reset", func() bool { return len(c.Resets()) == 1 })
		if got := c.Resets()[0]; got != http2.ErrCodeEnhanceYourCalm {
			t.Errorf("%s: reset with %v, want ENHANCE_YOUR_CALM", method, got)
		}
		eventually(t, "the charge is given back", func() bool { return all.State().Used == 0 })
	}
}

// TestAMessageThatIsRefusedIsNotCharged sends messages that are not decoded, in calls that do not end: grpc
// answers only then.
func TestAMessageThatIsRefusedIsNotCharged(t *testing.T) {
	unknown := func(size, count int) []byte {
		one := protowire.AppendBytes(protowire.AppendTag(nil, 99, protowire.BytesType), make([]byte, size))
		return http2test.Message(bytes.Repeat(one, count))
	}
	for _, test := range []struct {
		method  string
		message []byte
	}{
		{"ServerLive", unknown(2<<20, 1)},
		{"ServerLive", unknown(512<<10, 1)}, // another method may have as much
		{"ModelMetadata", unknown(2<<20, 1)},
		{"ModelMetadata", unknown(100, 5000)}, // more fields than parameters are allowed
	} {
		all := budget.New(16 << 20)
		_, address := newTCPServer(t, kservegrpc.Options{Budget: all})
		c := http2test.Dial(t, address)
		c.Headers(1, test.method)
		if !c.Data(1, test.message, false, 10*time.Second) {
			t.Fatal("the message could not be sent")
		}
		eventually(t, "the message is read and not charged", func() bool {
			state := all.State()
			return state.Peak >= 500<<10 && state.Used == 0
		})
		if c.Unanswered() != 1 {
			t.Errorf("%s: the call has ended", test.method)
		}
	}
}

// TestAnAnswerThatIsNotReadIsReset asks for a large answer, and does not let the server send
// more than the first window of it.
func TestAnAnswerThatIsNotReadIsReset(t *testing.T) {
	all := budget.New(64 << 20)
	_, address := newTCPServer(t, kservegrpc.Options{Budget: all, Meter: &http2meter.Meter{Budget: all, Stall: 500 * time.Millisecond}})
	c := http2test.Dial(t, address)
	c.Headers(1, "ModelInfer")
	c.Data(1, rawMessage(t, 2<<20), true, 10*time.Second)
	eventually(t, "a charge for the answer alone", func() bool { return all.State().Used == 2<<20 })
	eventually(t, "a reset", func() bool { return len(c.Resets()) == 1 })
	if got := c.Resets()[0]; got != http2.ErrCodeEnhanceYourCalm {
		t.Errorf("reset with %v, want ENHANCE_YOUR_CALM", got)
	}
	eventually(t, "the charge is given back", func() bool { runtime.GC(); return all.State().Used == 0 })
}

// TestAnAnswerToACompressedRequestIsChargedUntilItIsSent has a client that does not read its answer. grpc
// would hold it compressed, in memory of its own.
func TestAnAnswerToACompressedRequestIsChargedUntilItIsSent(t *testing.T) {
	const size, window = 2 << 20, 65535
	for _, method := range []string{"ModelInfer", "ModelStreamInfer"} {
		all := budget.New(64 << 20)
		client, address := newTCPServer(t, kservegrpc.Options{Budget: all})
		c := http2test.Dial(t, address)
		c.Headers(1, method, [2]string{"grpc-encoding", "gzip"})
		message := rawMessage(t, size)
		_, _ = rand.NewChaCha8([32]byte{}).Read(message[len(message)-size:]) // does not compress
		c.Data(1, message, true, 10*time.Second)
		eventually(t, "the window is full", func() bool { return c.Answer(1) == window })
		for range 10 { // meanwhile grpc would return the memory
			if _, err := client.ModelInfer(t.Context(), bytesInput(100)); err != nil {
				t.Error(err)
			}
		}
		if used := all.State().Used; used < size {
			t.Errorf("%s: %d bytes are charged for an answer of %d that is not sent", method, used, size)
		}
		c.Close()
		eventually(t, "the charge is given back", func() bool { runtime.GC(); return all.State().Used == 0 })
	}
}

// sentEncodings are the encodings of answers.
type sentEncodings struct{ all chan string }

func (sentEncodings) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

func (sentEncodings) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

func (sentEncodings) HandleConn(context.Context, stats.ConnStats) {}

func (e sentEncodings) HandleRPC(_ context.Context, s stats.RPCStats) {
	if h, ok := s.(*stats.OutHeader); ok {
		e.all <- h.Compression
	}
}

func TestSmallAnswersToCompressedRequestsAreCompressed(t *testing.T) {
	sent := sentEncodings{make(chan string, 1)} // so that the server does not wait for the test
	_, conn := newServer(t, kservegrpc.Options{}, grpc.StatsHandler(sent))
	client := kservepb.NewGRPCInferenceServiceClient(conn)
	for _, compressor := range []string{gzip.Name, "deflate"} {
		for size, want := range map[int]string{1000: compressor, 100_000: "identity"} {
			in := bytesInput(size)
			out, err := client.ModelInfer(t.Context(), in, grpc.UseCompressor(compressor))
			if err != nil || !bytes.Equal(out.GetRawOutputContents()[0], in.GetRawInputContents()[0]) {
				t.Fatalf("%s, %d bytes: another answer, %v", compressor, size, err)
			}
			if got := <-sent.all; got != want {
				t.Errorf("the answer of %d bytes to a request in %s is sent in %q, want %q", size, compressor, got, want)
			}
		}
		stream, err := client.ModelStreamInfer(t.Context(), grpc.UseCompressor(compressor))
		if err != nil {
			t.Fatal(err)
		}
		send(t, stream, "a")
		expect(t, stream, "a")
		if got := <-sent.all; got != "identity" {
			t.Errorf("answers on a stream of %s are sent in %q, want identity", compressor, got)
		}
	}
}

// TestDecompressionIsCharged sends a message that is small until it is decompressed.
func TestDecompressionIsCharged(t *testing.T) {
	all := budget.New(8 << 20)
	client, _ := newTCPServer(t, kservegrpc.Options{Budget: all})
	in := bytesInput(5 << 20)
	_, _ = rand.NewChaCha8([32]byte{}).Read(in.RawInputContents[0][:1<<20]) // so that its ratio is allowed
	_, err := client.ModelInfer(t.Context(), in, grpc.UseCompressor(gzip.Name))
	if status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "--memory-budget") {
		t.Errorf("%v, want RESOURCE_EXHAUSTED", err)
	}
	if got := all.State(); got.Used != 0 || got.Peak < 3<<20 || got.Peak > got.Total/2 {
		t.Errorf("%d bytes are charged, and at most %d were", got.Used, got.Peak)
	}
}
