package kservegrpc_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/kserve"
	"github.com/shoal-serving/shoal/internal/kserve/kservegrpc"
	"github.com/shoal-serving/shoal/internal/kserve/kservepb"
	"github.com/shoal-serving/shoal/internal/kserve/kservetest"
	"github.com/shoal-serving/shoal/internal/leak"
	"github.com/shoal-serving/shoal/internal/script"
)

func TestMain(m *testing.M) { leak.Main(m) }

func newServer(t testing.TB, opts kservegrpc.Options, extra ...grpc.ServerOption) (*kservetest.Server, *grpc.ClientConn) {
	t.Helper()
	backend := kservetest.New(t, kservetest.Recorded...)
	backend.Entries, backend.Stats = kservetest.RecordedIndex, kservetest.RecordedStatistics
	opts.Logging = backend
	server := kservegrpc.New(backend, backend, backend, opts, extra...)
	listener := bufconn.Listen(1 << 20)
	served := make(chan error, 1) // so that Serve never waits for the test
	go func() { served <- server.Serve(listener) }()
	conn, err := grpc.NewClient("passthrough:///test",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }),
	)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		err := conn.Close()
		if status.Code(err) == codes.Canceled {
			err = nil // the test has closed it
		}
		server.Stop()
		if err := errors.Join(err, <-served); err != nil {
			t.Error(err)
		}
	})
	return backend, conn
}

// The scripts were recorded from Triton 2.51.0, and changed where their comments say so. A
// block is a method and its message, and the response: the code, and a message or an error
// text.
func TestClientsOfTritonGetTheSameAnswers(t *testing.T) {
	script.Run(t, "testdata/*.txt", func(t *testing.T) func([]string) string {
		backend, conn := newServer(t, kservegrpc.Options{Version: "1.2.3"})
		backend.Before, backend.Unloaded = kservetest.RecordedFailure, []string{"recorder"}
		return func(lines []string) string { return called(t, conn, lines) }
	})
}

// called runs one block of a script.
func called(t *testing.T, conn *grpc.ClientConn, lines []string) string {
	method, header, _ := strings.Cut(lines[0], " ")
	if method == "ModelStreamInfer" {
		return streamed(t, conn, header, lines[1:])
	}
	return exchange(t, conn, method, lines[1])
}

func TestClientsShareMemory(t *testing.T) {
	script.Run(t, "testdata/regions/*.txt", func(t *testing.T) func([]string) string {
		data, _ := binary.Append(nil, binary.LittleEndian, []float32{1, 2, 3, 4})
		key, _ := kservetest.SharedMemory(t, append(data, make([]byte, 240)...))
		_, conn := newServer(t, kservegrpc.Options{Regions: kserve.NewRegions(kserve.RegionOptions{})})
		return func(lines []string) string {
			return kservetest.WithKey(key, lines, func(lines []string) string { return called(t, conn, lines) })
		}
	})
}

// streamed sends all messages, and then reads the responses.
func streamed(t *testing.T, conn *grpc.ClientConn, header string, messages []string) string {
	ctx := t.Context()
	if key, value, ok := strings.Cut(header, ": "); ok {
		ctx = metadata.AppendToOutgoingContext(ctx, key, value)
	}
	stream, err := kservepb.NewGRPCInferenceServiceClient(conn).ModelStreamInfer(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range messages {
		in := &kservepb.ModelInferRequest{}
		if err := protojson.Unmarshal([]byte(m), in); err != nil {
			t.Fatalf("%s: %v", m, err)
		}
		if err := stream.Send(in); err != nil && !errors.Is(err, io.EOF) { // EOF: the reason is received
			t.Fatal(err)
		}
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	var answered strings.Builder
	for {
		out, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return answered.String() + "OK"
		case err != nil:
			return fmt.Sprintf("%s%v\n%s", answered.String(), status.Code(err), status.Convert(err).Message())
		}
		fmt.Fprintln(&answered, text(t, out))
	}
}

func exchange(t *testing.T, conn *grpc.ClientConn, method, message string) string {
	service := kservepb.File_grpc_service_proto.Services().ByName("GRPCInferenceService")
	desc := service.Methods().ByName(protoreflect.Name(method))
	if desc == nil {
		t.Fatalf("there is no method %s", method)
	}
	in, out := dynamicpb.NewMessage(desc.Input()), dynamicpb.NewMessage(desc.Output())
	if err := protojson.Unmarshal([]byte(message), in); err != nil {
		t.Fatalf("%s: %v", message, err)
	}
	if err := conn.Invoke(t.Context(), fmt.Sprintf("/%s/%s", service.FullName(), method), in, out); err != nil {
		return fmt.Sprintf("%v\n%s", status.Code(err), status.Convert(err).Message())
	}
	return "OK\n" + text(t, out)
}

// text formats a message on one line. protojson inserts random spaces, so that its output
// cannot be relied on.
func text(t *testing.T, m proto.Message) string {
	loose, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, loose); err != nil {
		t.Fatal(err)
	}
	return compact.String()
}

