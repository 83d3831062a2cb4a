package client

import (
	"context"
	"errors"
	"io"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/shoal-serving/shoal/internal/kserve/kservepb"
	"github.com/shoal-serving/shoal/tensor"
)

func TestOutputsMayBeJSON(t *testing.T) {
	for _, tt := range []struct {
		output string
		want   []byte
	}{
		{`"datatype":"FP32","shape":[2,1],"data":[[1.5],[-2]]`, tensor.Data([]float32{1.5, -2})},
		{`"datatype":"FP64","shape":[2],"data":[1e300,0]`, tensor.Data([]float64{1e300, 0})},
		{`"datatype":"INT8","shape":[2],"data":[-128,127]`, tensor.Data([]int8{-128, 127})},
		{`"datatype":"UINT64","shape":[1],"data":[18446744073709551615]`, tensor.Data([]uint64{1<<64 - 1})},
		{`"datatype":"BOOL","shape":[2],"data":[true,false]`, []byte{1, 0}},
		{`"datatype":"BYTES","shape":[2],"data":["","é"]`, []byte("\x00\x00\x00\x00\x02\x00\x00\x00é")},
		{`"datatype":"INT32","shape":[0],"data":[]`, nil},
	} {
		resp, err := decodeResponse([]byte(`{"model_name":"m","parameters":{"n":-1,"f":0.5,"s":"x","big":18446744073709551615,"no":[]},"outputs":[{"name":"y",`+tt.output+`}]}`), "")
		if err != nil || !slices.Equal(resp.Outputs[0].Data, tt.want) {
			t.Errorf("%s: got %v, %v", tt.output, resp, err)
			continue
		}
		if want := map[string]any{"n": int64(-1), "f": 0.5, "s": "x", "big": uint64(1<<64 - 1)}; !reflect.DeepEqual(resp.Parameters, want) {
			t.Errorf("got %v", resp.Parameters)
		}
	}
}

func TestResponsesAreChecked(t *testing.T) {
	for _, tt := range []struct{ body, length, want string }{
		{`{`, "", "unexpected end of JSON input"},
		{`{}`, "3", `Inference-Header-Content-Length is "3", and the body has 2 bytes`},
		{`{}`, "x", `Inference-Header-Content-Length is "x", and the body has 2 bytes`},
		{`{}1`, "2", "1 bytes follow the last output"},
		{`{"outputs":[{"name":"y","datatype":"FP12"}]}`, "", `output "y": its type is "FP12"`},
		{`{"outputs":[{"name":"y","datatype":"FP32","shape":[1]}]}`, "", `output "y": it has no data`},
		{`{"outputs":[{"name":"y","datatype":"FP32","shape":[2],"data":[1]}]}`, "", `output "y": 4 bytes of data, but shape [2] of FP32 takes 8`},
		{`{"outputs":[{"name":"y","datatype":"FP32","shape":[1],"data":["a"]}]}`, "", `output "y": found "a", expected a value of FP32`},
		{`{"outputs":[{"name":"y","datatype":"FP32","shape":[1],"data":[null]}]}`, "", `output "y": found null, expected a value of FP32`},
		{`{"outputs":[{"name":"y","datatype":"FP32","shape":[1],"data":{"a":1}}]}`, "", `output "y": the data is not an array`},
		{`{"outputs":[{"name":"y","datatype":"INT8","shape":[1],"data":[128]}]}`, "", `output "y": found 128, expected a value of INT8`},
		{`{"outputs":[{"name":"y","datatype":"FP16","shape":[1],"data":[1]}]}`, "", `output "y": found 1, expected a value of FP16`},
		{`{"outputs":[{"name":"y","datatype":"FP32","shape":[1],"parameters":{"binary_data_size":4}}]}`, "", `output "y": it has 4 bytes of data, but 0 are left`},
		{`{"outputs":[{"name":"y","datatype":"FP32","shape":[1],"parameters":{"binary_data_size":-4}}]}`, "", `output "y": it has -4 bytes of data, but 0 are left`},
	} {
		if resp, err := decodeResponse([]byte(tt.body), tt.length); err == nil || err.Error() != tt.want {
			t.Errorf("%s: got %v, %v, want %s", tt.body, resp, err, tt.want)
		}
	}
}

