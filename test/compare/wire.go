package main

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/shoal-serving/shoal/internal/kserve/kservepb"
	"github.com/shoal-serving/shoal/tensor"
)

// modelName is what all servers call the model.
const modelName = "m"

// A wire is how a server wants to be asked. What is measured are these bytes, so that a
// client that encodes each request anew takes no part in it.
type wire struct {
	path string // over gRPC the full name of the method
	// encode returns further lines of an HTTP header, and the body or the message.
	encode func(in []tensor.Tensor) (header string, body []byte, err error)
	// decode returns the bytes of the first output. It is nil where a server speaks KServe
	// v2: the public client asks it for the answer that is checked.
	decode func(header http.Header, body []byte) ([]byte, error)
}

const (
	plainBytes = "Content-Type: application/octet-stream\r\n"
	plainJSON  = "Content-Type: application/json\r\n"
)

// asBytes sends the inputs one behind the other, and gets the output back like that.
func asBytes(path string) *wire {
	return &wire{path, func(in []tensor.Tensor) (string, []byte, error) { return plainBytes, joined(in), nil }, asItIs}
}

func asItIs(_ http.Header, body []byte) ([]byte, error) { return body, nil }

func joined(in []tensor.Tensor) (all []byte) {
	for _, t := range in {
		all = append(all, t.Data...)
	}
	return all
}

// litserve takes bytes in JSON, and answers with bytes.
var litserve = &wire{"/predict", func(in []tensor.Tensor) (string, []byte, error) {
	body, err := json.Marshal(map[string][]byte{"b64": joined(in)})
	return plainJSON, body, err
}, asItIs}

// bentoml takes and gives a list of bytes in JSON.
var bentoml = &wire{
	"/predict",
	func(in []tensor.Tensor) (string, []byte, error) {
		body, err := json.Marshal(map[string][][]byte{"x": {joined(in)}})
		return plainJSON, body, err
	},
	func(_ http.Header, body []byte) ([]byte, error) {
		var all []string
		if err := json.Unmarshal(body, &all); err != nil || len(all) != 1 {
			return nil, fmt.Errorf("found %.60q, expected a list of one answer", body)
		}
		return base64.StdEncoding.DecodeString(all[0])
	},
}

type jsonInput struct {
	Name       string         `json:"name"`
	Datatype   string         `json:"datatype"`
	Shape      []int64        `json:"shape"`
	Parameters map[string]int `json:"parameters,omitempty"`
	Data       any            `json:"data,omitempty"`
}

// kserveBinary is KServe v2 over HTTP with binary tensors, both ways.
var kserveBinary = &wire{
	"/v2/models/" + modelName + "/infer",
	func(in []tensor.Tensor) (string, []byte, error) {
		var inputs []jsonInput
		for _, t := range in {
			inputs = append(inputs, jsonInput{Name: t.Name, Datatype: t.Type.String(), Shape: t.Shape, Parameters: map[string]int{"binary_data_size": len(t.Data)}})
		}
		head, err := json.Marshal(map[string]any{"inputs": inputs, "parameters": map[string]bool{"binary_data_output": true}})
		return fmt.Sprintf("%sInference-Header-Content-Length: %d\r\n", plainBytes, len(head)), append(head, joined(in)...), err
	},
	nil,
}

// kserveJSON is KServe v2 over HTTP with numbers in JSON.
var kserveJSON = &wire{
	kserveBinary.path,
	func(in []tensor.Tensor) (string, []byte, error) {
		var inputs []jsonInput
		for _, t := range in {
			inputs = append(inputs, jsonInput{Name: t.Name, Datatype: t.Type.String(), Shape: t.Shape, Data: numbers(t)})
		}
		body, err := json.Marshal(map[string]any{"inputs": inputs})
		return plainJSON, body, err
	},
	nil,
}

// numbers returns the elements of a tensor, of a type that the models here have.
func numbers(t tensor.Tensor) any {
	if t.Type == tensor.Int64 {
		var all []int64
		for data := t.Data; len(data) > 0; data = data[8:] {
			all = append(all, int64(binary.LittleEndian.Uint64(data)))
		}
		return all
	}
	return floats(t.Data)
}

func floats(data []byte) (all []float32) {
	for ; len(data) >= 4; data = data[4:] {
		all = append(all, math.Float32frombits(binary.LittleEndian.Uint32(data)))
	}
	return all
}

func floatBytes(all []float32) (data []byte) {
	for _, v := range all {
		data = binary.LittleEndian.AppendUint32(data, math.Float32bits(v))
	}
	return data
}

// kserveGRPC is KServe v2 over gRPC, with raw tensors.
var kserveGRPC = &wire{
	kservepb.GRPCInferenceService_ModelInfer_FullMethodName,
	func(in []tensor.Tensor) (string, []byte, error) {
		req := &kservepb.ModelInferRequest{ModelName: modelName}
		for _, t := range in {
			req.Inputs = append(req.Inputs, &kservepb.ModelInferRequest_InferInputTensor{Name: t.Name, Datatype: t.Type.String(), Shape: t.Shape})
			req.RawInputContents = append(req.RawInputContents, t.Data)
		}
		body, err := proto.Marshal(req)
		return "", body, err
	},
	nil,
}

// torchserveGRPC is TorchServe's own service: a name and a map of bytes there, bytes back.
var torchserveGRPC = &wire{
	"/org.pytorch.serve.grpc.inference.InferenceAPIsService/Predictions",
	func(in []tensor.Tensor) (string, []byte, error) {
		entry := appendField(appendField(nil, 1, []byte("data")), 2, joined(in))
		return "", appendField(appendField(nil, 1, []byte(modelName)), 3, entry), nil
	},
	func(_ http.Header, body []byte) ([]byte, error) {
		number, kind, n := protowire.ConsumeTag(body)
		if n < 0 || number != 1 || kind != protowire.BytesType {
			return nil, errors.New("the answer has no prediction")
		}
		data, m := protowire.ConsumeBytes(body[n:])
		return data, protowire.ParseError(min(m, 0))
	},
}

func appendField(message []byte, number protowire.Number, data []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(message, number, protowire.BytesType), data)
}

// same reports whether an answer holds the numbers that the bare engine gives. Other
// versions of the engine, and numbers that were text, differ in the last digits.
func same(answer, want []byte) error {
	if bytes.Equal(answer, want) {
		return nil
	}
	got, expected := floats(answer), floats(want)
	if len(got) != len(expected) {
		return fmt.Errorf("answered with %d numbers, expected %d", len(got), len(expected))
	}
	for i := range got {
		if d := math.Abs(float64(got[i] - expected[i])); !(d <= 1e-3*max(1, math.Abs(float64(expected[i])))) {
			return fmt.Errorf("number %d of the answer is %v, expected %v", i, got[i], expected[i])
		}
	}
	return nil
}