func request() *kservepb.ModelInferRequest {
	return &kservepb.ModelInferRequest{
		ModelName:        "failing",
		Inputs:           []*kservepb.ModelInferRequest_InferInputTensor{{Name: "INPUT", Datatype: "FP32", Shape: []int64{1, 4}}},
		RawInputContents: [][]byte{make([]byte, 16)},
	}
}

func TestErrorsOfTheBackendHaveTheirCode(t *testing.T) {
	backend, conn := newServer(t, kservegrpc.Options{})
	client := kservepb.NewGRPCInferenceServiceClient(conn)
	for code, want := range map[infer.Code]codes.Code{
		infer.Internal: codes.Internal, infer.Invalid: codes.InvalidArgument, infer.NotFound: codes.NotFound,
		infer.Unsupported: codes.Unimplemented, infer.Unavailable: codes.Unavailable, infer.Overloaded: codes.ResourceExhausted,
		infer.Late:         codes.ResourceExhausted,
		infer.QueueTimeout: codes.Unavailable, infer.Deadline: codes.DeadlineExceeded, infer.Cancelled: codes.Canceled, infer.Forbidden: codes.PermissionDenied,
	} {
		backend.Before = func(context.Context, *infer.Request) error {
			return fmt.Errorf("wrapped: %w", infer.Errorf(code, "the %v reason", code))
		}
		_, err := client.ModelInfer(t.Context(), request())
		if text := fmt.Sprintf("wrapped: the %v reason", code); status.Code(err) != want || status.Convert(err).Message() != text {
			t.Errorf("%v: %v, want %v, %s", code, err, want, text)
		}
	}
}

func TestAnOverloadedServerSaysWhenToComeBack(t *testing.T) {
	for triton, want := range map[bool]codes.Code{false: codes.ResourceExhausted, true: codes.Unavailable} {
		backend, conn := newServer(t, kservegrpc.Options{TritonStatus: triton})
		client := kservepb.NewGRPCInferenceServiceClient(conn)
		for _, code := range []infer.Code{infer.Overloaded, infer.Late, infer.NotFound} {
			backend.Before = func(context.Context, *infer.Request) error {
				err := infer.Errorf(code, "no")
				err.RetryAfter = 1500 * time.Millisecond
				return err
			}
			var trailer metadata.MD
			_, err := client.ModelInfer(t.Context(), request(), grpc.Trailer(&trailer))
			got := trailer.Get("retry-after")
			var exactly time.Duration
			for _, detail := range status.Convert(err).Details() {
				exactly = detail.(*errdetails.RetryInfo).GetRetryDelay().AsDuration()
			}
			if code == infer.NotFound {
				if status.Code(err) != codes.NotFound || len(got) > 0 || exactly != 0 {
					t.Errorf("%v: %v, %v, %v", code, err, trailer, exactly)
				}
				continue
			}
			if status.Code(err) != want || !slices.Equal(got, []string{"2"}) || exactly != 1500*time.Millisecond {
				t.Errorf("%v: %v, %v, %v", code, err, trailer, exactly)
			}
		}
	}
}

