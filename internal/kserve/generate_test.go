package kserve

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-serving/shoal/internal/buf"
	"github.com/shoal-serving/shoal/internal/catalog"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/tensor"
)

// textModel has the inputs of a model that generates text.
var textModel = []catalog.Tensor{
	{Name: "text", Type: tensor.Bytes, Shape: []int64{-1, 1}},
	{Name: "seed", Type: tensor.Int32, Shape: []int64{1}},
	{Name: "flag", Type: tensor.Bool, Shape: []int64{-1}},
	{Name: "half", Type: tensor.FP16, Shape: []int64{1}},
}

func decodeGenerate(doc string) (*Request, error) {
	b := buf.Wrap([]byte(doc), nil)
	defer b.Release()
	return DecodeGenerate(context.Background(), b, textModel, DecodeOptions{Model: "m", Version: "3"}, nil)
}

func TestAMemberNamedLikeAnInputBecomesThatTensor(t *testing.T) {
	for doc, want := range map[string]string{
		`{"text":"a\n"}`:                         `text BYTES[1,1] "\x02\x00\x00\x00a\n"`,
		`{"text":["a","",  "]"]}`:                `text BYTES[3,1] "\x01\x00\x00\x00a\x00\x00\x00\x00\x01\x00\x00\x00]"`,
		`{"seed":-2}`:                            `seed INT32[1] "\xfe\xff\xff\xff"`,
		`{"seed":[7]}`:                           `seed INT32[1] "\a\x00\x00\x00"`,
		`{"flag":true}`:                          `flag BOOL[1] "\x01"`,
		`{"flag":[[false,true],[true]]}`:         `flag BOOL[3] "\x00\x01\x01"`,
		`{"flag":[]}`:                            `flag BOOL[0] ""`,
		`{"parameters":{"seed":1},"flag":false}`: `seed INT32[1] "\x01\x00\x00\x00"; flag BOOL[1] "\x00"`,
	} {
		req, err := decodeGenerate(doc)
		if err != nil {
			t.Errorf("%s: %v", doc, err)
			continue
		}
		var got []string
		for _, in := range req.Inputs {
			got = append(got, fmt.Sprintf("%s %v%s %q", in.Name, in.Type, strings.ReplaceAll(tensor.ShapeText(in.Shape), " ", ""), in.Data))
		}
		if text := strings.Join(got, "; "); text != want || len(req.Parameters) > 0 {
			t.Errorf("%s: %s with parameters %v, want %s", doc, text, req.Parameters, want)
		}
		req.Memory.Release()
	}
}

func TestOtherMembersBecomeParameters(t *testing.T) {
	req, err := decodeGenerate(`{"id":"x","priority":1,"timeout":2.5,"parameters":{"triton_mode":true,"stop":"\u0041","parameter":18446744073709551615}}`)
	if err != nil {
		t.Fatal(err)
	}
	defer req.Memory.Release()
	want := []infer.Parameter{
		{Name: "id", Value: "x"},
		{Name: "priority", Value: int64(1)},
		{Name: "timeout", Value: 2.5},
		{Name: "triton_mode", Value: true},
		{Name: "stop", Value: "A"},
		{Name: "parameter", Value: uint64(18446744073709551615)},
	}
	if !reflect.DeepEqual(req.Parameters, want) || req.ID != "x" || req.Priority != 0 || req.Timeout != 0 {
		t.Errorf("%+v, want the id x, the parameters %v, and no priority", req.Request, want)
	}
	if req.Model != "m" || req.Version != "3" || !req.AcceptStream {
		t.Errorf("%+v, want any number of responses of version 3 of m", req.Request)
	}
}

func TestAnEmptyBodyHasNoMembers(t *testing.T) {
	for _, doc := range []string{"", "{}", `{"parameters":{}}`} {
		req, err := decodeGenerate(doc)
		if err != nil || len(req.Inputs)+len(req.Parameters) > 0 {
			t.Fatalf("%q: %v", doc, err)
		}
		req.Memory.Release()
	}
}

func TestInvalidBodiesOfGenerateAreRejected(t *testing.T) {
	for doc, want := range map[string]string{
		`[]`:                      `Unable to parse 'request': attempt to access JSON non-object as object`,
		`{"parameters":[]}`:       `Unable to parse 'parameters': attempt to access JSON non-object as object`,
		`{"parameters":{"p":{}}}`: `parameter 'p' has invalid type. It should be either 'int', 'bool', or 'string'.`,
		`{"p":null}`:              `parameter 'p' has invalid type. It should be either 'int', 'bool', or 'string'.`,
		`{"p":[1]}`:               `parameter 'p' has invalid type. It should be either 'int', 'bool', or 'string'.`,
		`{"p":tru}`:               `failed to parse the request JSON buffer: invalid character '}' in literal true (expecting 'e') after offset 8`,
		`{"p":}`:                  `failed to parse the request JSON buffer: missing value after object name after offset 5`,
		`{} {}`:                   `failed to parse the request JSON buffer: the document is followed by another`,
		`{"id":5}`:                `Unable to parse 'id': attempt to access JSON non-string as string`,
		`{"seed":[1,2]}`:          `The schema can not convert input 'seed' to tensor with proper shape`,
		`{"seed":[]}`:             `The schema can not convert input 'seed' to tensor with proper shape`,
		`{"seed":"1"}`:            `Unable to parse 'data': attempt to access JSON non-signed-integer as signed-integer at offset 8`,
		`{"seed":null}`:           `Unable to parse 'data': attempt to access JSON non-signed-integer as signed-integer at offset 8`,
		`{"seed":{"a":1}}`:        `The schema can not convert input 'seed' to tensor with proper shape`,
		`{"seed":1.5}`:            `Unable to parse 'data': attempt to access JSON non-signed-integer as signed-integer at offset 8`,
		`{"flag":["true"]}`:       `Unable to parse 'data': attempt to access JSON non-boolean as boolean at offset 9`,
		`{"flag":{}}`:             `Unable to parse 'data': attempt to access JSON non-boolean as boolean at offset 8`,
		`{"half":1}`:              `receiving FP16 data via JSON is not supported. Please use the binary data format for input half`,
	} {
		req, err := decodeGenerate(doc)
		if err == nil {
			req.Memory.Release()
		}
		if infer.CodeOf(err) != infer.Invalid || err.Error() != want {
			t.Errorf("%s: %v, want %s", doc, err, want)
		}
	}
}