func TestOutputsMayBeTypedContents(t *testing.T) {
	output := func(datatype string, c *kservepb.InferTensorContents) *kservepb.ModelInferResponse {
		return &kservepb.ModelInferResponse{Outputs: []*kservepb.ModelInferResponse_InferOutputTensor{{Name: "y", Datatype: datatype, Shape: []int64{2}, Contents: c}}}
	}
	for datatype, tt := range map[string]struct {
		contents *kservepb.InferTensorContents
		want     []byte
	}{
		"BOOL":   {&kservepb.InferTensorContents{BoolContents: []bool{true, false}}, []byte{1, 0}},
		"INT16":  {&kservepb.InferTensorContents{IntContents: []int32{-1, 2}}, tensor.Data([]int16{-1, 2})},
		"INT64":  {&kservepb.InferTensorContents{Int64Contents: []int64{-1, 2}}, tensor.Data([]int64{-1, 2})},
		"UINT8":  {&kservepb.InferTensorContents{UintContents: []uint32{255, 2}}, []byte{255, 2}},
		"UINT64": {&kservepb.InferTensorContents{Uint64Contents: []uint64{1, 2}}, tensor.Data([]uint64{1, 2})},
		"FP32":   {&kservepb.InferTensorContents{Fp32Contents: []float32{1, 2}}, tensor.Data([]float32{1, 2})},
		"FP64":   {&kservepb.InferTensorContents{Fp64Contents: []float64{1, 2}}, tensor.Data([]float64{1, 2})},
		"BYTES":  {&kservepb.InferTensorContents{BytesContents: [][]byte{{}, {7}}}, []byte{0, 0, 0, 0, 1, 0, 0, 0, 7}},
	} {
		if resp, err := responseOf(output(datatype, tt.contents)); err != nil || !slices.Equal(resp.Outputs[0].Data, tt.want) {
			t.Errorf("%s: got %v, %v", datatype, resp, err)
		}
	}
	for datatype, want := range map[string]string{
		"FP12": `output "y": its type is "FP12"`,
		"FP32": `output "y": 0 bytes of data, but shape [2] of FP32 takes 8`,
	} {
		if _, err := responseOf(output(datatype, nil)); err == nil || err.Error() != want {
			t.Errorf("%s: got %v, want %s", datatype, err, want)
		}
	}
}

func TestHTTPErrorsAreRead(t *testing.T) {
	now := time.Date(2026, 11, 16, 12, 0, 0, 0, time.UTC)
	for _, tt := range []struct {
		status      int
		after, body string
		want        Error
	}{
		{429, "2", `{"error":"full"}`, Error{Code: Overloaded, Message: "full", Status: "429 Too Many Requests", RetryAfter: 2 * time.Second}},
		{503, "Mon, 16 Nov 2026 12:00:05 GMT", "", Error{Code: Unavailable, Message: "the server gives no reason", Status: "503 Service Unavailable", RetryAfter: 5 * time.Second}},
		{503, "Mon, 16 Nov 2026 11:00:00 GMT", "", Error{Code: Unavailable, Message: "the server gives no reason", Status: "503 Service Unavailable"}},
		{502, "soon", " <html> ", Error{Code: Unavailable, Message: "<html>", Status: "502 Bad Gateway"}},
		{401, "-1", `{"error":7}`, Error{Code: Denied, Message: `{"error":7}`, Status: "401 Unauthorized"}},
		{418, "", strings.Repeat("é", 200), Error{Code: Unknown, Message: strings.Repeat("é", 128), Status: "418 I'm a teapot"}},
	} {
		resp := &http.Response{StatusCode: tt.status, Status: tt.want.Status, Header: http.Header{"Retry-After": {tt.after}}}
		if got := httpError(resp, []byte(tt.body), now); *got != tt.want {
			t.Errorf("got %+v, want %+v", *got, tt.want)
		}
	}
}

