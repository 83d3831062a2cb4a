package kservegrpc_test

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/shoal-serving/shoal/internal/kserve"
	"github.com/shoal-serving/shoal/internal/kserve/kservegrpc"
	"github.com/shoal-serving/shoal/internal/kserve/kservepb"
)

type (
	message = kservepb.ModelInferRequest
	input   = kservepb.ModelInferRequest_InferInputTensor
	output  = kservepb.ModelInferRequest_InferRequestedOutputTensor
	content = kservepb.InferTensorContents
)

func parameters(n int) map[string]*kservepb.InferParameter {
	m := map[string]*kservepb.InferParameter{}
	for i := range n {
		m[fmt.Sprint("p", i)] = &kservepb.InferParameter{ParameterChoice: &kservepb.InferParameter_Int64Param{Int64Param: 1}}
	}
	return m
}

func copies[T any](n int, f func(i int) T) []T {
	var all []T
	for i := range n {
		all = append(all, f(i))
	}
	return all
}

// bytesInput returns a message with one input of the given number of bytes.
func bytesInput(n int) *message {
	return &message{
		ModelName:        "alltypes",
		Inputs:           []*input{{Name: "IN", Datatype: "UINT8", Shape: []int64{int64(n)}}},
		RawInputContents: [][]byte{make([]byte, n)},
	}
}

func typedInput(n int, datatype string, c *content) *message {
	return &message{Inputs: []*input{{Name: "IN", Datatype: datatype, Shape: []int64{int64(n)}, Contents: c}}}
}

func TestEachLimitIsExactAndTold(t *testing.T) {
	const limit = 7
	one := &content{UintContents: []uint32{1}}
	for _, c := range []struct {
		name    string
		limits  kserve.Limits
		told    string
		over    int // the value in the error, if it is not limit+1
		message func(n int) *message
	}{
		{"inputs", kserve.Limits{Inputs: limit}, "inputs", 0, func(n int) *message {
			return &message{Inputs: copies(n, func(int) *input { return &input{Name: "IN", Datatype: "UINT8", Shape: []int64{1}, Contents: one} })}
		}},
		{"raw contents", kserve.Limits{Inputs: limit}, "inputs", 0, func(n int) *message {
			return &message{RawInputContents: make([][]byte, n)}
		}},
		{"outputs", kserve.Limits{Outputs: limit}, "outputs", 0, func(n int) *message {
			return &message{Outputs: copies(n, func(i int) *output { return &output{Name: fmt.Sprint("O", i)} })}
		}},
		{"dims", kserve.Limits{Dims: limit}, "dimensions", 0, func(n int) *message {
			return &message{Inputs: []*input{{Name: "IN", Datatype: "UINT8", Shape: copies(n, func(int) int64 { return 300 }), Contents: one}}}
		}},
		{"parameters", kserve.Limits{Parameters: limit}, "parameters", 0, func(n int) *message {
			return &message{Parameters: parameters(n)}
		}},
		{"parameters of tensors", kserve.Limits{Parameters: limit}, "parameters", 0, func(n int) *message {
			return &message{
				Inputs:  []*input{{Name: "IN", Datatype: "UINT8", Shape: []int64{1}, Contents: one, Parameters: parameters(3)}},
				Outputs: []*output{{Name: "OUT", Parameters: parameters(n - 3)}},
			}
		}},
		{"string", kserve.Limits{String: limit}, "bytes of a string", 0, func(n int) *message {
			return typedInput(2, "BYTES", &content{BytesContents: [][]byte{nil, make([]byte, n)}})
		}},
		{"raw string", kserve.Limits{String: limit}, "bytes of a string", 0, func(n int) *message {
			return &message{
				Inputs:           []*input{{Name: "IN", Datatype: "BYTES", Shape: []int64{1}}},
				RawInputContents: [][]byte{append([]byte{byte(n), 0, 0, 0}, make([]byte, n)...)},
			}
		}},
		{"id", kserve.Limits{Text: 16}, "bytes of a text", 17, func(n int) *message {
			return &message{Id: strings.Repeat("x", n+9)}
		}},
		{"name of an output", kserve.Limits{Text: 16}, "bytes of a text", 17, func(n int) *message {
			return &message{Outputs: []*output{{Name: strings.Repeat("x", n+9)}}}
		}},
		{"INT64", kserve.Limits{Decoded: 8000}, "decoded bytes", 8008, func(n int) *message {
			return typedInput(993+n, "INT64", &content{Int64Contents: copies(993+n, func(i int) int64 { return int64(i) })})
		}},
		{"UINT32", kserve.Limits{Decoded: 4000}, "decoded bytes", 4004, func(n int) *message {
			return typedInput(993+n, "UINT32", &content{UintContents: copies(993+n, func(i int) uint32 { return uint32(i) })})
		}},
		{"BYTES", kserve.Limits{Decoded: 1000 * 30}, "decoded bytes", 1001 * 30, func(n int) *message {
			return typedInput(993+n, "BYTES", &content{BytesContents: copies(993+n, func(int) []byte { return []byte("ab") })})
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, conn := newServer(t, kservegrpc.Options{Limits: c.limits})
			client := kservepb.NewGRPCInferenceServiceClient(conn)
			ask := func(n int) error {
				m := c.message(n)
				m.ModelName = "alltypes"
				_, err := client.ModelInfer(t.Context(), m)
				return err
			}
			if err := ask(limit); err != nil {
				t.Errorf("at the limit: %v", err)
			}
			want := fmt.Sprintf("limit of %s exceeded: found at least %d, allowed are ", c.told, max(c.over, limit+1))
			if err := ask(limit + 1); status.Code(err) != codes.InvalidArgument || !strings.HasPrefix(status.Convert(err).Message(), want) {
				t.Errorf("beyond it: %v, want %s", err, want)
			}
		})
	}
}

