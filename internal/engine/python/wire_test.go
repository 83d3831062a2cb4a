package python

import (
	"bytes"
	"encoding/binary"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/modelconfig"
	"github.com/shoal-serving/shoal/tensor"
)

var wireConfig = &modelconfig.Config{
	Inputs:  []modelconfig.Tensor{{Name: "X", Type: tensor.Uint8}},
	Outputs: []modelconfig.Tensor{{Name: "A", Type: tensor.FP32}, {Name: "B", Type: tensor.Bytes}},
}

// words returns the bytes of a table of 4-byte numbers; an 8-byte number takes two of
// them.
func words(numbers ...uint32) (b []byte) {
	for _, n := range numbers {
		b = binary.LittleEndian.AppendUint32(b, n)
	}
	return b
}

func TestATableIsReadOnlyIfAllOfItAddsUp(t *testing.T) {
	one := func(output ...uint32) []byte { return words(append([]uint32{1, 0, 0, 0, 1, 0}, output...)...) }
	for _, tt := range []struct {
		name  string
		table []byte
		want  string // in the error; "" means no error
	}{
		{"an output", one(0, 11, 1, 0, 8, 0, 2, 0), ""},
		{"none", words(1, 0, 0, 0, 0, 0), ""},
		{"an error", append(words(1, 0, 1, 3, 4, 0), "oops\x00\x00\x00\x00"...), ""},
		{"nothing", nil, "a table that ends after 0 bytes"},
		{"half", one(0, 11, 1, 0, 8), "a table that ends after"},
		{"more", append(words(1, 0, 0, 0, 0, 0), 1, 2, 3), "of which 24 are used"},
		{"two responses", words(2, 0, 0, 0, 0, 0, 0, 0, 0, 0), "2 responses for 1 requests"},
		{"neither", words(1, 0, 2, 0, 0, 0), "2 where 0 to 3 belongs"},
		{"a long text", words(1, 0, 1, 0, 1<<31, 0), "a text of 2147483648 bytes"},
		{"an unknown output", one(2, 11, 0, 0, 4, 0), "output 2, of which the model has 2"},
		{"many outputs", words(1, 0, 0, 0, 3, 0), "3 outputs of 2"},
		{"a type of none", one(0, 0, 0, 0, 4, 0), "the unknown type number 0"},
		{"an unknown type", one(0, 15, 0, 0, 4, 0), "the unknown type number 15"},
		{"many dimensions", one(0, 11, 65, 0, 4, 0), "of 65 dimensions"},
		{"too long", one(0, 11, 0, 0, 1025, 0), "1025 bytes with 1024 bytes left"},
		{"far too long", one(0, 11, 0, 0, 0xffffffff, 0xffffffff), "of 18446744073709551615 bytes"},
		{"together too long", words(1, 0, 0, 0, 2, 0, 0, 11, 0, 0, 100, 0, 1, 11, 0, 0, 900, 0), "output B of 900 bytes with 896 bytes left"},
		{"behind the last line", words(1, 0, 0, 0, 2, 0, 0, 11, 0, 0, 1000, 0, 1, 11, 0, 0, 1, 0), "output B of 1 bytes with 0 bytes left"},
		{"twice", words(1, 0, 0, 0, 2, 0, 0, 11, 0, 0, 4, 0, 0, 11, 0, 0, 4, 0), "output A twice"},
	} {
		calls := make([]engine.Call, 1)
		err := readAnswers(tt.table, make([]byte, 1024), calls, nil, wireConfig)
		switch {
		case tt.want == "" && err != nil, tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		case tt.name == "an error" && (infer.CodeOf(calls[0].Err) != infer.Invalid || calls[0].Err.Error() != "oops"):
			t.Errorf("the request's error is %v", calls[0].Err)
		}
	}
}

func TestAFrameIsReadOnlyIfAWorkerSendsSuch(t *testing.T) {
	for _, tt := range []struct {
		name  string
		frame []byte
		want  string
	}{
		{"torn", make([]byte, 31), "a frame of 31 bytes"},
		{"of the server", (&frame{kind: kindRun}).append(nil), "which workers do not send"},
		{"with too much", append((&frame{kind: kindRan}).append(nil), 1), "with 33 bytes"},
		{"good", (&frame{kind: kindFailed, number: 7, a: 1, b: 2, text: "why"}).append(nil), ""},
	} {
		f, err := readFrame(tt.frame)
		switch {
		case tt.want == "" && (err != nil || f.number != 7 || f.a != 1 || f.b != 2 || f.text != "why"):
			t.Errorf("%s: %+v, %v", tt.name, f, err)
		case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
	}
}

func TestTensorsOfABatchAreApartAndAligned(t *testing.T) {
	var batch []engine.Call
	for _, text := range []string{"one", "", strings.Repeat("long", 50)} {
		batch = append(batch, engine.Call{Request: &infer.Request{ID: text, Outputs: []string{"B"}, Inputs: []tensor.Tensor{
			{Name: "X", Type: tensor.Uint8, Shape: []int64{int64(len(text))}, Data: []byte(text)},
		}}})
	}
	l := layOut(batch)
	memory := bytes.Repeat([]byte{0xaa}, l.size)
	writeBatch(memory, l, batch, wireConfig, nil)
	if l.table%alignment != 0 || !bytes.HasPrefix(memory, []byte("one")) || !bytes.HasPrefix(memory[64:], []byte("longlong")) {
		t.Errorf("table at %d, tensors %q", l.table, memory[:80])
	}
	if got := binary.LittleEndian.Uint32(memory[l.table:]); got != 3 {
		t.Errorf("%d requests, want 3", got)
	}
}

// FuzzAnswers passes arbitrary tables to readAnswers. Accepted outputs must be within the
// memory and must not overlap.
func FuzzAnswers(f *testing.F) {
	f.Add(words(1, 0, 0, 0, 1, 0, 0, 11, 1, 0, 8, 0, 2, 0), 1)
	f.Add(words(1, 0, 0, 0, 1, 8, 0, 11, 0, 0, 0, 0, 0x30303030, 0x30303030), 1) // invalid parameters
	f.Add(append(words(2, 0, 1, 3, 4, 0), "oops\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"...), 2)
	f.Fuzz(func(t *testing.T, table []byte, requests int) {
		outputs := make([]byte, 4096)
		calls := make([]engine.Call, max(0, min(requests, 16)))
		if readAnswers(table, outputs, calls, nil, wireConfig) != nil {
			return
		}
		for i := range calls {
			if calls[i].Err != nil && len(calls[i].Outputs.Tensors) > 0 {
				t.Error("both an error and outputs")
			}
			for _, x := range calls[i].Outputs.Tensors {
				for k := range x.Data[:cap(x.Data)] {
					x.Data[k]++
				}
			}
		}
		if slices.Max(outputs) > 1 {
			t.Error("two outputs share memory")
		}
	})
}
