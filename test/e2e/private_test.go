//go:build e2e && linux

package e2e

import (
	"encoding/binary"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"

	"github.com/shoal-serving/shoal/internal/kserve/kservepb"
	"github.com/shoal-serving/shoal/test/servertest"
)

// secret is the data of the requests of these tests. It has the length of the data that
// the model m expects, so that it gets past checks of the size.
const secret = "PRIVATE-7f3a91d2"

// private fails if a text repeats request data.
func private(t *testing.T, what, text string) {
	t.Helper()
	for line := range strings.Lines(text) {
		if strings.Contains(line, secret[:12]) || strings.Contains(line, secret[4:]) { // a part would be bad enough
			t.Errorf("%s has the data of the request: %s", what, line)
		}
	}
}

// privateModels returns a server that logs all that it can: m has numbers as its input, and
// s strings.
func privateModels(t *testing.T) *servertest.Server {
	t.Helper()
	m := servertest.Config(time.Millisecond, "1", "")
	s := strings.Replace(strings.Replace(m, "TYPE_FP32", "TYPE_STRING", 1), "dims: [ 4 ]", "dims: [ 1 ]", 1) // of the input
	return servertest.Start(t, servertest.Repository(t, map[string]string{"m": m, "s": s}), "--log-verbose=1")
}

func TestWrongRequestsOverHTTPAreNotRepeated(t *testing.T) {
	s := privateModels(t)
	input := func(shape, datatype, data string) string {
		return fmt.Sprintf(`{"inputs":[{"name":"INPUT","shape":%s,"datatype":%q,"data":%s}]}`, shape, datatype, data)
	}
	quoted := `"` + secret + `"`
	header := `{"inputs":[{"name":"INPUT","shape":[1,1],"datatype":"BYTES","parameters":{"binary_data_size":%d}}]}`
	for _, tt := range []struct {
		what, model, body string
		header            string // a header and its value
	}{
		{"a string for a number", "m", input("[1,4]", "FP32", "["+quoted+",1,2,3]"), ""},
		{"too few elements", "s", input("[1,2]", "BYTES", "["+quoted+"]"), ""},
		{"too many elements", "s", input("[1,1]", "BYTES", "["+quoted+","+quoted+"]"), ""},
		{"an object for an element", "s", input("[1,1]", "BYTES", "[{"+quoted+":"+quoted+"}]"), ""},
		{"a broken object for an element", "s", input("[1,1]", "BYTES", "[{"+quoted+":{"+quoted+":"), ""},
		{"a string for an array", "s", input("[1,1]", "BYTES", quoted), ""},
		{"another datatype", "m", input("[1,4]", "BYTES", "["+quoted+","+quoted+","+quoted+","+quoted+"]"), ""},
		{"another shape", "s", input("[2,2]", "BYTES", "["+quoted+","+quoted+","+quoted+","+quoted+"]"), ""},
		{"more rows than allowed", "s", input("[9,1]", "BYTES", "["+strings.Repeat(quoted+",", 8)+quoted+"]"), ""},
		{"a shape of strings", "s", input("["+quoted+"]", "BYTES", "["+quoted+"]"), ""},
		{"an unknown datatype", "s", input("[1,1]", "string", "["+quoted+"]"), ""},
		{"an unknown input", "s", strings.Replace(input("[1,1]", "BYTES", "["+quoted+"]"), "INPUT", "OTHER", 1), ""},
		{"a body of another protocol", "s", `{"instances":[` + quoted + `]}`, ""},
		{"a string for the body", "s", quoted, ""},
		{"text that is not JSON", "s", secret, ""},
		{"a body that is cut off", "s", strings.TrimSuffix(input("[1,1]", "BYTES", "["+quoted+"]"), `"]}]}`), ""},
		{"text after the document", "s", input("[1,1]", "BYTES", "["+quoted+"]") + secret, ""},
		{"an invalid escape", "s", input("[1,1]", "BYTES", `["`+secret+`\q"]`), ""},
		{"invalid UTF-8", "s", input("[1,1]", "BYTES", "[\""+secret+"\xff\"]"), ""},
		{"data twice", "s", `{"inputs":[{"name":"INPUT","shape":[1,1],"datatype":"BYTES","data":[` + quoted + `],"data":[` + quoted + `]}]}`, ""},
		{"an unknown member", "s", `{` + quoted + `:` + quoted + `}`, ""},
		{"a timeout that is a text", "s", `{"parameters":{"timeout":` + quoted + `},"inputs":[]}`, ""},
		{"an unknown model", "nosuch", input("[1,1]", "BYTES", "["+quoted+"]"), ""},
		{"binary data of another size", "m", fmt.Sprintf(strings.Replace(strings.Replace(header, "[1,1]", "[1,4]", 1), "BYTES", "FP32", 1), len(secret)-1) + secret[1:], "Inference-Header-Content-Length"},
		{"strings whose length is too large", "s", fmt.Sprintf(header, len(secret)) + secret, "Inference-Header-Content-Length"},
		{"less binary data than announced", "s", fmt.Sprintf(header, 1000) + secret, "Inference-Header-Content-Length"},
		{"more binary data than announced", "s", fmt.Sprintf(header, 4) + "\x00\x00\x00\x00" + secret, "Inference-Header-Content-Length"},
		{"raw data of another size", "m", secret[1:], "Inference-Header-Content-Length: 0"},
		{"a header that is too long", "m", secret, "Inference-Header-Content-Length: 1000"},
		{"a body that is not compressed", "m", secret, "Content-Encoding: gzip"},
		{"an unknown compression", "m", secret, "Content-Encoding: br"},
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.HTTP+"/v2/models/"+tt.model+"/infer", strings.NewReader(tt.body))
		if err != nil {
			t.Fatal(err)
		}
		switch name, value, given := strings.Cut(tt.header, ": "); {
		case given:
			req.Header.Set(name, value)
		case name != "":
			req.Header.Set(name, strconv.Itoa(strings.LastIndex(tt.body, "]}")+2))
		}
		status, _, answer, err := servertest.Fetch(req)
		if err != nil || status < 400 {
			t.Errorf("%s: status %d, %v: %s", tt.what, status, err, answer)
		}
		private(t, "the answer to "+tt.what, string(answer))
	}
	s.Terminate()
	<-s.Ended
	private(t, "the log", s.Log())
}

