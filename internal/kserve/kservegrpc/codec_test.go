package kservegrpc

import (
	"bytes"
	"math"
	"runtime"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/shoal-serving/shoal/internal/buf"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/kserve"
	"github.com/shoal-serving/shoal/internal/kserve/kservepb"
	"github.com/shoal-serving/shoal/tensor"
)

// A ledger is a pool that counts the buffers in use.
type ledger struct{ out int }

func (l *ledger) Put(*[]byte)     { l.out-- }
func (l *ledger) Get(int) *[]byte { panic("nobody asks it") }

// pieces returns data as a message in buffers of the given sizes, which repeat.
func (l *ledger) pieces(data []byte, sizes ...byte) (message mem.BufferSlice) {
	for i := 0; len(data) > 0; i++ {
		n := min(len(data), int(sizes[i%len(sizes)]))
		if i >= len(sizes) {
			n = max(n, min(1, len(data))) // avoids an endless sequence of empty buffers
		}
		// grpc does not return smaller ones to the pool.
		piece := append(make([]byte, 0, 2<<10), data[:n]...)
		message = append(message, mem.NewBuffer(&piece, l))
		l.out++
		data = data[n:]
	}
	return message
}

func noLimits() *kserve.Limits {
	l := kserve.Limits{
		Decoded: math.MaxInt64, Inputs: math.MaxInt, Outputs: math.MaxInt, Dims: math.MaxInt, Parameters: math.MaxInt,
		String: math.MaxInt64, Text: math.MaxInt,
	}.WithDefaults()
	return &l
}

// full is a message that sets all fields.
func full() *kservepb.ModelInferRequest {
	params := func(names ...string) map[string]*kservepb.InferParameter {
		m := map[string]*kservepb.InferParameter{"": {}}
		for i, name := range names {
			m[name] = &kservepb.InferParameter{ParameterChoice: &kservepb.InferParameter_Int64Param{Int64Param: int64(-i)}}
		}
		return m
	}
	return &kservepb.ModelInferRequest{
		ModelName: "a model", ModelVersion: "3", Id: "é",
		Parameters: params("priority", "timeout"),
		Inputs: []*kservepb.ModelInferRequest_InferInputTensor{
			{Name: "A", Datatype: "FP32", Shape: []int64{1, 300, -1}, Parameters: params("x")},
			{Name: "B", Datatype: "NONE", Contents: &kservepb.InferTensorContents{
				BoolContents: []bool{true, false}, IntContents: []int32{-1, 2}, Int64Contents: []int64{-1, 2},
				UintContents: []uint32{1, math.MaxUint32}, Uint64Contents: []uint64{math.MaxUint64},
				Fp32Contents: []float32{1.5}, Fp64Contents: []float64{-1.5}, BytesContents: [][]byte{[]byte("abc"), {}},
			}},
			{},
		},
		Outputs:          []*kservepb.ModelInferRequest_InferRequestedOutputTensor{{Name: "O", Parameters: params("y")}, {}},
		RawInputContents: [][]byte{[]byte("0123456789"), {}, bytes.Repeat([]byte("x"), 300)},
	}
}

// compare decodes a message that is split into buffers, and compares the result with that
// of the standard codec. All buffers must be released.
func compare(t *testing.T, data []byte, sizes ...byte) {
	t.Helper()
	var l ledger
	message := l.pieces(data, sizes...)
	live := buf.Live()
	var got request
	got.read(message, noLimits(), nil)
	message.Free()
	var want kservepb.ModelInferRequest
	wrong := proto.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(data, &want)
	tooDeep := got.err != nil && strings.Contains(got.err.Error(), "nested more than") // the plain codec allows more
	if (wrong != nil) != (got.err != nil) && !tooDeep {
		t.Errorf("error %v, the plain codec has %v", got.err, wrong)
	}
	if wrong == nil && !tooDeep && !proto.Equal(&got.ModelInferRequest, &want) {
		t.Errorf("read %v, the plain codec reads %v", &got.ModelInferRequest, &want)
	}
	got.release()
	if l.out != 0 || buf.Live() != live {
		t.Errorf("%d pieces and %d copies were not given back", l.out, buf.Live()-live)
	}
}

func TestAMessageIsReadInWhateverPiecesItCame(t *testing.T) {
	whole, err := proto.Marshal(full())
	if err != nil {
		t.Fatal(err)
	}
	for size := 1; size < 256; size++ {
		compare(t, whole, byte(size))
		compare(t, whole, 0, byte(size), 0, 1)
		compare(t, append(bytes.Clone(whole), whole...), byte(size))
		compare(t, whole[:len(whole)-size], byte(size)) // truncated
	}
}

