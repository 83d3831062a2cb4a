//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"

	"google.golang.org/grpc"

	"github.com/shoal-serving/shoal/internal/kserve/kservepb"
	"github.com/shoal-serving/shoal/tensor"
	"github.com/shoal-serving/shoal/test/servertest"
)

// A carrier sends inputs to a model in one of the ways that the protocols have,
// and returns the outputs. It is about the bytes on the wire: it is written with
// the standard library's JSON and the generated messages, and has nothing in common with
// the server's own code or the public client's.
type carrier func(ctx context.Context, model string, in []tensor.Tensor) ([]tensor.Tensor, error)

// spelled are the carriers that write numbers and text, and raw those that send
// bytes as they are. Half floats have no spelling, and JSON has none for infinity,
// NaN and text that is not UTF-8.
func carriers(s *servertest.Server) (spelled, raw map[string]carrier) {
	c := kservepb.NewGRPCInferenceServiceClient(s.Dial())
	spelled = map[string]carrier{
		"HTTP with JSON": func(ctx context.Context, model string, in []tensor.Tensor) ([]tensor.Tensor, error) {
			return sendJSON(ctx, s, model, in)
		},
		"gRPC with contents": func(ctx context.Context, model string, in []tensor.Tensor) ([]tensor.Tensor, error) {
			return sendGRPC(ctx, c.ModelInfer, model, in, true)
		},
	}
	raw = map[string]carrier{
		"HTTP with binary data": func(ctx context.Context, model string, in []tensor.Tensor) ([]tensor.Tensor, error) {
			return sendBinary(ctx, s, model, in)
		},
		"gRPC with raw contents": func(ctx context.Context, model string, in []tensor.Tensor) ([]tensor.Tensor, error) {
			return sendGRPC(ctx, c.ModelInfer, model, in, false)
		},
		"gRPC on a stream": func(ctx context.Context, model string, in []tensor.Tensor) ([]tensor.Tensor, error) {
			return sendGRPC(ctx, onStream(c), model, in, false)
		},
	}
	return spelled, raw
}

// A jsonTensor is a tensor of the HTTP protocol.
type jsonTensor struct {
	Name       string          `json:"name"`
	Datatype   string          `json:"datatype"`
	Shape      []int64         `json:"shape"`
	Data       json.RawMessage `json:"data,omitempty"`
	Parameters *binarySize     `json:"parameters,omitempty"`
}

type binarySize struct {
	Size int `json:"binary_data_size"`
}

func sendJSON(ctx context.Context, s *servertest.Server, model string, in []tensor.Tensor) ([]tensor.Tensor, error) {
	var body struct {
		Inputs []jsonTensor `json:"inputs"`
	}
	for i := range in {
		data, err := spellings[in[i].Type].write(&in[i])
		if err != nil {
			return nil, err
		}
		body.Inputs = append(body.Inputs, describe(&in[i], jsonTensor{Data: data}))
	}
	document, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	return post(ctx, s, model, document, -1)
}

func sendBinary(ctx context.Context, s *servertest.Server, model string, in []tensor.Tensor) ([]tensor.Tensor, error) {
	var body struct {
		Inputs     []jsonTensor    `json:"inputs"`
		Parameters map[string]bool `json:"parameters"`
	}
	body.Parameters = map[string]bool{"binary_data_output": true}
	var data []byte
	for i := range in {
		data = append(data, in[i].Data...)
		body.Inputs = append(body.Inputs, describe(&in[i], jsonTensor{Parameters: &binarySize{len(in[i].Data)}}))
	}
	document, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	return post(ctx, s, model, append(document, data...), len(document))
}

func describe(t *tensor.Tensor, j jsonTensor) jsonTensor {
	j.Name, j.Datatype, j.Shape = t.Name, t.Type.String(), append([]int64{}, t.Shape...)
	return j
}

const headerLength = "Inference-Header-Content-Length"

// post sends a body whose first bytes are JSON; -1 means all.
func post(ctx context.Context, s *servertest.Server, model string, body []byte, header int) ([]tensor.Tensor, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.HTTP+"/v2/models/"+model+"/infer", bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if header >= 0 {
		req.Header.Set(headerLength, strconv.Itoa(header))
	}
	status, headers, answer, err := servertest.Fetch(req)
	if err != nil {
		return nil, err
	}
	if status != http.StatusOK {
		return nil, fmt.Errorf("status %d: %s", status, answer)
	}
	var rest []byte
	if length := headers.Get(headerLength); length != "" {
		n, err := strconv.Atoi(length)
		if err != nil {
			return nil, err
		}
		answer, rest = answer[:n], answer[n:]
	}
	var got struct{ Outputs []jsonTensor }
	if err := json.Unmarshal(answer, &got); err != nil {
		return nil, fmt.Errorf("%w: %s", err, answer)
	}
	var out []tensor.Tensor
	for _, j := range got.Outputs {
		t := tensor.Tensor{Name: j.Name, Shape: j.Shape}
		t.Type, _ = tensor.ParseType(j.Datatype)
		if j.Parameters != nil {
			t.Data, rest = rest[:j.Parameters.Size], rest[j.Parameters.Size:]
		} else if t.Data, err = spellings[t.Type].read(j.Data); err != nil {
			return nil, fmt.Errorf("output %s: %w", t.Name, err)
		}
		out = append(out, t)
	}
	if len(rest) > 0 {
		return nil, fmt.Errorf("%d bytes behind the last output", len(rest))
	}
	return out, nil
}