// wrongMessages are requests over gRPC that the server refuses.
func wrongMessages() map[string]*kservepb.ModelInferRequest {
	type tensor = kservepb.ModelInferRequest_InferInputTensor
	strings := &kservepb.InferTensorContents{BytesContents: [][]byte{[]byte(secret)}}
	one := func(model string, t *tensor, raw ...[]byte) *kservepb.ModelInferRequest {
		return &kservepb.ModelInferRequest{ModelName: model, Inputs: []*tensor{t}, RawInputContents: raw}
	}
	long := binary.LittleEndian.AppendUint32(nil, uint32(len(secret)))
	long = append(long, secret...)
	return map[string]*kservepb.ModelInferRequest{
		"strings for numbers":          one("m", &tensor{Name: "INPUT", Datatype: "FP32", Shape: []int64{1, 4}, Contents: strings}),
		"another datatype":             one("m", &tensor{Name: "INPUT", Datatype: "BYTES", Shape: []int64{1, 4}, Contents: strings}),
		"an unknown datatype":          one("m", &tensor{Name: "INPUT", Datatype: "TEXT", Shape: []int64{1, 4}, Contents: strings}),
		"raw data of another size":     one("m", &tensor{Name: "INPUT", Datatype: "FP32", Shape: []int64{1, 4}}, []byte(secret[1:])),
		"another shape":                one("m", &tensor{Name: "INPUT", Datatype: "FP32", Shape: []int64{2, 2}}, []byte(secret)),
		"a length that is too large":   one("s", &tensor{Name: "INPUT", Datatype: "BYTES", Shape: []int64{1, 1}}, []byte(secret)),
		"too few strings":              one("s", &tensor{Name: "INPUT", Datatype: "BYTES", Shape: []int64{2, 1}}, long),
		"too few contents":             one("s", &tensor{Name: "INPUT", Datatype: "BYTES", Shape: []int64{2, 1}, Contents: strings}),
		"raw data beside contents":     one("s", &tensor{Name: "INPUT", Datatype: "BYTES", Shape: []int64{1, 1}, Contents: strings}, long),
		"an unknown input":             one("s", &tensor{Name: "OTHER", Datatype: "BYTES", Shape: []int64{1, 1}}, long),
		"an unknown model":             one("nosuch", &tensor{Name: "INPUT", Datatype: "BYTES", Shape: []int64{1, 1}}, long),
		"a timeout that is not a time": {ModelName: "s", Parameters: map[string]*kservepb.InferParameter{"timeout": {ParameterChoice: &kservepb.InferParameter_StringParam{StringParam: secret}}}},
	}
}