// The seeds are short, because the fuzzer takes long to minimize.
func FuzzRequestsAreReadLikeByThePlainCodec(f *testing.F) {
	for _, data := range hostile(20) {
		f.Add(data, []byte{5})
	}
	parameter := appendField(appendField(nil, 1, []byte("key")), 2, []byte{2 << 3, 1, 3<<3 | 2, 1, 'a'})
	for _, data := range [][]byte{
		appendField(nil, 4, parameter),
		appendField(nil, 5, appendField(appendField(appendField(nil, 1, []byte("A")), 2, []byte("FP32")), 4, parameter)),
		appendField(nil, 6, appendField(appendField(nil, 1, []byte("A")), 2, parameter)),
		append(append(protowire.AppendTag(nil, 9, protowire.StartGroupType), protowire.AppendTag(nil, 9, protowire.EndGroupType)...), 7<<3|2, 2, 1, 2),
		{1 << 3, 5, 7<<3 | 5, 1, 2, 3, 4, 7<<3 | 1, 1, 2, 3, 4, 5, 6, 7, 8},
		appendField(nil, 1, []byte("\xff")),
		[]byte("\x9a\xa3\xde\xea\x20\x06abcdef"), // not a valid field number
		appendField(nil, 5, appendField(nil, 5, []byte{3<<3 | 2, 2, 1, 2, 3 << 3, 3, 6<<3 | 2, 4, 0, 0, 0, 0, 6<<3 | 5, 1, 1, 1, 1, 7<<3 | 5, 1, 1, 1, 1})),
	} {
		f.Add(data, []byte{9})
		f.Add(data, []byte{2})
	}
	f.Fuzz(func(t *testing.T, data, sizes []byte) {
		if len(sizes) > 0 {
			compare(t, data, sizes...)
		}
	})
}

// group returns a field that is a group with the given content.
func group(number protowire.Number, content []byte) []byte {
	return protowire.AppendTag(append(protowire.AppendTag(nil, number, protowire.StartGroupType), content...), number, protowire.EndGroupType)
}

func TestGroupsAreSkippedLikeByThePlainCodec(t *testing.T) {
	inner := slices.Concat([]byte{1 << 3, 5, 7<<3 | 5, 1, 2, 3, 4, 7<<3 | 1, 1, 2, 3, 4, 5, 6, 7, 8}, appendField(nil, 5, []byte("text")), group(2, group(2, nil)))
	name := appendField(nil, 1, []byte("model"))
	deep := inner
	for range maxGroups - 3 {
		deep = group(3, deep)
	}
	for _, data := range [][]byte{
		group(9, inner), group(7, inner), group(5, deep),
		{9<<3 | 3},
		{9<<3 | 3, 8<<3 | 4},
		{9<<3 | 4},
		{9<<3 | 3, 9<<3 | 6},
		{9<<3 | 3, 1<<3 | 2, 5, 9<<3 | 4},
		group(9, []byte{8<<3 | 3, 9<<3 | 4, 8<<3 | 4}),
	} {
		for size := range 20 {
			compare(t, slices.Concat(name, data, name), byte(size+1))
		}
	}
	var r request
	r.read(mem.BufferSlice{mem.SliceBuffer(group(3, group(3, deep)))}, noLimits(), nil)
	if infer.CodeOf(r.err) != infer.Invalid {
		t.Errorf("a group that is nested too deep: %v, want that it is invalid", r.err)
	}
}

// TestALongGroupIsNotCopied measures what a group takes that is the whole message.
func TestALongGroupIsNotCopied(t *testing.T) {
	var message mem.BufferSlice
	for piece := range slices.Chunk(group(9, appendField(nil, 1, make([]byte, 8<<20))), 16<<10) {
		message = append(message, mem.SliceBuffer(piece))
	}
	var r request
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	r.read(message, noLimits(), nil)
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; r.err != nil || got > 64<<10 {
		t.Errorf("%d bytes were allocated, %v", got, r.err)
	}
}

// A countedPiece counts how often its data is looked at.
type countedPiece struct {
	mem.Buffer
	looks *int
}

func (c countedPiece) ReadOnlyData() []byte { *c.looks++; return c.Buffer.ReadOnlyData() }