// A call asks one request over gRPC.
type call func(context.Context, *kservepb.ModelInferRequest, ...grpc.CallOption) (*kservepb.ModelInferResponse, error)

// onStream asks a request on a stream of its own.
func onStream(c kservepb.GRPCInferenceServiceClient) call {
	return func(ctx context.Context, req *kservepb.ModelInferRequest, opts ...grpc.CallOption) (*kservepb.ModelInferResponse, error) {
		stream, err := c.ModelStreamInfer(ctx, opts...)
		if err != nil {
			return nil, err
		}
		if err := errors.Join(stream.Send(req), stream.CloseSend()); err != nil {
			return nil, err
		}
		out, err := stream.Recv()
		if err != nil {
			return nil, err
		}
		if out.GetErrorMessage() != "" {
			return nil, errors.New(out.GetErrorMessage())
		}
		if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("the stream ended with %w", err)
		}
		return out.GetInferResponse(), nil
	}
}

func sendGRPC(ctx context.Context, ask call, model string, in []tensor.Tensor, spelled bool) ([]tensor.Tensor, error) {
	req := &kservepb.ModelInferRequest{ModelName: model}
	for i := range in {
		input := &kservepb.ModelInferRequest_InferInputTensor{Name: in[i].Name, Datatype: in[i].Type.String(), Shape: in[i].Shape}
		if spelled {
			input.Contents = contents(&in[i])
		} else {
			req.RawInputContents = append(req.RawInputContents, in[i].Data)
		}
		req.Inputs = append(req.Inputs, input)
	}
	resp, err := ask(ctx, req)
	if err != nil {
		return nil, err
	}
	var out []tensor.Tensor
	for i, o := range resp.GetOutputs() {
		t := tensor.Tensor{Name: o.GetName(), Shape: o.GetShape(), Data: resp.GetRawOutputContents()[i]}
		t.Type, _ = tensor.ParseType(o.GetDatatype())
		out = append(out, t)
	}
	return out, nil
}

// contents are the elements of a tensor in the fields that gRPC has for them.
func contents(t *tensor.Tensor) *kservepb.InferTensorContents {
	c := &kservepb.InferTensorContents{}
	switch t.Type {
	case tensor.Bool:
		c.BoolContents = elements[bool](t)
	case tensor.Int8:
		c.IntContents = widened[int32](elements[int8](t))
	case tensor.Int16:
		c.IntContents = widened[int32](elements[int16](t))
	case tensor.Int32:
		c.IntContents = elements[int32](t)
	case tensor.Int64:
		c.Int64Contents = elements[int64](t)
	case tensor.Uint8:
		c.UintContents = widened[uint32](elements[uint8](t))
	case tensor.Uint16:
		c.UintContents = widened[uint32](elements[uint16](t))
	case tensor.Uint32:
		c.UintContents = elements[uint32](t)
	case tensor.Uint64:
		c.Uint64Contents = elements[uint64](t)
	case tensor.FP32:
		c.Fp32Contents = elements[float32](t)
	case tensor.FP64:
		c.Fp64Contents = elements[float64](t)
	case tensor.Bytes:
		c.BytesContents = slices.Collect(t.Strings())
	default:
		panic(t.Type.String() + " travels only as raw contents")
	}
	return c
}

// elements returns a copy of a tensor's elements, wherever its data begins.
func elements[T tensor.Number](t *tensor.Tensor) []T {
	all := make([]T, len(t.Data)/t.Type.Size())
	copy(tensor.Data(all), t.Data)
	return all
}

func widened[To, From int8 | int16 | int32 | uint8 | uint16 | uint32](values []From) []To {
	all := make([]To, len(values))
	for i, v := range values {
		all[i] = To(v)
	}
	return all
}

// A spelling is how elements of a type are written as JSON.
type spelling struct {
	write func(*tensor.Tensor) ([]byte, error)
	read  func([]byte) ([]byte, error)
}

var spellings = map[tensor.Type]spelling{
	tensor.Bool: numbers[bool](), tensor.Uint16: numbers[uint16](), tensor.Uint32: numbers[uint32](), tensor.Uint64: numbers[uint64](),
	tensor.Int8: numbers[int8](), tensor.Int16: numbers[int16](), tensor.Int32: numbers[int32](), tensor.Int64: numbers[int64](),
	tensor.FP32: numbers[float32](), tensor.FP64: numbers[float64](),
	tensor.Uint8: {
		// The library writes bytes as text.
		write: func(t *tensor.Tensor) ([]byte, error) { return json.Marshal(widened[uint32](elements[uint8](t))) },
		read:  numbers[uint8]().read,
	},
	tensor.Bytes: {
		write: func(t *tensor.Tensor) ([]byte, error) {
			all := []string{}
			for s := range t.Strings() {
				all = append(all, string(s))
			}
			return json.Marshal(all)
		},
		read: func(text []byte) (data []byte, err error) {
			var all []string
			err = json.Unmarshal(text, &all)
			for _, s := range all {
				data = tensor.AppendString(data, s)
			}
			return data, err
		},
	},
}

func numbers[T tensor.Number]() spelling {
	return spelling{
		write: func(t *tensor.Tensor) ([]byte, error) { return json.Marshal(elements[T](t)) },
		read: func(text []byte) ([]byte, error) {
			var all []T
			err := json.Unmarshal(text, &all)
			return tensor.Data(all), err
		},
	}
}
