package kservegrpc_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/shoal-serving/shoal/internal/access"
	"github.com/shoal-serving/shoal/internal/budget"
	"github.com/shoal-serving/shoal/internal/buf"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/kserve"
	"github.com/shoal-serving/shoal/internal/kserve/kservegrpc"
	"github.com/shoal-serving/shoal/internal/kserve/kservepb"
	"github.com/shoal-serving/shoal/internal/kserve/kservetest"
)

type streamClient = grpc.BidiStreamingClient[kservepb.ModelInferRequest, kservepb.ModelStreamInferResponse]

func openStream(ctx context.Context, t *testing.T, conn *grpc.ClientConn) streamClient {
	t.Helper()
	stream, err := kservepb.NewGRPCInferenceServiceClient(conn).ModelStreamInfer(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return stream
}

func send(t *testing.T, stream streamClient, ids ...string) {
	t.Helper()
	for _, id := range ids {
		in := request()
		in.Id = id
		if err := stream.Send(in); err != nil {
			t.Fatal(err)
		}
	}
}

// expect reads responses: an id, followed by a word if it failed.
func expect(t *testing.T, stream streamClient, want ...string) {
	t.Helper()
	for _, want := range want {
		out, err := stream.Recv()
		if err != nil {
			t.Fatalf("%v, want %s", err, want)
		}
		id, failed, _ := strings.Cut(want, " ")
		if out.GetInferResponse().GetId() != id || !strings.Contains(out.GetErrorMessage(), failed) || failed == "" && out.GetErrorMessage() != "" {
			t.Errorf("answer %v, want %s", out, want)
		}
	}
}

func expectEnd(t *testing.T, stream streamClient, want codes.Code) {
	t.Helper()
	out, err := stream.Recv()
	if errors.Is(err, io.EOF) {
		err = nil
	}
	if status.Code(err) != want {
		t.Errorf("%v, %v, want the end with %v", out, err, want)
	}
}

func TestRequestsOfAStreamRunAtOnceAndAreAnsweredInOrder(t *testing.T) {
	backend, conn := newServer(t, kservegrpc.Options{})
	last := make(chan struct{})
	backend.Before = func(_ context.Context, req *infer.Request) error {
		if req.ID == "c" {
			close(last)
		}
		<-last // all wait for the last one
		return nil
	}
	stream := openStream(t.Context(), t, conn)
	send(t, stream, "a", "b", "c")
	if err := stream.CloseSend(); err != nil { // they still get their responses
		t.Fatal(err)
	}
	expect(t, stream, "a", "b", "c")
	expectEnd(t, stream, codes.OK)
}

// Requests of a model that is being loaded must not hold up sequences of another one.
func TestSequencesOfOneModelDoNotWaitForThoseOfAnother(t *testing.T) {
	backend, conn := newServer(t, kservegrpc.Options{})
	loaded := make(chan struct{})
	backend.Before = func(_ context.Context, req *infer.Request) error {
		if req.ID == "cold" {
			req.Waiter.AwaitsModel()
			<-loaded
		}
		return nil // without a call of Queued
	}
	stream := openStream(t.Context(), t, conn)
	cold, warm := request(), bytesInput(10) // of two models
	cold.Id, warm.Id = "cold", "warm"
	sendOfSequence(t, stream, cold, cold, cold, warm) // the second of cold waits behind the first
	expect(t, stream, "warm")
	close(loaded)
	expect(t, stream, "cold", "cold", "cold")
}

func TestRequestsOfASequenceAreAnsweredInOrder(t *testing.T) {
	backend, conn := newServer(t, kservegrpc.Options{})
	otherRan := make(chan struct{})
	backend.Before = func(_ context.Context, req *infer.Request) error {
		if req.ID == "other" {
			otherRan <- struct{}{}
		} else {
			<-otherRan
		}
		return nil
	}
	stream := openStream(t.Context(), t, conn)
	first := request()
	first.Id = "sequence"
	for range 50 { // the turn of each first one has come, and its predecessor has been answered
		sendOfSequence(t, stream, first)
		send(t, stream, "other")
		expect(t, stream, "sequence", "other")
	}
}

func sendOfSequence(t *testing.T, stream streamClient, all ...*kservepb.ModelInferRequest) {
	t.Helper()
	for _, in := range all {
		in.Parameters = map[string]*kservepb.InferParameter{"sequence_id": {ParameterChoice: &kservepb.InferParameter_Int64Param{Int64Param: 7}}}
		if err := stream.Send(in); err != nil {
			t.Fatal(err)
		}
	}
}

// Requests are charged only while they are in flight. An idle stream used to keep the names of up to 255
// models, each of 64 KiB.
func TestAStreamForgetsTheModelsOfItsSequences(t *testing.T) {
	_, conn := newServer(t, kservegrpc.Options{})
	stream := openStream(t.Context(), t, conn)
	call := func(i int) {
		in := request()
		in.ModelName = fmt.Sprintf("%d%064000d", i, 0)
		sendOfSequence(t, stream, in)
		expect(t, stream, " unknown model")
	}
	held := func() uint64 {
		runtime.GC() // twice, for what is in pools
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	call(0)
	before := held()
	for i := range 250 {
		call(i)
	}
	if after := held(); after > before+4<<20 {
		t.Errorf("an idle stream holds %d KiB", (after-before)>>10)
	}
}

// holdRequests lets each request wait for an element of proceed, or until it is closed, and counts those
// that have begun.
func holdRequests(backend *kservetest.Server) (running *atomic.Int32, proceed chan struct{}) {
	running, proceed = new(atomic.Int32), make(chan struct{})
	backend.Before = func(context.Context, *infer.Request) error {
		running.Add(1)
		<-proceed
		return nil
	}
	return running, proceed
}

func TestAStreamReceivesNoMoreThanItHasRoomFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		backend, conn := newServer(t, kservegrpc.Options{})
		const room, more = 256, 20
		running, proceed := holdRequests(backend)
		stream := openStream(t.Context(), t, conn)
		ids := make([]string, room+more)
		for i := range ids {
			ids[i] = fmt.Sprint(i)
		}
		send(t, stream, ids...)
		synctest.Wait()
		if n := running.Load(); n != room {
			t.Errorf("%d requests run, want %d", n, room)
		}
		proceed <- struct{}{} // not necessarily the first one
		synctest.Wait()
		if n := running.Load(); n > room+1 {
			t.Errorf("%d requests have run although at most one is answered", n)
		}
		close(proceed)
		expect(t, stream, ids...)
		if err := stream.CloseSend(); err != nil {
			t.Error(err)
		}
		expectEnd(t, stream, codes.OK)
	})
}