// TestManyPiecesCostTimeInProportion has messages that came in frames of a byte. Each piece used to be
// looked at again for each field before it.
func TestManyPiecesCostTimeInProportion(t *testing.T) {
	for name, field := range map[string][]byte{
		"unknown fields":   appendField(nil, 100, []byte("abc")),
		"groups":           group(100, appendField(nil, 1, nil)),
		"shapes of inputs": appendField(nil, 5, appendField(nil, 3, []byte{1})),
		"typed contents":   appendField(nil, 5, appendField(nil, 5, appendField(nil, 3, []byte{1}))),
	} {
		data, looks := bytes.Repeat(field, 2000), 0
		var message mem.BufferSlice
		for piece := range slices.Chunk(data, 1) {
			message = append(message, countedPiece{mem.SliceBuffer(piece), &looks})
		}
		var r request
		r.read(message, noLimits(), nil)
		if per := looks / len(data); r.err != nil || per > 50 {
			t.Errorf("%s: each of %d pieces was looked at %d times, %v", name, len(data), per, r.err)
		}
	}
}

func TestOnlyTensorsThatAreSpreadAreCopied(t *testing.T) {
	in := &kservepb.ModelInferRequest{RawInputContents: [][]byte{bytes.Repeat([]byte("a"), 100), bytes.Repeat([]byte("b"), 100), bytes.Repeat([]byte("c"), 50)}}
	data, err := proto.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	var l ledger
	message := l.pieces(data, 150, 10, 255) // the second tensor spans all of them
	var got request
	got.read(message, noLimits(), nil)
	if got.err != nil {
		t.Fatal(got.err)
	}
	for i, want := range []bool{true, false, true} {
		raw := got.GetRawInputContents()[i]
		if within := inside(raw, message); within != want || !bytes.Equal(raw, in.GetRawInputContents()[i]) {
			t.Errorf("tensor %d: %s, a view: %t", i, raw, within)
		}
	}
	message.Free()
	if l.out != 2 {
		t.Errorf("%d pieces are kept, want the two with views", l.out)
	}
	batch := got.memory
	batch.Retain() // still running
	got.release()
	got.release() // has no effect
	if l.out != 2 || got.GetRawInputContents()[0][99] != 'a' {
		t.Error("memory was given back while it was in use")
	}
	batch.Release()
	if l.out != 0 {
		t.Errorf("%d pieces are kept", l.out)
	}
}

// inside reports whether data is a view of a buffer.
func inside(data []byte, pieces mem.BufferSlice) bool {
	for _, p := range pieces {
		whole := p.ReadOnlyData()
		at := uintptr(unsafe.Pointer(unsafe.SliceData(data)))
		from := uintptr(unsafe.Pointer(unsafe.SliceData(whole)))
		if at >= from && at < from+uintptr(len(whole)) {
			return true
		}
	}
	return false
}

// response returns a response with a reference owned by the caller.
func response(outputs ...tensor.Tensor) *infer.Response {
	size := 0
	for _, o := range outputs {
		size += len(o.Data)
	}
	r := &infer.Response{Model: "m", Version: "1", Memory: buf.Get(size), Outputs: outputs}
	free := r.Memory.B
	for i := range r.Outputs {
		n := copy(free, r.Outputs[i].Data)
		r.Outputs[i].Data, free = free[:n:n], free[n:]
	}
	return r
}

// plain returns the message for the standard codec.
func plain(id string, resp *infer.Response) *kservepb.ModelInferResponse {
	out := &kservepb.ModelInferResponse{ModelName: resp.Model, ModelVersion: resp.Version, Id: id}
	for _, t := range resp.Outputs {
		out.Outputs = append(out.Outputs, &kservepb.ModelInferResponse_InferOutputTensor{Name: t.Name, Datatype: t.Type.String(), Shape: t.Shape})
		out.RawOutputContents = append(out.RawOutputContents, bytes.Clone(t.Data))
	}
	return out
}