func TestEveryTypeTravelsAsTypedContents(t *testing.T) {
	_, conn := newServer(t, kservegrpc.Options{})
	client := kservepb.NewGRPCInferenceServiceClient(conn)
	for _, c := range []struct {
		datatype string
		contents *kservepb.InferTensorContents
		want     string
	}{
		{"BOOL", &kservepb.InferTensorContents{BoolContents: []bool{true, false}}, "\x01\x00"},
		{"INT8", &kservepb.InferTensorContents{IntContents: []int32{-128, 127}}, "\x80\x7f"},
		{"INT16", &kservepb.InferTensorContents{IntContents: []int32{-2, 258}}, "\xfe\xff\x02\x01"},
		{"INT32", &kservepb.InferTensorContents{IntContents: []int32{-2, 1}}, "\xfe\xff\xff\xff\x01\x00\x00\x00"},
		{"INT64", &kservepb.InferTensorContents{Int64Contents: []int64{-2, 1}}, "\xfe\xff\xff\xff\xff\xff\xff\xff\x01\x00\x00\x00\x00\x00\x00\x00"},
		{"UINT8", &kservepb.InferTensorContents{UintContents: []uint32{0, 255}}, "\x00\xff"},
		{"UINT16", &kservepb.InferTensorContents{UintContents: []uint32{1, 65535}}, "\x01\x00\xff\xff"},
		{"UINT32", &kservepb.InferTensorContents{UintContents: []uint32{1, 4294967295}}, "\x01\x00\x00\x00\xff\xff\xff\xff"},
		{"UINT64", &kservepb.InferTensorContents{Uint64Contents: []uint64{1, 2}}, "\x01\x00\x00\x00\x00\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00"},
		{"FP32", &kservepb.InferTensorContents{Fp32Contents: []float32{1, -2}}, "\x00\x00\x80\x3f\x00\x00\x00\xc0"},
		{"FP64", &kservepb.InferTensorContents{Fp64Contents: []float64{1, -2}}, "\x00\x00\x00\x00\x00\x00\xf0\x3f\x00\x00\x00\x00\x00\x00\x00\xc0"},
		{"BYTES", &kservepb.InferTensorContents{BytesContents: [][]byte{[]byte("a\x00b"), nil}}, "\x03\x00\x00\x00a\x00b\x00\x00\x00\x00"},
	} {
		in := &kservepb.ModelInferRequest{ModelName: "alltypes", Inputs: []*kservepb.ModelInferRequest_InferInputTensor{
			{Name: "IN", Datatype: c.datatype, Shape: []int64{2}, Contents: c.contents},
		}}
		out, err := client.ModelInfer(t.Context(), in)
		if err != nil {
			t.Errorf("%s: %v", c.datatype, err)
			continue
		}
		if got := out.GetOutputs()[0]; got.GetDatatype() != c.datatype || string(out.GetRawOutputContents()[0]) != c.want {
			t.Errorf("%s: %s %q, want %q", c.datatype, got.GetDatatype(), out.GetRawOutputContents()[0], c.want)
		}
	}
}

func TestNumbersThatDoNotFitAreRefused(t *testing.T) {
	_, conn := newServer(t, kservegrpc.Options{})
	client := kservepb.NewGRPCInferenceServiceClient(conn)
	for datatype, contents := range map[string]*kservepb.InferTensorContents{
		"INT8":   {IntContents: []int32{128}},
		"INT16":  {IntContents: []int32{-32769}},
		"UINT8":  {UintContents: []uint32{256}},
		"UINT16": {UintContents: []uint32{65536}},
		"FP16":   {Fp32Contents: []float32{1}},
	} {
		_, err := client.ModelInfer(t.Context(), &kservepb.ModelInferRequest{ModelName: "alltypes", Inputs: []*kservepb.ModelInferRequest_InferInputTensor{
			{Name: "IN", Datatype: datatype, Shape: []int64{1}, Contents: contents},
		}})
		if status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", datatype, err)
		}
	}
}