// A request in flight takes a goroutine, whatever the size of its message.
func TestRequestsInFlightOfAStreamAreCharged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const worker = 8 << 10
		all := budget.New(2 * 3 * worker) // calls get half
		backend, conn := newServer(t, kservegrpc.Options{Budget: all})
		running, proceed := holdRequests(backend)
		stream := openStream(t.Context(), t, conn)
		ids := []string{"a", "b", "c", "d", "e", "f", "g", "h"}
		send(t, stream, ids...)
		synctest.Wait()
		if n := running.Load(); n != 1+3 {
			t.Errorf("%d requests run, want one, and three for which the budget has room", n)
		}
		close(proceed)
		expect(t, stream, ids...)
		if err := stream.CloseSend(); err != nil {
			t.Error(err)
		}
		expectEnd(t, stream, codes.OK)
		synctest.Wait()
		if used := all.State().Used; used != 0 {
			t.Errorf("%d bytes are charged after the end", used)
		}
	})
}

// Each worker has a stack. A client could leave many streams open on which many requests ran once.
func TestAStreamKeepsFewWorkers(t *testing.T) {
	backend, conn := newServer(t, kservegrpc.Options{})
	stream := openStream(t.Context(), t, conn)
	ids := make([]string, 100)
	for i := range ids {
		ids[i] = fmt.Sprint(i)
	}
	for range 3 { // a stream whose workers have ended starts others
		var running sync.WaitGroup
		running.Add(len(ids))
		backend.Before = func(context.Context, *infer.Request) error {
			running.Done()
			running.Wait() // for all of them
			return nil
		}
		send(t, stream, ids...)
		expect(t, stream, ids...)
		const most = 1 + 4 // one receives
		for began := time.Now(); waitingWorkers() > most; time.Sleep(time.Millisecond) {
			if time.Since(began) > time.Minute {
				t.Fatalf("%d workers wait for requests, want %d", waitingWorkers(), most)
			}
		}
		if waitingWorkers() == 0 {
			t.Fatal("no worker is found among the goroutines, although one always receives")
		}
	}
	if err := stream.CloseSend(); err != nil {
		t.Error(err)
	}
	expectEnd(t, stream, codes.OK)
}