// bytesCodec sends bytes in place of a message.
type bytesCodec struct{ encoding.Codec }

func (bytesCodec) Marshal(v any) ([]byte, error)   { return v.([]byte), nil }
func (bytesCodec) Unmarshal(b []byte, v any) error { *v.(*[]byte) = b; return nil }
func (bytesCodec) Name() string                    { return "proto" }

func TestWrongRequestsOverGRPCAreNotRepeated(t *testing.T) {
	s := privateModels(t)
	conn := s.Dial()
	c := kservepb.NewGRPCInferenceServiceClient(conn)
	for what, req := range wrongMessages() {
		_, err := c.ModelInfer(t.Context(), req)
		if err == nil {
			t.Errorf("%s was answered", what)
			continue
		}
		private(t, "the answer to "+what, err.Error())
	}
	stream, err := c.ModelStreamInfer(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for what, req := range wrongMessages() {
		if err := stream.Send(req); err != nil {
			t.Fatal(err)
		}
		resp, err := stream.Recv()
		if err != nil || resp.GetErrorMessage() == "" {
			t.Fatalf("%s on a stream: %v, %v", what, resp, err)
		}
		private(t, "the answer on a stream to "+what, resp.GetErrorMessage())
	}
	var answer []byte
	for _, message := range []string{secret, "\x2a\x10" + secret, "\x3a\xff" + secret} {
		err := conn.Invoke(t.Context(), "/inference.GRPCInferenceService/ModelInfer", []byte(message), &answer, grpc.ForceCodec(bytesCodec{}))
		if err == nil {
			t.Errorf("%q was answered", message)
			continue
		}
		private(t, fmt.Sprintf("the answer to %q", message), err.Error())
	}
	s.Terminate()
	<-s.Ended
	private(t, "the log", s.Log())
}

func TestWrongRequestsToAStoreAreNotRepeated(t *testing.T) {
	s := storeOf(t, `
def handle(data, context):
    if data is None:
        return None
    raise ValueError("the handler failed")
`, "max_request_size=100\n", "batch_size=1&initial_workers=1")
	form := "--x\r\nContent-Disposition: form-data; name=\"data\"\r\n\r\n" + secret
	for _, tt := range []struct{ what, path, contentType, body string }{
		{"a handler that raises", "/predictions/m", "text/plain", secret},
		{"JSON that is cut off", "/predictions/m", "application/json", `{"data": "` + secret},
		{"a form that is cut off", "/predictions/m", "multipart/form-data; boundary=x", form},
		{"a form without a boundary", "/predictions/m", "multipart/form-data", form},
		{"a field that is cut off", "/predictions/m", "application/x-www-form-urlencoded", "data=" + secret + "%"},
		{"a body that is too large", "/predictions/m", "text/plain", strings.Repeat(secret, 10)},
		{"an unknown model", "/predictions/nosuch", "text/plain", secret},
		{"an unknown version", "/predictions/m/9.9", "text/plain", secret},
		{"another path", "/predict", "text/plain", secret},
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.infer+tt.path, strings.NewReader(tt.body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", tt.contentType)
		status, _, answer, err := servertest.Fetch(req)
		if err != nil || status < 400 {
			t.Errorf("%s: status %d, %v: %s", tt.what, status, err, answer)
		}
		private(t, "the answer to "+tt.what, string(answer))
	}
	if out, err := s.sh("curl -s -X PUT 'localhost:8081/models/m?min_worker=0&max_worker=0&synchronous=true'"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	_, answer := s.predict(t.Context(), servertest.HTTPClient, secret)
	private(t, "the answer of a model without workers", answer)
	s.Terminate()
	<-s.Ended
	private(t, "the log", s.Log())
}