func TestParametersReachTheBackend(t *testing.T) {
	backend, conn := newServer(t, kservegrpc.Options{})
	backend.Before = func(_ context.Context, req *infer.Request) error {
		if req.Priority != 2 || req.Timeout != 3*time.Millisecond || req.ID != "x" || req.Version != "1" {
			t.Errorf("request %+v", req)
		}
		return nil
	}
	in := request()
	in.Id, in.ModelVersion = "x", "1"
	in.Parameters = map[string]*kservepb.InferParameter{
		"priority": {ParameterChoice: &kservepb.InferParameter_Uint64Param{Uint64Param: 2}},
		"timeout":  {ParameterChoice: &kservepb.InferParameter_Int64Param{Int64Param: 3000}},
	}
	out, err := kservepb.NewGRPCInferenceServiceClient(conn).ModelInfer(t.Context(), in)
	if err != nil || out.GetId() != "x" {
		t.Errorf("%v, %v", out, err)
	}
}

func TestMetadataHasTheVersionOfRequestsThatNameNone(t *testing.T) {
	backend, conn := newServer(t, kservegrpc.Options{})
	var versions []string
	backend.Before = func(_ context.Context, req *infer.Request) error {
		versions = append(versions, req.Version)
		return nil
	}
	for _, c := range []struct {
		named, version string
		want           codes.Code
	}{{"", "1", codes.OK}, {"1", "2", codes.OK}, {"", "x", codes.InvalidArgument}} {
		in := request()
		in.ModelVersion = c.named
		ctx := metadata.AppendToOutgoingContext(t.Context(), kserve.VersionHeader, c.version)
		if _, err := kservepb.NewGRPCInferenceServiceClient(conn).ModelInfer(ctx, in); status.Code(err) != c.want {
			t.Errorf("%q with metadata %s: %v, want %v", c.named, c.version, err, c.want)
		}
	}
	if !slices.Equal(versions, []string{"1", "1"}) {
		t.Errorf("versions %v", versions)
	}
}

func TestHeadersReachTheBackendAsParameters(t *testing.T) {
	pattern, err := kserve.ParseHeaderPattern("^x-")
	if err != nil {
		t.Fatal(err)
	}
	backend, conn := newServer(t, kservegrpc.Options{ForwardHeaders: pattern})
	seen := 0
	backend.Before = func(_ context.Context, req *infer.Request) error {
		if want := []infer.Parameter{{Name: "x-tenant", Value: "a"}}; !slices.Equal(req.Parameters, want) {
			t.Errorf("parameters %v, want %v", req.Parameters, want)
		}
		seen++
		return nil
	}
	ctx := metadata.AppendToOutgoingContext(t.Context(), "X-Tenant", "a", "other", "b")
	client := kservepb.NewGRPCInferenceServiceClient(conn)
	if _, err := client.ModelInfer(ctx, request()); err != nil {
		t.Fatal(err)
	}
	stream, err := client.ModelStreamInfer(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(request()); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("the end of the stream: %v", err)
	}
	if seen != 2 {
		t.Errorf("the backend saw %d requests, want 2", seen)
	}
}

func TestTheServerHasTheNameOfItsOptions(t *testing.T) {
	for name, want := range map[string]string{"": "shoal", "triton": "triton"} {
		_, conn := newServer(t, kservegrpc.Options{Name: name})
		meta, err := kservepb.NewGRPCInferenceServiceClient(conn).ServerMetadata(t.Context(), &kservepb.ServerMetadataRequest{})
		if err != nil || meta.GetName() != want {
			t.Errorf("%q: %v, %v", name, meta, err)
		}
	}
}