func FuzzAnswersAreWrittenLikeByThePlainCodec(f *testing.F) {
	f.Add("m", "1", "", "OUT", uint8(10), []byte{1, 200}, uint32(4096), uint32(0), "")
	f.Add("", "", "x", "", uint8(12), []byte{}, uint32(minLent), uint32(1), "failed")
	f.Add("m", "1", "x", strings.Repeat("é", 3000), uint8(1), []byte{0, 255}, uint32(minLent-1), uint32(3*minLent), "")
	f.Fuzz(func(t *testing.T, model, version, id, name string, typ uint8, shape []byte, first, second uint32, failure string) {
		for _, s := range []*string{&model, &version, &id, &name, &failure} {
			*s = strings.ToValidUTF8(*s, "?")
		}
		live := buf.Live()
		a := tensor.Tensor{Name: name, Type: tensor.Type(typ % 15), Data: bytes.Repeat([]byte{typ}, int(first%(4*minLent)))}
		for _, d := range shape {
			a.Shape = append(a.Shape, int64(d)<<(d%64))
		}
		b := tensor.Tensor{Name: "B", Type: tensor.Uint8, Data: bytes.Repeat([]byte{1}, int(second%(4*minLent)))}
		for _, outputs := range [][]tensor.Tensor{nil, {a}, {a, b}, {b, a, a}} {
			resp := response(outputs...)
			resp.Model, resp.Version = model, version
			want := plain(id, resp)
			check(t, &answer{model: model, version: version, id: id, response: resp}, want, &kservepb.ModelInferResponse{})

			resp = response(outputs...)
			resp.Model, resp.Version = model, version
			want.Parameters = map[string]*kservepb.InferParameter{
				"triton_final_response": {ParameterChoice: &kservepb.InferParameter_BoolParam{BoolParam: true}},
			}
			check(t, &streamAnswer{answer: answer{model: model, version: version, id: id, response: resp, finality: final}, failure: failure},
				&kservepb.ModelStreamInferResponse{ErrorMessage: failure, InferResponse: want}, &kservepb.ModelStreamInferResponse{})
		}
		if buf.Live() != live {
			t.Errorf("%d buffers were not given back", buf.Live()-live)
		}
	})
}

// check encodes an answer as grpc does, and compares what a client decodes.
func check(t *testing.T, a any, want, got proto.Message) {
	t.Helper()
	data, err := newCodec(kserve.Limits{}).Marshal(a)
	if err != nil {
		t.Fatal(err)
	}
	data.Ref() // like the frame in the queue
	flat := data.Materialize()
	data.Free()
	data.Free()
	if err := proto.Unmarshal(flat, got); err != nil || !proto.Equal(got, want) {
		t.Errorf("%v; read\n%v, want\n%v", err, got, want)
	}
	encoded, err := proto.Marshal(want)
	if err != nil || len(encoded) != len(flat) {
		t.Errorf("%v; %d bytes, the plain codec writes %d", err, len(flat), len(encoded))
	}
}

func TestLargeOutputsAreWrittenFromWhereTheyAre(t *testing.T) {
	resp := response(
		tensor.Tensor{Name: "A", Type: tensor.Uint8, Data: make([]byte, minLent)},
		tensor.Tensor{Name: "B", Type: tensor.Uint8, Data: make([]byte, minLent-1)},
	)
	memory, live := resp.Memory, buf.Live()
	data := (&answer{response: resp}).marshal()
	if n := len(data); n != 3 {
		t.Fatalf("%d pieces, want what is before A, A, and what is behind it", n)
	}
	if !inside(data[1].ReadOnlyData(), mem.BufferSlice{mem.SliceBuffer(memory.B)}) {
		t.Error("A was copied")
	}
	if buf.Live() != live {
		t.Error("A was given back before it was written")
	}
	data.Free()
	if buf.Live() != live-1 {
		t.Error("A was not given back after it was written")
	}
}

// When a connection breaks, grpc drops what it has not sent without freeing it.
func TestWhatGRPCForgetsIsGivenBack(t *testing.T) {
	live := buf.Live()
	for range 10 {
		_ = (&answer{response: response(tensor.Tensor{Type: tensor.Uint8, Data: make([]byte, minLent)})}).marshal()
	}
	for range 100 {
		if buf.Live() == live {
			return
		}
		runtime.GC()
		runtime.Gosched()
	}
	t.Errorf("%d buffers are still in use", buf.Live()-live)
}

// typical is a message with one input of 12.8 KB.
func typical() *kservepb.ModelInferRequest {
	return &kservepb.ModelInferRequest{
		ModelName: "alltypes", Id: "42",
		Inputs:           []*kservepb.ModelInferRequest_InferInputTensor{{Name: "INPUT", Datatype: "FP32", Shape: []int64{1, 3200}}},
		RawInputContents: [][]byte{make([]byte, 12800)},
	}
}

// If typed contents are split into many parts, the cost per part is constant: the standard
// codec would copy all previous parts each time.
func TestContentsInManyPartsCostNoMoreThanInOne(t *testing.T) {
	part := appendField(nil, 5, appendField(nil, 3, []byte{1}))
	for _, parts := range []int{1, 100_000} {
		data := appendField(nil, 5, bytes.Repeat(part, parts))
		var in request
		took := allocated(func() { in.read(mem.BufferSlice{mem.SliceBuffer(data)}, noLimits(), nil) })
		if n := len(in.GetInputs()[0].GetContents().GetInt64Contents()); n != parts || took > uint64(16*parts+64<<10) { // other tests may allocate meanwhile
			t.Errorf("%d parts: %d read, %d bytes", parts, n, took)
		}
	}
}