func TestElementsAreDistributedOverTheDimensions(t *testing.T) {
	for _, tt := range []struct {
		dims     []int64
		elements int64
		want     []int64 // nil means that they do not fit
	}{
		{[]int64{1}, 1, []int64{1}},
		{[]int64{}, 1, []int64{}},
		{[]int64{}, 2, nil},
		{[]int64{-1}, 5, []int64{5}},
		{[]int64{-1}, 0, []int64{0}},
		{[]int64{-1, 4}, 8, []int64{2, 4}},
		{[]int64{-1, 4}, 6, nil},
		{[]int64{4, -1}, 8, []int64{4, 2}},
		{[]int64{-1, -1, 2}, 6, []int64{1, 3, 2}},
		{[]int64{2, 3}, 6, []int64{2, 3}},
		{[]int64{2, 3}, 12, nil},
		{[]int64{2, 3}, 0, nil},
		{[]int64{0}, 0, nil},
		{[]int64{-1, 0}, 1, nil},
	} {
		got, ok := generateShape(tt.dims, tt.elements)
		if ok != (tt.want != nil) || ok && !slices.Equal(got, tt.want) {
			t.Errorf("%d elements in %v: %v, %v, want %v", tt.elements, tt.dims, got, ok, tt.want)
		}
	}
}

func TestGeneratedResponsesHaveTheirMembersSorted(t *testing.T) {
	two := []byte{1, 0, 0, 0, 2, 0, 0, 0}
	resp := &infer.Response{
		Model: "m", Version: "1",
		Parameters: []infer.Parameter{{Name: "p", Value: 0.5}, {Name: "id", Value: "not the protocol's"}, {Name: "both", Value: true}},
		Outputs: []tensor.Tensor{
			{Name: "text", Type: tensor.Bytes, Shape: []int64{1, 1}, Data: tensor.AppendString(nil, "é\n")},
			{Name: "both", Type: tensor.Int32, Shape: []int64{1}, Data: two[:4]},
			{Name: "a", Type: tensor.Int32, Shape: []int64{2, 1}, Data: two},
			{Name: "none", Type: tensor.Int32, Shape: []int64{0}},
		},
	}
	req := &Request{Request: infer.Request{ID: "7"}}
	const want = `{"a":[1,2],"both":true,"id":"7","model_name":"m","model_version":"1","none":[],"p":0.5,"text":"é\n"}`
	if got, err := req.AppendGenerated(t.Context(), []byte("data: "), resp); err != nil || string(got) != "data: "+want {
		t.Errorf("%s, %v, want %s", got, err, want)
	}
	resp.Outputs[0].Data = tensor.AppendString(nil, "\xff")
	if got, err := req.AppendGenerated(t.Context(), nil, resp); infer.CodeOf(err) != infer.Invalid {
		t.Errorf("bytes that are not UTF-8 are sent as %s, %v", got, err)
	}
}

// For any body, a request is either rejected or complete, all memory is released, and a
// response with its inputs as outputs is valid JSON.
func FuzzDecodeGenerate(f *testing.F) {
	f.Add([]byte(`{"id":"1","text":["a","\u00e9"],"seed":-5,"flag":[true,[false]],"temperature":0.5,"parameters":{"stop":"x","n":3}}`))
	f.Add([]byte(`{"text":"\"[,]","flag":[ ]}`))
	f.Add([]byte(`{"seed":{"a":[1,"b"]},"half":1}`))
	f.Fuzz(func(t *testing.T, doc []byte) {
		before := buf.Live()
		b := buf.Wrap(doc, nil)
		req, err := DecodeGenerate(t.Context(), b, textModel, DecodeOptions{Model: "m", Limits: Limits{Decoded: 1 << 16}}, nil)
		if err != nil {
			if code := infer.CodeOf(err); code != infer.Invalid {
				t.Errorf("code %v: %v", code, err)
			}
		} else {
			for i := range req.Inputs {
				if err := req.Inputs[i].Check(); err != nil {
					t.Errorf("input %+v: %v", req.Inputs[i], err)
				}
			}
			answer, err := req.AppendGenerated(t.Context(), nil, &infer.Response{Model: "m", Version: "1", Outputs: req.Inputs, Parameters: req.Parameters})
			if err != nil || !json.Valid(answer) {
				t.Errorf("answer %s, %v", answer, err)
			}
			req.Memory.Release()
		}
		b.Release()
		if live := buf.Live(); live != before {
			t.Errorf("%d buffers in use, %d before", live, before)
		}
	})
}