func TestHealthIsReadiness(t *testing.T) {
	backend, conn := newServer(t, kservegrpc.Options{})
	client := grpc_health_v1.NewHealthClient(conn)
	for notReady, want := range map[bool]grpc_health_v1.HealthCheckResponse_ServingStatus{
		false: grpc_health_v1.HealthCheckResponse_SERVING,
		true:  grpc_health_v1.HealthCheckResponse_NOT_SERVING,
	} {
		backend.NotReady.Store(notReady)
		for _, service := range []string{"", "inference.GRPCInferenceService", "nosuch"} {
			got, err := client.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: service})
			if err != nil || got.GetStatus() != want {
				t.Errorf("not ready %t, service %q: %v, %v, want %v", notReady, service, got, err, want)
			}
		}
	}
}

func TestAMethodThatIsNotServedIsUnimplemented(t *testing.T) {
	_, conn := newServer(t, kservegrpc.Options{})
	var in, out kservepb.ServerLiveRequest
	err := conn.Invoke(t.Context(), "/inference.GRPCInferenceService/Nope", &in, &out)
	if status.Code(err) != codes.Unimplemented {
		t.Error(err)
	}
}

func TestAPanicCostsOneRequest(t *testing.T) {
	var log bytes.Buffer
	backend, conn := newServer(t, kservegrpc.Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
	client := kservepb.NewGRPCInferenceServiceClient(conn)
	backend.Before = func(context.Context, *infer.Request) error { panic("a bug") }
	if _, err := client.ModelInfer(t.Context(), request()); status.Code(err) != codes.Internal {
		t.Errorf("error %v", err)
	}
	if !strings.Contains(log.String(), "a bug") || !strings.Contains(log.String(), "kservegrpc_test.go") {
		t.Errorf("the log does not say what happened and where: %s", log.String())
	}
	backend.Before = nil
	if _, err := client.ModelInfer(t.Context(), request()); err != nil {
		t.Errorf("the next request: %v", err)
	}
}

// The client sets the deadline, and the client cancels.
func TestAClientThatLeavesCancels(t *testing.T) {
	backend, conn := newServer(t, kservegrpc.Options{})
	client := kservepb.NewGRPCInferenceServiceClient(conn)
	arrived, cancelled := make(chan bool, 1), make(chan error, 1) // so that the handler never waits for the test
	backend.Before = func(ctx context.Context, _ *infer.Request) error {
		_, hasDeadline := ctx.Deadline()
		arrived <- hasDeadline
		<-ctx.Done()
		cancelled <- ctx.Err()
		return ctx.Err()
	}
	ctx, leave := context.WithTimeout(t.Context(), time.Hour)
	done := make(chan error, 1) // so that the client never waits for the test
	go func() {
		_, err := client.ModelInfer(ctx, request())
		done <- err
	}()
	if !<-arrived {
		t.Error("the backend saw no deadline")
	}
	leave()
	if err := <-done; status.Code(err) != codes.Canceled {
		t.Errorf("the client got %v", err)
	}
	if err := <-cancelled; err == nil {
		t.Error("the backend saw no cancellation")
	}
}

// Responses are sent after the call has returned: small outputs from a copy, large ones in
// place.
func TestAnswersDoNotShareMemoryThatWasGivenBack(t *testing.T) {
	_, conn := newServer(t, kservegrpc.Options{})
	client := kservepb.NewGRPCInferenceServiceClient(conn)
	done := make(chan error, 8) // one for each, so that none waits for the test
	for worker := range cap(done) {
		go func() {
			in := bytesInput([]int{16, 100_000}[worker%2])
			for i := range in.RawInputContents[0] {
				in.RawInputContents[0][i] = byte(worker)
			}
			for range 200 {
				out, err := client.ModelInfer(t.Context(), in)
				if err == nil && !bytes.Equal(out.GetRawOutputContents()[0], in.RawInputContents[0]) {
					err = fmt.Errorf("%d was answered with %.100x", worker, out.GetRawOutputContents()[0])
				}
				if err != nil {
					done <- err
					return
				}
			}
			done <- nil
		}()
	}
	for range cap(done) {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	awaitBuffers(t)
}
