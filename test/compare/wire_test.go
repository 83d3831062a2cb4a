package main

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strconv"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/shoal-serving/shoal/internal/kserve/kservepb"
	"github.com/shoal-serving/shoal/tensor"
)

func TestAnAnswerIsReadAsEachServerWritesIt(t *testing.T) {
	want := floatBytes([]float32{1, 2.5})
	list, _ := json.Marshal([]string{base64.StdEncoding.EncodeToString(want)})
	raw, _ := proto.Marshal(&kservepb.ModelInferResponse{Outputs: []*kservepb.ModelInferResponse_InferOutputTensor{{}}, RawOutputContents: [][]byte{want}})
	spelled, _ := proto.Marshal(&kservepb.ModelInferResponse{Outputs: []*kservepb.ModelInferResponse_InferOutputTensor{{Contents: &kservepb.InferTensorContents{Fp32Contents: []float32{1, 2.5}}}}})
	const head = `{"outputs":[]}`
	for name, c := range map[string]struct {
		wire *wire
		body []byte
	}{
		"bytes":             {asBytes("/"), want},
		"litserve":          {litserve, want},
		"bentoml":           {bentoml, list},
		"KServe, binary":    {kserveBinary, append([]byte(head), want...)},
		"KServe, JSON":      {kserveJSON, []byte(`{"outputs":[{"data":[1,2.5]}]}`)},
		"KServe, gRPC":      {kserveGRPC, raw},
		"KServe, spelled":   {kserveGRPC, spelled},
		"TorchServe's gRPC": {torchserveGRPC, appendField(nil, 1, want)},
	} {
		got, err := c.wire.decode(http.Header{"Inference-Header-Content-Length": {strconv.Itoa(len(head))}}, c.body)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: got %v, %v, want %v", name, got, err, want)
		}
	}
}

func TestARequestIsWrittenAsEachServerReadsIt(t *testing.T) {
	in := []tensor.Tensor{
		{Name: "ids", Type: tensor.Int64, Shape: []int64{1, 2}, Data: []byte{1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0}},
		{Name: "x", Type: tensor.FP32, Shape: []int64{1, 1}, Data: floatBytes([]float32{0.5})},
	}
	for name, c := range map[string]struct {
		wire *wire
		want string
	}{
		"bytes":        {asBytes("/"), string(joined(in))},
		"litserve":     {litserve, `{"b64":"AQAAAAAAAAACAAAAAAAAAAAAAD8="}`},
		"bentoml":      {bentoml, `{"x":["AQAAAAAAAAACAAAAAAAAAAAAAD8="]}`},
		"KServe, JSON": {kserveJSON, `{"inputs":[{"name":"ids","datatype":"INT64","shape":[1,2],"data":[1,2]},{"name":"x","datatype":"FP32","shape":[1,1],"data":[0.5]}]}`},
	} {
		if _, got, err := c.wire.encode(in); err != nil || string(got) != c.want {
			t.Errorf("%s: got %s, %v, want %s", name, got, err, c.want)
		}
	}
}

func TestAnAnswerIsTheSameUpToItsLastDigits(t *testing.T) {
	want := floatBytes([]float32{1, 1000})
	for _, c := range []struct {
		answer []float32
		same   bool
	}{{[]float32{1.0005, 1000.5}, true}, {[]float32{1.01, 1000}, false}, {[]float32{1}, false}} {
		if err := same(floatBytes(c.answer), want); (err == nil) != c.same {
			t.Errorf("%v: got %v, want the same: %v", c.answer, err, c.same)
		}
	}
}