// grpc itself rejects a message that is too long, either as sent or after decompression,
// with an error text of its own.
func TestMessagesAreLimitedCompressedOrNot(t *testing.T) {
	in := bytesInput(100_000)
	size := int64(proto.Size(in))
	for limit, want := range map[int64]codes.Code{size: codes.OK, size - 1: codes.ResourceExhausted} {
		for _, limits := range []kserve.Limits{{Body: limit}, {Decoded: limit}} {
			_, conn := newServer(t, kservegrpc.Options{Limits: limits})
			client := kservepb.NewGRPCInferenceServiceClient(conn)
			for _, options := range [][]grpc.CallOption{nil, {grpc.UseCompressor(gzip.Name)}, {grpc.UseCompressor("deflate")}} {
				_, err := client.ModelInfer(t.Context(), in, options...)
				if told := status.Convert(err).Message(); status.Code(err) != want || want != codes.OK && !strings.Contains(told, fmt.Sprint(limit)) {
					t.Errorf("%+v, options %v: %v, want %v", limits, options, err, want)
				}
			}
		}
	}
}

func TestAnswersHaveNoLimit(t *testing.T) {
	_, conn := newServer(t, kservegrpc.Options{Limits: kserve.Limits{Body: 1000}})
	in := bytesInput(900)
	in.ModelName = "alltypes"
	in.Inputs[0].Name = "IN" + strings.Repeat("x", 20)
	in.Id = strings.Repeat("i", 20)
	out, err := kservepb.NewGRPCInferenceServiceClient(conn).ModelInfer(t.Context(), in)
	if err != nil || proto.Size(out) < proto.Size(in) {
		t.Errorf("%d bytes, %v", proto.Size(out), err)
	}
}

func TestHeadersAreLimited(t *testing.T) {
	_, conn := newServer(t, kservegrpc.Options{Limits: kserve.Limits{Header: 4096}})
	client := kservepb.NewGRPCInferenceServiceClient(conn)
	for size, want := range map[int]codes.Code{3000: codes.OK, 4096: codes.Internal} { // Internal is grpc's
		ctx := metadata.AppendToOutgoingContext(t.Context(), "x", strings.Repeat("x", size))
		if _, err := client.ServerLive(ctx, &kservepb.ServerLiveRequest{}); status.Code(err) != want {
			t.Errorf("%d bytes: %v, want %v", size, err, want)
		}
	}
}

