package kserve

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/buf"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/tensor"
)

// body returns a body with a JSON document followed by binary data, and the value of the
// length header.
func body(doc, data string) (*buf.Buf, DecodeOptions) {
	b := buf.Get(len(doc) + len(data))
	copy(b.B, doc+data)
	return b, DecodeOptions{Model: "m", JSONLength: strconv.Itoa(len(doc))}
}

func decode(t *testing.T, doc string) *Request {
	t.Helper()
	b, o := body(doc, "")
	defer b.Release()
	req, err := DecodeRequest(t.Context(), b, o, nil)
	if err != nil {
		t.Fatalf("%s: %v", doc, err)
	}
	t.Cleanup(req.Memory.Release)
	return req
}

func TestBinaryInputsAreViewsOfTheBody(t *testing.T) {
	doc := `{"inputs":[{"name":"A","shape":[2],"datatype":"UINT8","parameters":{"binary_data_size":2}},
		{"name":"B","shape":[3],"datatype":"UINT8","parameters":{"binary_data_size":3}}]}`
	b, o := body(doc, "12345")
	defer b.Release()
	req, err := DecodeRequest(t.Context(), b, o, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer req.Memory.Release()
	if req.Memory != b {
		t.Error("the memory of the request is not the body")
	}
	b.B[len(doc)], b.B[len(doc)+2] = 'x', 'y'
	if got := string(req.Inputs[0].Data) + " " + string(req.Inputs[1].Data); got != "x2 y45" {
		t.Errorf("data %s after the body has changed, want x2 y45", got)
	}
}

func TestTheBodyIsLetGoOfWhenAllInputsAreJSON(t *testing.T) {
	released := false
	doc := []byte(`{"inputs":[{"name":"A","shape":[2],"datatype":"INT32","data":[1,-2]}]}`)
	b := buf.Wrap(doc, func() { released = true })
	req, err := DecodeRequest(t.Context(), b, DecodeOptions{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer req.Memory.Release()
	b.Release()
	if !released {
		t.Error("the request still holds the body")
	}
	if want := []byte{1, 0, 0, 0, 0xfe, 0xff, 0xff, 0xff}; !bytes.Equal(req.Inputs[0].Data, want) {
		t.Errorf("data %x, want %x", req.Inputs[0].Data, want)
	}
}

func TestInputsOfBothKindsHoldBothMemories(t *testing.T) {
	released := false
	doc := `{"inputs":[{"data":["a","bc"],"name":"A","shape":[2],"datatype":"BYTES"},
		{"name":"B","parameters":{"binary_data_size":3},"shape":[3],"datatype":"UINT8"},
		{"name":"C","shape":[1],"datatype":"FP64","data":[[0.5]]}]}`
	b := buf.Wrap([]byte(doc+"xyz"), func() { released = true })
	req, err := DecodeRequest(t.Context(), b, DecodeOptions{JSONLength: strconv.Itoa(len(doc))}, nil)
	if err != nil {
		t.Fatal(err)
	}
	b.Release()
	if released {
		t.Error("the request has let go of the body that its second input is in")
	}
	for i, want := range []string{"\x01\x00\x00\x00a\x02\x00\x00\x00bc", "xyz", "\x00\x00\x00\x00\x00\x00\xe0\x3f"} {
		if got := string(req.Inputs[i].Data); got != want {
			t.Errorf("input %d: %q, want %q", i, got, want)
		}
	}
	if v, err := tensor.View[float64](&req.Inputs[2]); err != nil || v[0] != 0.5 {
		t.Errorf("C is %v, %v, want 0.5", v, err)
	}
	req.Memory.Release()
	if !released {
		t.Error("nobody let go of the body")
	}
}

func TestParametersOfARequestAreRead(t *testing.T) {
	req := decode(t, `{"id":"a\u0062","parameters":{"priority":3,"timeout":1500,"sequence_id":7,"mine":{"deep":[1]}},"inputs":[]}`)
	if req.ID != "ab" || req.Priority != 3 || req.Timeout != 1500*time.Microsecond {
		t.Errorf("id %q, priority %d, timeout %v, want ab, 3, 1.5ms", req.ID, req.Priority, req.Timeout)
	}
	if req.Correlation != 7 || req.CorrelationName != "" {
		t.Errorf("sequence %d %q, want 7", req.Correlation, req.CorrelationName)
	}
	req = decode(t, `{"parameters":{"sequence_id":"seven"},"inputs":[]}`)
	if req.Correlation != 0 || req.CorrelationName != "seven" {
		t.Errorf("sequence %d %q, want seven", req.Correlation, req.CorrelationName)
	}
	req = decode(t, `{"parameters":{"timeout":18446744073709551615},"inputs":[]}`)
	if req.Timeout < 290*365*24*time.Hour {
		t.Errorf("the longest timeout is %v", req.Timeout)
	}
}

func TestARawBodyIsTheDataOfAnInputThatSaysNothingElse(t *testing.T) {
	b, o := body("", "abcd")
	defer b.Release()
	req, err := DecodeRequest(t.Context(), b, o, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer req.Memory.Release()
	if in := req.Inputs[0]; in.Name != "" || in.Type != tensor.Invalid || in.Shape != nil || string(in.Data) != "abcd" {
		t.Errorf("input %+v", in)
	}
	if !req.isBinary("any") {
		t.Error("the answer is not binary")
	}
}

func TestWhatAClientCanChooseIsLimited(t *testing.T) {
	numbers := strings.Repeat("1,", 999) + "1"
	deep := strings.Repeat("[", defaults.Depth) + strings.Repeat("]", defaults.Depth) // plus the enclosing document
	for name, doc := range map[string]string{
		"the memory of tensors":       `{"inputs":[{"name":"A","shape":[1000],"datatype":"FP64","data":[` + numbers + `]}]}`,
		"the memory of all tensors":   `{"inputs":[` + strings.Repeat(`{"name":"A","shape":[10],"datatype":"FP64","data":[1,1,1,1,1,1,1,1,1,1]},`, 60) + `{}]}`,
		"elements that were not sent": `{"inputs":[{"name":"A","shape":[4000000000],"datatype":"FP64","data":[1]}]}`,
		"elements beyond counting":    `{"inputs":[{"name":"A","shape":[4000000000,4000000000],"datatype":"FP64","data":[1]}]}`,
		"dimensions beyond counting":  `{"inputs":[{"name":"A","shape":[9223372036854775808],"datatype":"FP64","data":[1]}]}`,
		"binary data beyond the body": `{"inputs":[{"name":"A","shape":[1],"datatype":"FP64","parameters":{"binary_data_size":18446744073709551615}}]}`,
		"depth of data":               `{"inputs":[{"name":"A","shape":[0],"datatype":"FP64","data":` + deep + `}]}`,
		"depth of what is not read":   `{"other":` + deep + `,"inputs":[]}`,
		"depth of parameters":         `{"parameters":{"x":` + deep + `},"inputs":[]}`,
	} {
		b, o := body(doc, "")
		o.Limits.Decoded = 4096
		req, err := DecodeRequest(t.Context(), b, o, nil)
		if infer.CodeOf(err) != infer.Invalid {
			t.Errorf("%s: error %v", name, err)
		}
		if err == nil {
			req.Memory.Release()
		}
		b.Release()
	}
}

// For any input, a request is either rejected or complete, and all memory is released.
func FuzzDecodeRequest(f *testing.F) {
	f.Add([]byte(`{"id":"1","parameters":{"priority":1,"timeout":5,"binary_data_output":true},"inputs":[{"name":"A","shape":[1,2],"datatype":"FP32","data":[[1,2.5e3]]}],"outputs":[{"name":"B","parameters":{"binary_data":true}}]}`), "", "")
	f.Add([]byte(`{"inputs":[{"name":"A","shape":[2],"datatype":"BYTES","data":["a","\u00e9"]},{"name":"B","shape":[3],"datatype":"UINT8","parameters":{"binary_data_size":3}}]}`), "xyz", "156")
	f.Add([]byte(`{"inputs":[{"name":"A","shape":[2],"datatype":"BOOL","data":[true,false]}]} `), "", "")
	f.Add([]byte(`raw`), "data", "0")
	f.Fuzz(func(t *testing.T, doc []byte, data, length string) {
		before := buf.Live()
		b := buf.Wrap(append(bytes.Clone(doc), data...), nil)
		o := DecodeOptions{Model: "m", JSONLength: length, Limits: Limits{Decoded: 1 << 16}}
		req, err := DecodeRequest(t.Context(), b, o, nil)
		if err == nil {
			checkDecoded(t, req, length == "")
			checkAgain(t, req, b, o)
			req.Memory.Release()
		} else if code := infer.CodeOf(err); code != infer.Invalid && code != infer.NotFound && code != infer.Unsupported {
			t.Errorf("code %v: %v", code, err)
		}
		b.Release()
		if live := buf.Live(); live != before {
			t.Errorf("%d buffers in use, %d before", live, before)
		}
	})
}

// checkAgain decodes a body again, which must yield the same.
func checkAgain(t *testing.T, first *Request, b *buf.Buf, o DecodeOptions) {
	t.Helper()
	second, err := DecodeRequest(t.Context(), b, o, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer second.Memory.Release()
	if !alike(*first, *second) {
		t.Errorf("first\n%+v, then\n%+v", first, second)
	}
}

// alike reports whether two requests are equal. Their memory may differ if its contents
// are equal, and functions are not compared.
func alike(a, b Request) bool {
	convert := (a.Convert == nil) == (b.Convert == nil)
	a.Memory, a.Convert, b.Memory, b.Convert = nil, nil, nil, nil
	return convert && reflect.DeepEqual(a, b)
}

func checkDecoded(t *testing.T, req *Request, allJSON bool) {
	if len(req.Outputs) != len(req.binaryOutputs) {
		t.Errorf("%d outputs, %d forms", len(req.Outputs), len(req.binaryOutputs))
	}
	for i := range req.Inputs {
		in := &req.Inputs[i]
		sum := 0
		for _, b := range in.Data {
			sum += int(b) // reads all of it, for the race detector and checkptr
		}
		if allJSON && len(in.Data) > 0 {
			if err := in.Check(); err != nil {
				t.Errorf("input %+v: %v", in, err)
			}
		}
	}
}

func TestAnswersAreWrittenInTheFormAskedFor(t *testing.T) {
	resp := &infer.Response{Model: "m", Version: "1", Outputs: []tensor.Tensor{
		{Name: "A", Type: tensor.Int16, Shape: []int64{2, 1}, Data: []byte{1, 0, 0xff, 0xff}},
		{Name: "B", Type: tensor.Bytes, Shape: []int64{2}, Data: tensor.AppendString(tensor.AppendString(nil, "é\"\n"), "")},
	}}
	const (
		head    = `"model_name":"m","model_version":"1","outputs":[`
		aJSON   = `{"name":"A","datatype":"INT16","shape":[2,1],"data":[1,-1]}`
		aBinary = `{"name":"A","datatype":"INT16","shape":[2,1],"parameters":{"binary_data_size":4}}`
		bJSON   = `{"name":"B","datatype":"BYTES","shape":[2],"data":["é\"\n",""]}`
		bBinary = `{"name":"B","datatype":"BYTES","shape":[2],"parameters":{"binary_data_size":12}}`
	)
	for _, c := range []struct{ asked, want, binary string }{
		{`"id":"7",`, `{"id":"7",` + head + aJSON + "," + bJSON + "]}", ""},
		{`"parameters":{"binary_data_output":true},`, "{" + head + aBinary + "," + bBinary + "]}", "\x01\x00\xff\xff\x04\x00\x00\x00é\"\n\x00\x00\x00\x00"},
		{`"outputs":[{"name":"B","parameters":{"binary_data":true}},{"name":"A"}],`, "{" + head + aJSON + "," + bBinary + "]}", "\x04\x00\x00\x00é\"\n\x00\x00\x00\x00"},
		{`"parameters":{"binary_data_output":true},"outputs":[{"name":"A"},{"name":"B"}],`, "{" + head + aJSON + "," + bJSON + "]}", ""},
	} {
		req := decode(t, "{"+c.asked+`"inputs":[]}`)
		got, err := req.AppendResponse(t.Context(), nil, resp)
		if err != nil || string(got) != c.want {
			t.Errorf("%s\n got %s, %v\nwant %s", c.asked, got, err, c.want)
		}
		var binary []byte
		for data := range req.Binary(resp) {
			binary = append(binary, data...)
		}
		if string(binary) != c.binary {
			t.Errorf("%s: binary %q, want %q", c.asked, binary, c.binary)
		}
	}
}

func TestWhatJSONCannotExpressIsRefused(t *testing.T) {
	for _, out := range []tensor.Tensor{
		{Type: tensor.FP32, Data: binary.LittleEndian.AppendUint32(nil, math.Float32bits(float32(math.Inf(1))))},
		{Type: tensor.FP64, Data: binary.LittleEndian.AppendUint64(nil, math.Float64bits(math.NaN()))},
		{Type: tensor.FP16, Data: []byte{0, 0}},
		{Type: tensor.BF16, Data: []byte{0, 0}},
		{Type: tensor.Bytes, Data: tensor.AppendString(nil, "\xff")},
	} {
		req := &Request{}
		resp := &infer.Response{Outputs: []tensor.Tensor{out}}
		if _, err := req.AppendResponse(t.Context(), nil, resp); infer.CodeOf(err) != infer.Invalid {
			t.Errorf("%v: error %v", out.Type, err)
		}
		req.binary = true
		if _, err := req.AppendResponse(t.Context(), nil, resp); err != nil {
			t.Errorf("%v, binary: %v", out.Type, err)
		}
	}
}

func TestFloatsAreWrittenAsTritonWritesThem(t *testing.T) {
	for want, f := range map[string]float64{
		"1.0":                     1,
		"-0.0":                    math.Copysign(0, -1),
		"0.1":                     0.1,
		"0.10000000149011612":     float64(float32(0.1)),
		"100000000.0":             1e8,
		"123456789.125":           123456789.125,
		"1e300":                   1e300,
		"3.3999999521443642e38":   float64(float32(3.4e38)),
		"1.0000000116860974e-7":   float64(float32(1e-7)),
		"1.000000013351432e-10":   float64(float32(1e-10)),
		"0.000001":                1e-6,
		"100000000000000000000.0": 1e20,
		"1e21":                    1e21,
		"-1.5e-10":                -1.5e-10,
	} {
		if got, ok := appendFloat(nil, f); !ok || string(got) != want {
			t.Errorf("%v is written %s, want %s", f, got, want)
		}
	}
}

func TestEveryErrorHasAStatus(t *testing.T) {
	for code := infer.Internal; code <= infer.Cancelled; code++ {
		if HTTPStatus(code) < 400 || GRPCCode(code) == 0 {
			t.Errorf("%v: HTTP %d, gRPC %v", code, HTTPStatus(code), GRPCCode(code))
		}
	}
}

func TestVersionsAreNumbers(t *testing.T) {
	for version, want := range map[string]bool{
		"": true, "1": true, "20260101": true, "abc": false, "-1": false, "1.0": true, "1..0": false, "1.": false, "1a2": false, "..": false,
		"9223372036854775807": true, "09223372036854775807": false, strings.Repeat("1", 5000): false,
	} {
		if got := ValidVersion(version); got != want {
			t.Errorf("%q: %t", version, got)
		}
	}
}

func BenchmarkDecodeRequest(b *testing.B) {
	floats := bytes.Repeat([]byte("0.12345678,"), 3200)
	for name, c := range map[string]struct{ doc, data string }{
		"json":   {`{"inputs":[{"name":"INPUT","shape":[1,3200],"datatype":"FP32","data":[` + string(floats[:len(floats)-1]) + `]}]}`, ""},
		"again":  {`{"inputs":[{"name":"INPUT","shape":[1,3200],"datatype":"FP32","parameters":{"binary_data_size":12800}}],"outputs":[{"name":"OUTPUT","parameters":{"binary_data":true}}]}`, string(make([]byte, 12800))},
		"binary": {`{"id":"1","inputs":[{"name":"INPUT","shape":[1,3200],"datatype":"FP32","parameters":{"binary_data_size":12800}}],"outputs":[{"name":"OUTPUT","parameters":{"binary_data":true}}]}`, string(make([]byte, 12800))},
	} {
		b.Run(name, func(b *testing.B) {
			bytes, o := body(c.doc, c.data)
			defer bytes.Release()
			b.ReportAllocs()
			for b.Loop() {
				req, err := DecodeRequest(b.Context(), bytes, o, nil)
				if err != nil {
					b.Fatal(err)
				}
				req.Memory.Release()
			}
		})
	}
}

func BenchmarkAppendResponse(b *testing.B) {
	var data []byte
	for i := range 3200 {
		data = binary.LittleEndian.AppendUint32(data, math.Float32bits(float32(math.Sin(float64(i)))))
	}
	resp := &infer.Response{Model: "m", Version: "1", Outputs: []tensor.Tensor{{Name: "A", Type: tensor.FP32, Shape: []int64{1, 3200}, Data: data}}}
	for _, binary := range []bool{false, true} {
		b.Run(fmt.Sprintf("binary=%t", binary), func(b *testing.B) {
			req, dst := &Request{binary: binary}, make([]byte, 0, 1<<20)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := req.AppendResponse(b.Context(), dst, resp); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func TestAPooledResponseIsAsNew(t *testing.T) {
	resp := GetResponse()
	resp.Last, resp.Empty = true, true
	PutResponse(resp)
	if resp.Last || resp.Empty || resp.Stream != nil {
		t.Errorf("the next request gets a response that is the last (%t) and has no outputs (%t)", resp.Last, resp.Empty)
	}
}