func TestGRPCErrorsAreRead(t *testing.T) {
	late, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel()
	for _, tt := range []struct {
		ended context.Context //nolint:containedctx // that of the call
		err   error
		want  Code
	}{
		{t.Context(), status.Error(codes.ResourceExhausted, "the queue is full"), Overloaded},
		{t.Context(), status.Error(codes.ResourceExhausted, "grpc: received message larger than max (5 vs. 4)"), TooLarge},
		{t.Context(), status.Error(codes.Canceled, "stream reset"), Canceled},
		{late, status.Error(codes.Canceled, "stream reset"), Deadline},
		{t.Context(), status.Error(codes.Unauthenticated, "no"), Denied},
		{t.Context(), status.Error(codes.Unknown, "no"), Unknown},
	} {
		if got := grpcError(tt.ended, tt.err, nil); got.Code != tt.want || !errors.Is(got, tt.err) {
			t.Errorf("%v: got %v, want %v", tt.err, got.Code, tt.want)
		}
	}
}

func TestAPayloadIsNotReadAfterItsRelease(t *testing.T) {
	p := &payload{parts: [][]byte{[]byte("head"), nil, []byte("tail")}}
	req, err := http.NewRequest(http.MethodPost, "http://localhost", nil)
	if err != nil {
		t.Fatal(err)
	}
	p.attach(req)
	if all, err := io.ReadAll(req.Body); string(all) != "headtail" || err != nil || req.ContentLength != 8 {
		t.Errorf("%q, %v", all, err)
	}
	again, err := req.GetBody()
	if err != nil {
		t.Fatal(err)
	}
	p.release()
	if all, err := io.ReadAll(again); len(all) > 0 || !errors.Is(err, errReleased) {
		t.Errorf("%q, %v", all, err)
	}
}

func TestBodiesAreReadToTheirLimit(t *testing.T) {
	for _, tt := range []struct {
		size, length, limit int64
		fails               bool
	}{{10, 10, 10, false}, {10, -1, 10, false}, {10, 3, 10, false}, {11, 10, 10, true}, {11, -1, 10, true}, {100_000, -1, 100_000, false}, {0, 0, 10, false}} {
		b, err := readAll(strings.NewReader(strings.Repeat("x", int(tt.size))), tt.length, tt.limit)
		if (err != nil) != tt.fails || !tt.fails && int64(len(b)) != tt.size {
			t.Errorf("%+v: %d bytes, %v", tt, len(b), err)
		}
	}
}

func TestTensorsAreReadAsTheirType(t *testing.T) {
	f := NewTensor("f", []float32{1})
	if _, err := Values[int32](&f); err == nil || err.Error() != `client: tensor "f" is of type FP32 and cannot be read as int32` {
		t.Error(err)
	}
	if _, err := Strings(&f); err == nil || err.Error() != `client: tensor "f" is of type FP32 and cannot be read as strings` {
		t.Error(err)
	}
	if _, err := Values[float32]((&Response{}).Output("y")); !errors.Is(err, errMissing) {
		t.Error(err)
	}
	if _, err := Strings(nil); !errors.Is(err, errMissing) {
		t.Error(err)
	}
	f.Shape = []int64{2}
	if _, err := Values[float32](&f); err == nil {
		t.Error("data that does not match the shape")
	}
	if got, err := Values[bool](&Tensor{Type: tensor.Bool, Shape: []int64{3}, Data: []byte{0, 1, 255}}); err != nil || !slices.Equal(got, []bool{false, true, true}) {
		t.Error(got, err)
	}
	type celsius float64
	if got := NewTensor("c", []celsius{1}); got.Type != tensor.FP64 {
		t.Error(got)
	}
}

func TestCodesHaveNames(t *testing.T) {
	if Overloaded.Error() != "overloaded" || Code(99).String() != "Code(99)" || CodeOf(io.EOF) != Unknown {
		t.Error(Overloaded.Error(), Code(99), CodeOf(io.EOF))
	}
}
