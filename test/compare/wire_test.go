package main

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/shoal-serving/shoal/internal/kserve/kservepb"
	"github.com/shoal-serving/shoal/tensor"
)

func TestAnAnswerIsReadAsEachServerWritesIt(t *testing.T) {
	want := floatBytes([]float32{1, 2.5})
	list, _ := json.Marshal([]string{base64.StdEncoding.EncodeToString(want)})
	for name, c := range map[string]struct {
		wire *wire
		body []byte
	}{
		"bytes":             {asBytes("/"), want},
		"litserve":          {litserve, want},
		"bentoml":           {bentoml, list},
		"TorchServe's gRPC": {torchserveGRPC, appendField(nil, 1, want)},
	} {
		got, err := c.wire.decode(nil, c.body)
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
	var message kservepb.ModelInferRequest
	if _, body, err := kserveGRPC.encode(in); err != nil || proto.Unmarshal(body, &message) != nil || message.GetModelName() != modelName ||
		len(message.GetInputs()) != 2 || message.GetInputs()[0].GetDatatype() != "INT64" || !bytes.Equal(bytes.Join(message.GetRawInputContents(), nil), joined(in)) {
		t.Errorf("KServe, gRPC: %v, %v", &message, err)
	}
	for name, c := range map[string]struct {
		wire *wire
		want string
	}{
		"bytes":    {asBytes("/"), string(joined(in))},
		"litserve": {litserve, `{"b64":"AQAAAAAAAAACAAAAAAAAAAAAAD8="}`},
		"bentoml":  {bentoml, `{"x":["AQAAAAAAAAACAAAAAAAAAAAAAD8="]}`},
		"KServe, binary": {kserveBinary, `{"inputs":[{"name":"ids","datatype":"INT64","shape":[1,2],"parameters":{"binary_data_size":16}},` +
			`{"name":"x","datatype":"FP32","shape":[1,1],"parameters":{"binary_data_size":4}}],"parameters":{"binary_data_output":true}}` + string(joined(in))},
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