// waitingWorkers returns the number of workers of streams that wait to receive, or receive.
func waitingWorkers() int {
	stacks := make([]byte, 4<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	return bytes.Count(stacks, []byte("kservegrpc.(*stream).receive("))
}

func TestAClientThatLeavesAStreamCancelsAllOfIt(t *testing.T) {
	backend, conn := newServer(t, kservegrpc.Options{})
	arrived, left := make(chan struct{}, 5), make(chan error, 5) // one for each, so that none waits for the test
	backend.Before = func(ctx context.Context, _ *infer.Request) error {
		arrived <- struct{}{}
		<-ctx.Done()
		left <- ctx.Err()
		return ctx.Err()
	}
	ctx, leave := context.WithCancel(t.Context())
	stream := openStream(ctx, t, conn)
	send(t, stream, "a", "b", "c", "d", "e")
	for range cap(arrived) {
		<-arrived
	}
	leave()
	for range cap(left) {
		if err := <-left; err == nil {
			t.Error("a request went on")
		}
	}
	expectEnd(t, stream, codes.Canceled)
}

func TestAPanicCostsOneRequestOfAStream(t *testing.T) {
	var log bytes.Buffer
	backend, conn := newServer(t, kservegrpc.Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
	backend.Before = func(_ context.Context, req *infer.Request) error {
		if req.ID == "b" {
			panic("a bug")
		}
		return nil
	}
	stream := openStream(t.Context(), t, conn)
	send(t, stream, "a", "b", "c")
	expect(t, stream, "a", "b internal error", "c")
	if !strings.Contains(log.String(), "a bug") || !strings.Contains(log.String(), "stream_test.go") {
		t.Errorf("the log does not say what happened and where: %s", log.String())
	}
}

// renewed is a stream whose requests determine their caller again.
type renewed struct {
	grpc.ServerStream
	renew func() (*access.Caller, error)
}

func (r renewed) Context() context.Context {
	return access.WithRenewal(r.ServerStream.Context(), r.renew)
}

func TestAStreamDoesNotOutliveItsCredentials(t *testing.T) {
	var revoked atomic.Bool
	_, conn := newServer(t, kservegrpc.Options{}, grpc.ChainStreamInterceptor(func(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
		return next(srv, renewed{stream, func() (*access.Caller, error) {
			if revoked.Load() {
				return nil, access.ErrUnauthenticated
			}
			return access.Self, nil
		}})
	}))
	stream := openStream(t.Context(), t, conn)
	send(t, stream, "a")
	expect(t, stream, "a")
	revoked.Store(true)
	send(t, stream, "b")
	expect(t, stream, "b authentication is required")
}

func TestLimitsHoldOnAStream(t *testing.T) {
	_, conn := newServer(t, kservegrpc.Options{Limits: kserve.Limits{Text: 32, Body: 1000}})
	stream := openStream(t.Context(), t, conn)
	for _, id := range []string{strings.Repeat("i", 32), strings.Repeat("i", 33)} {
		in := request()
		in.Id = id
		if err := stream.Send(in); err != nil {
			t.Fatal(err)
		}
	}
	unknown := request()
	unknown.ModelName = "../etc"
	if err := stream.Send(unknown); err != nil {
		t.Fatal(err)
	}
	send(t, stream, "last")
	expect(t, stream, strings.Repeat("i", 32), " limit of bytes of a text exceeded: found at least 33", " unknown model", "last")
	if err := stream.Send(bytesInput(1000)); err != nil {
		t.Fatal(err)
	}
	expectEnd(t, stream, codes.ResourceExhausted) // which is grpc's
}

func TestAStreamIsTheSameClientAsItsConnection(t *testing.T) {
	backend, conn := newServer(t, kservegrpc.Options{})
	clients := make(chan uint64, 2) // one for each request
	backend.Before = func(_ context.Context, req *infer.Request) error {
		clients <- req.Client
		return nil
	}
	stream := openStream(t.Context(), t, conn)
	send(t, stream, "a")
	expect(t, stream, "a")
	if _, err := kservepb.NewGRPCInferenceServiceClient(conn).ModelInfer(t.Context(), request()); err != nil {
		t.Error(err)
	}
	if a, b := <-clients, <-clients; a != b || a == 0 {
		t.Errorf("clients %d and %d", a, b)
	}
}

// Three requests in a row, of which the second fails, from a client that wants the error
// to end the stream: this exchange crashes Triton 2.51 after a few tries.
func TestAnErrorBetweenTwoAnswersEndsTheStreamAndNoMore(t *testing.T) {
	backend, conn := newServer(t, kservegrpc.Options{})
	backend.Before = kservetest.RecordedFailure
	negative := request()
	negative.Id = "e"
	binary.LittleEndian.PutUint32(negative.RawInputContents[0], math.Float32bits(-1))
	ctx := metadata.AppendToOutgoingContext(t.Context(), "triton_grpc_error", "true")
	var clients sync.WaitGroup
	for range 4 {
		clients.Go(func() {
			for range 100 {
				stream, err := kservepb.NewGRPCInferenceServiceClient(conn).ModelStreamInfer(ctx)
				if err != nil {
					t.Error(err)
					return
				}
				for _, in := range []*message{request(), negative, request()} {
					// The stream may have ended already; the received error says why.
					if err := stream.Send(in); err != nil && !errors.Is(err, io.EOF) {
						t.Error(err)
					}
				}
				out, err := stream.Recv()
				if err != nil || out.GetErrorMessage() != "" {
					t.Errorf("the first: %v, %v", out, err)
				}
				_, err = stream.Recv()
				if status.Code(err) != codes.Internal || status.Convert(err).Message() != "negative input: -1" {
					t.Errorf("the second: %v", err)
				}
			}
		})
	}
	clients.Wait()
	if _, err := kservepb.NewGRPCInferenceServiceClient(conn).ModelInfer(t.Context(), request()); err != nil {
		t.Errorf("after it: %v", err)
	}
	awaitBuffers(t)
}

// A stream whose request runs gets its header at once: the meter of the connection takes one without
// a header for a call that does not run.
func TestAServerThatStopsEndsItsStreamsAfterTheirAnswers(t *testing.T) {
	backend, conn := newServer(t, kservegrpc.Options{})
	backend.Stop = make(chan struct{})
	arrived, proceed := make(chan struct{}), make(chan struct{})
	backend.Before = func(context.Context, *infer.Request) error {
		close(arrived)
		<-proceed
		return nil
	}
	silent, busy := openStream(t.Context(), t, conn), openStream(t.Context(), t, conn)
	send(t, busy, "a")
	<-arrived
	close(backend.Stop)
	expectEnd(t, silent, codes.Unavailable)
	if header, err := silent.Header(); err != nil || header != nil { // clients ask elsewhere then
		t.Errorf("the header of an idle stream is %v, %v, want none", header, err)
	}
	if header, err := busy.Header(); err != nil || len(header["content-type"]) != 1 { // it waits for it
		t.Errorf("the header of a stream whose request runs is %v, %v", header, err)
	}
	close(proceed)
	expect(t, busy, "a")
	expectEnd(t, busy, codes.Unavailable)
}

// The meter resets calls of other methods whose client sends a message, and not the end of the call.
func TestAStreamWaitsForItsModelAsLongAsItTakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		backend, conn := newServer(t, kservegrpc.Options{})
		backend.Before = func(context.Context, *infer.Request) error {
			time.Sleep(time.Hour)
			return nil
		}
		stream := openStream(t.Context(), t, conn)
		time.Sleep(time.Hour) // without a request
		send(t, stream, "a")
		expect(t, stream, "a")
		if err := stream.CloseSend(); err != nil {
			t.Error(err)
		}
		expectEnd(t, stream, codes.OK)
	})
}

