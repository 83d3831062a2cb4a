package kservegrpc

import (
	"bytes"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/kserve"
	"github.com/shoal-serving/shoal/internal/kserve/kservepb"
	"github.com/shoal-serving/shoal/tensor"
)

func newCodec(l kserve.Limits) *codec {
	l = l.WithDefaults()
	return &codec{CodecV2: encoding.GetCodecV2("proto"), limits: &l}
}

func appendField(b []byte, number protowire.Number, value []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, number, protowire.BytesType), value)
}

// allocated returns the bytes that f allocates on the heap, including garbage.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// Messages that are designed to take as much memory as possible.
func hostile(size int) map[string][]byte {
	fill := func(number protowire.Number, value []byte) []byte {
		one := appendField(nil, number, value)
		return bytes.Repeat(one, size/len(one))
	}
	entries := func(number protowire.Number) (b []byte) {
		for i := 0; len(b) < size; i++ {
			b = appendField(b, number, appendField(appendField(nil, 1, fmt.Append(nil, i)), 2, nil))
		}
		return b
	}
	contents := func(b []byte) []byte { return appendField(nil, 5, appendField(nil, 5, b)) }
	small := bytes.Repeat([]byte{1}, size)
	return map[string][]byte{
		"inputs":          fill(5, nil),
		"outputs":         fill(6, nil),
		"raw":             fill(7, nil),
		"parameters":      entries(4),
		"of inputs":       appendField(nil, 5, entries(4)),
		"of outputs":      appendField(nil, 6, entries(2)),
		"packed dims":     appendField(nil, 5, appendField(nil, 3, small)),
		"dims":            appendField(nil, 5, bytes.Repeat([]byte{3 << 3, 1}, size/2)),
		"small integers":  contents(appendField(nil, 3, small)),
		"unpacked":        contents(bytes.Repeat([]byte{3 << 3, 1}, size/2)),
		"empty strings":   contents(fill(8, nil)),
		"short strings":   contents(fill(8, []byte("a"))),
		"split contents":  appendField(nil, 5, fill(5, appendField(nil, 3, []byte{1, 2, 3}))),
		"a long name":     appendField(nil, 1, small),
		"a long id":       appendField(nil, 3, small),
		"unknown fields":  fill(99, []byte("a")),
		"an honest input": appendField(appendField(nil, 5, nil), 7, small),
	}
}

func TestNoMessageTakesMuchMoreMemoryThanItsBytes(t *testing.T) {
	const size = 1 << 20
	c := newCodec(kserve.Limits{Body: size, Decoded: size})
	for name, data := range hostile(size) {
		var err error
		took := allocated(func() {
			m := &request{}
			if err = c.Unmarshal(mem.BufferSlice{mem.SliceBuffer(data)}, m); err == nil && m.err == nil {
				_, err = m.decode(c.limits)
			}
			m.release()
		})
		if took > 3*size { // one for the message, one for the tensors, one for slices that grow
			t.Errorf("%s: %d bytes of memory for %d of the message; %v", name, took, len(data), err)
		}
	}
}

// A request of a stream may wait for its turn, with an error and without a charge. It used to keep all
// that was read before the error, such as 64 MiB of typed contents.
func TestAMessageThatIsNotReadKeepsNothing(t *testing.T) {
	c := newCodec(kserve.Limits{Outputs: 1})
	for _, test := range []struct{ id, want string }{{"an id", "an id"}, {strings.Repeat("x", maxUnread), ""}} {
		m := &kservepb.ModelInferRequest{
			ModelName: "m", Id: test.id,
			Parameters: map[string]*kservepb.InferParameter{"p": {}},
			Inputs:     []*kservepb.ModelInferRequest_InferInputTensor{{Contents: &kservepb.InferTensorContents{IntContents: []int32{1}}}},
			Outputs:    []*kservepb.ModelInferRequest_InferRequestedOutputTensor{{}, {}},
		}
		data, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		in := &request{}
		if err := c.Unmarshal(mem.BufferSlice{mem.SliceBuffer(data)}, in); err != nil || in.err == nil {
			t.Errorf("two outputs are read: %v, %v", err, in.err)
		}
		want := &kservepb.ModelInferRequest{Id: test.want}
		if test.want != "" {
			want.ModelName = "m"
		}
		if !proto.Equal(&in.ModelInferRequest, want) || in.room.inputs[0] != nil || in.room.input.Contents != nil {
			t.Errorf("%v is kept of a message that was not read, want %v", &in.ModelInferRequest, want)
		}
	}
}

func TestOtherMessagesHaveFewFields(t *testing.T) {
	c := newCodec(kserve.Limits{Parameters: 5})
	for n, want := range map[int]bool{5: true, 6: false} {
		var data []byte
		for range n {
			data = appendField(data, 1, []byte("a"))
		}
		m := received{message: &kservepb.ModelMetadataRequest{}}
		if err := c.Unmarshal(mem.BufferSlice{mem.SliceBuffer(data)}, &m); err != nil {
			t.Fatal(err)
		}
		if (m.err == nil) != want || !want && infer.CodeOf(m.err) != infer.Invalid {
			t.Errorf("%d fields: %v", n, m.err)
		}
	}
}