func TestNamesThatNoModelCanHaveAreUnknown(t *testing.T) {
	_, conn := newServer(t, kservegrpc.Options{})
	client := kservepb.NewGRPCInferenceServiceClient(conn)
	for _, name := range []string{"../etc", "a/b", "a\x00", "-rf", "a b", strings.Repeat("a", 129), strings.Repeat("é", 10000)} {
		_, infer := client.ModelInfer(t.Context(), &message{ModelName: name})
		_, meta := client.ModelMetadata(t.Context(), &kservepb.ModelMetadataRequest{Name: name})
		_, ready := client.ModelReady(t.Context(), &kservepb.ModelReadyRequest{Name: name})
		for _, err := range []error{infer, meta, ready} {
			text := status.Convert(err).Message()
			if status.Code(err) != codes.NotFound || !strings.HasPrefix(text, "Request for unknown model: '") || len(text) > 400 {
				t.Errorf("%.20q: %v", name, err)
			}
		}
	}
}

// Such messages become lists, and texts of errors, which are many times as large.
func TestMessagesWithoutTensorsMayNotBeLarge(t *testing.T) {
	_, conn := newServer(t, kservegrpc.Options{})
	client, large := kservepb.NewGRPCInferenceServiceClient(conn), strings.Repeat("1", 2<<20)
	const want = "for this method it may have 1048576"
	for what, call := range map[string]func() error{
		"readiness": func() error {
			_, err := client.ModelReady(t.Context(), &kservepb.ModelReadyRequest{Name: "m", Version: large})
			return err
		},
		"trace settings": func() error {
			levels := map[string]*kservepb.TraceSettingRequest_SettingValue{"trace_level": {Value: make([]string, 1<<20)}}
			_, err := client.TraceSetting(t.Context(), &kservepb.TraceSettingRequest{Settings: levels})
			return err
		},
	} {
		if err := call(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %.200v, want %q", what, err, want)
		}
	}
	files := map[string]*kservepb.ModelRepositoryParameter{"file:1/model.onnx": {ParameterChoice: &kservepb.ModelRepositoryParameter_BytesParam{BytesParam: make([]byte, 2<<20)}}}
	if _, err := client.RepositoryModelLoad(t.Context(), &kservepb.RepositoryModelLoadRequest{ModelName: "m", Parameters: files}); err != nil && strings.Contains(err.Error(), want) {
		t.Errorf("files of a model: %v", err)
	}
}

// They are read without credentials, and are not charged.
func TestHealthChecksMayNotBeLarge(t *testing.T) {
	_, conn := newServer(t, kservegrpc.Options{})
	client := grpc_health_v1.NewHealthClient(conn)
	check := func(in *grpc_health_v1.HealthCheckRequest) error {
		_, err := client.Check(t.Context(), in)
		return err
	}
	watch := func(in *grpc_health_v1.HealthCheckRequest) error {
		stream, err := client.Watch(t.Context(), in)
		if err == nil {
			_, err = stream.Recv()
		}
		return err
	}
	for name, call := range map[string]func(*grpc_health_v1.HealthCheckRequest) error{"check": check, "watch": watch} {
		if err := call(&grpc_health_v1.HealthCheckRequest{Service: strings.Repeat("x", 4000)}); err != nil {
			t.Errorf("%s of a long service: %v", name, err)
		}
		const want = "for this method it may have 4096"
		if err := call(&grpc_health_v1.HealthCheckRequest{Service: strings.Repeat("x", 5000)}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s of a longer one: %.200v, want %q", name, err, want)
		}
	}
}

// grpc sends the text as a header, which clients limit.
func TestTheTextOfAnErrorIsCut(t *testing.T) {
	_, conn := newServer(t, kservegrpc.Options{})
	client := kservepb.NewGRPCInferenceServiceClient(conn)
	_, err := client.ModelReady(t.Context(), &kservepb.ModelReadyRequest{Name: "m", Version: strings.Repeat("ü", 30<<10)})
	if text := status.Convert(err).Message(); status.Code(err) != codes.InvalidArgument || len(text) > 4<<10+len("…") || !strings.HasSuffix(text, "ü…") {
		t.Errorf("%v, %d bytes: %.100q", status.Code(err), len(text), text)
	}
}