// If a client reads nothing, its stream ends when the client does, whatever is buffered.
func TestAnswersThatNobodyReadsAreGivenBack(t *testing.T) {
	backend, conn := newServer(t, kservegrpc.Options{})
	ran := make(chan struct{}, 20) // one for each request
	backend.Before = func(context.Context, *infer.Request) error {
		ran <- struct{}{}
		return nil
	}
	stream := openStream(t.Context(), t, conn)
	for range cap(ran) {
		if err := stream.Send(bytesInput(200_000)); err != nil { // more than fits into all buffers
			t.Fatal(err)
		}
	}
	for range cap(ran) {
		<-ran
	}
	if buf.Live() == 0 {
		t.Error("nothing is held, so that nothing is tested")
	}
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
	awaitBuffers(t)
}

// A teller returns a response for each word, and an error for "bad"; the last word is
// final. It waits for permission before each.
type teller struct {
	words  []string
	may    chan struct{}
	closed chan struct{}
}

func (m *teller) Next(ctx context.Context, resp *infer.Response) error {
	select {
	case <-m.may:
	case <-ctx.Done():
		resp.Last = true
		return ctx.Err()
	}
	word := m.words[0]
	m.words = m.words[1:]
	resp.Last, resp.Empty, resp.Version = len(m.words) == 0, word == "bare", "1"
	resp.Parameters = []infer.Parameter{{Name: "word", Value: word}}
	if word == "bad" {
		return infer.Errorf(infer.Invalid, "a bad word")
	}
	return nil
}