// Empty values take eight times their size, and a message is charged twice its own.
func TestValuesOfASettingAreCounted(t *testing.T) {
	c := newCodec(kserve.Limits{Parameters: 5})
	for values, want := range map[int]bool{4: true, 5: false} { // the setting counts, too
		for name, split := range map[string]bool{"one entry": false, "one entry, with parts of a value": true} {
			var value, entry []byte
			for range values {
				value = appendField(value, 1, nil)
				if split {
					entry, value = appendField(entry, 2, value), nil
				}
			}
			if !split {
				entry = appendField(nil, 2, value)
			}
			m := received{message: &kservepb.TraceSettingRequest{}}
			if err := c.Unmarshal(mem.BufferSlice{mem.SliceBuffer(appendField(nil, 1, entry))}, &m); err != nil {
				t.Fatal(err)
			}
			if (m.err == nil) != want || !want && infer.CodeOf(m.err) != infer.Invalid {
				t.Errorf("%d values in %s: %v", values, name, m.err)
			}
		}
	}
}

// It is not charged until its call ends.
func TestAnotherMessageThatIsNotReadKeepsNothing(t *testing.T) {
	c := newCodec(kserve.Limits{})
	data := appendField(appendField(nil, 1, bytes.Repeat([]byte("a"), 1000)), 2, []byte("\xff"))
	m := received{message: &kservepb.ModelReadyRequest{}}
	if err := c.Unmarshal(mem.BufferSlice{mem.SliceBuffer(data)}, &m); err != nil || m.err == nil {
		t.Fatalf("a version that is no text is read: %v, %v", err, m.err)
	}
	if kept := proto.Size(m.message.(proto.Message)); kept != 0 {
		t.Errorf("%d bytes are kept of a message that was not read", kept)
	}
}

// For any input, a message is either rejected as the client's error, or a request that is
// within all limits.
func FuzzDecodeMessage(f *testing.F) {
	for _, data := range hostile(100) {
		f.Add(data)
	}
	f.Add(appendField(nil, 5, append(appendField(appendField(nil, 2, []byte("INT8")), 5, appendField(nil, 2, []byte{1, 2})), 3<<3, 2)))
	f.Add(appendField(appendField(nil, 5, appendField(appendField(nil, 2, []byte("BYTES")), 3, []byte{1})), 7, []byte("\x03\x00\x00\x00abc")))
	limits := kserve.Limits{Decoded: 1 << 10, Inputs: 3, Outputs: 2, Dims: 3, Parameters: 4, String: 9, Text: 16}
	c := newCodec(limits)
	f.Fuzz(func(t *testing.T, data []byte) {
		m := &request{}
		if err := c.Unmarshal(mem.BufferSlice{mem.SliceBuffer(data)}, m); err != nil {
			t.Fatal(err)
		}
		defer m.release()
		var req *infer.Request
		if m.err == nil {
			req, m.err = m.decode(c.limits)
		}
		if m.err != nil {
			if code := infer.CodeOf(m.err); code != infer.Invalid && code != infer.NotFound && code != infer.Unsupported {
				t.Errorf("code %v: %v", code, m.err)
			}
			return
		}
		checkLimits(t, req, &m.ModelInferRequest, &limits)
	})
}

func checkLimits(t *testing.T, req *infer.Request, m *kservepb.ModelInferRequest, l *kserve.Limits) {
	parameters := len(m.GetParameters())
	for _, in := range m.GetInputs() {
		parameters += len(in.GetParameters())
	}
	for _, out := range m.GetOutputs() {
		parameters += len(out.GetParameters())
	}
	if len(req.Inputs) > l.Inputs || len(req.Outputs) > l.Outputs || parameters > l.Parameters || len(req.ID) > l.Text {
		t.Errorf("%d inputs, %d outputs, %d parameters, id of %d", len(req.Inputs), len(req.Outputs), parameters, len(req.ID))
	}
	decoded := 0
	for i := range req.Inputs {
		in := &req.Inputs[i]
		if len(in.Shape) > l.Dims || len(in.Name) > l.Text {
			t.Errorf("input %d: %d dims, name of %d", i, len(in.Shape), len(in.Name))
		}
		if m.GetInputs()[i].GetContents() != nil {
			decoded += len(in.Data)
		}
		if in.Type == tensor.Bytes {
			for s := range in.Strings() {
				if int64(len(s)) > l.String {
					t.Errorf("input %d: a string of %d", i, len(s))
				}
			}
		}
		_ = in.Check() // does not panic
	}
	if int64(decoded) > l.Decoded {
		t.Errorf("%d bytes of tensors", decoded)
	}
}