func (m *teller) Close() { close(m.closed) }

// hear describes a response: its id, its word or error, and whether it is final.
func hear(t *testing.T, stream streamClient) string {
	t.Helper()
	out, err := stream.Recv()
	if err != nil {
		return status.Code(err).String()
	}
	in := out.GetInferResponse()
	return fmt.Sprint(in.GetId(), " ", in.GetModelVersion(), in.GetParameters()["word"].GetStringParam(), out.GetErrorMessage(), " ", in.GetParameters()["triton_final_response"].GetBoolParam())
}

func TestAModelThatAnswersAsOftenAsItLikesIsHeardWhenItDoes(t *testing.T) {
	backend, conn := newServer(t, kservegrpc.Options{})
	many := &teller{words: []string{"one", "bad", "two", "bare"}, may: make(chan struct{}), closed: make(chan struct{})}
	backend.Stream = func(req *infer.Request) infer.ResponseStream {
		if req.ID == "plain" {
			return nil
		}
		return many
	}
	stream := openStream(t.Context(), t, conn)
	in := request()
	in.Id = "many"
	in.Parameters = map[string]*kservepb.InferParameter{
		"triton_enable_empty_final_response": {ParameterChoice: &kservepb.InferParameter_BoolParam{BoolParam: true}},
	}
	if err := stream.Send(in); err != nil {
		t.Fatal(err)
	}
	send(t, stream, "plain")
	if err := stream.CloseSend(); err != nil { // everything is answered all the same
		t.Fatal(err)
	}
	// A later request does not wait for a slow one.
	if got := hear(t, stream); got != "plain 1 true" {
		t.Errorf("heard %q", got)
	}
	for _, want := range []string{"many 1one false", "many a bad word false", "many 1two false", "many  true"} {
		many.may <- struct{}{}
		if got := hear(t, stream); got != want {
			t.Errorf("heard %q, want %q", got, want)
		}
	}
	<-many.closed
	expectEnd(t, stream, codes.OK)
}

func TestTheLastWordIsLeftOutUnlessItIsAskedFor(t *testing.T) {
	backend, conn := newServer(t, kservegrpc.Options{})
	many := &teller{words: []string{"one", "bare"}, may: make(chan struct{}), closed: make(chan struct{})}
	close(many.may)
	backend.Stream = func(*infer.Request) infer.ResponseStream { return many }
	stream := openStream(t.Context(), t, conn)
	send(t, stream, "a")
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if got := hear(t, stream); got != "a 1one false" {
		t.Errorf("heard %q", got)
	}
	expectEnd(t, stream, codes.OK)
	_, err := kservepb.NewGRPCInferenceServiceClient(conn).ModelInfer(t.Context(), request())
	if want := "ModelInfer RPC doesn't support models with decoupled transaction policy"; status.Convert(err).Message() != want || status.Code(err) != codes.Unimplemented {
		t.Errorf("%v, want %s", err, want)
	}
}

func TestWhatSendsIsClosedWhenItsClientLeaves(t *testing.T) {
	backend, conn := newServer(t, kservegrpc.Options{})
	many := &teller{words: []string{"one"}, may: make(chan struct{}), closed: make(chan struct{})}
	began := make(chan struct{})
	backend.Stream = func(*infer.Request) infer.ResponseStream { close(began); return many }
	ctx, cancel := context.WithCancel(t.Context())
	send(t, openStream(ctx, t, conn), "a")
	<-began
	cancel()
	<-many.closed
}
