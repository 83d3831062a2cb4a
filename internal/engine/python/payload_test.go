package python

import (
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-serving/shoal/tensor"
)

// payloadFile returns a file with the given content.
func payloadFile(t testing.TB, content []byte) *os.File {
	t.Helper()
	f, err := os.CreateTemp(t.TempDir(), "payload")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	if _, err := f.Write(content); err != nil {
		t.Fatal(err)
	}
	return f
}

// document returns a payload with a tensor, whose data begins at the next cache line.
func document(t payloadTensor, data string) (content []byte, size int) {
	text := fmt.Sprintf(`{"tensors":[{"name":%q,"type":%d,"shape":[%s],"length":%d}]}`, t.Name, t.Type,
		strings.Trim(strings.ReplaceAll(fmt.Sprint(t.Shape), " ", ","), "[]"), t.Length)
	return append(append([]byte(text), make([]byte, align(len(text), alignment)-len(text))...), data...), len(text)
}

func TestAPayloadIsReadOnlyIfAllOfItAddsUp(t *testing.T) {
	const all = math.MaxUint64 // the size of the content
	for _, tt := range []struct {
		name           string
		tensor         payloadTensor
		text           string // the document, if not one with the tensor
		document, size uint64 // if not all
		want           string // in the error; "" means no error
	}{
		{"a tensor", payloadTensor{"A", uint32(tensor.Uint8), []int64{4}, 4}, "", all, all, ""},
		{"a type of none", payloadTensor{"A", 0, nil, 0}, "", all, all, `tensor "A" with the unknown type number 0`},
		{"an unknown type", payloadTensor{"A", uint32(tensor.BF16) + 1, nil, 0}, "", all, all, "the unknown type number"},
		{"many dimensions", payloadTensor{"A", 1, make([]int64, maxDimensions+1), 0}, "", all, all, "of 65 dimensions, expected at most 64"},
		{"the most dimensions", payloadTensor{"A", 1, make([]int64, maxDimensions), 0}, "", all, all, ""},
		{"a negative length", payloadTensor{"A", 1, nil, -1}, "", all, all, "of -1 bytes"},
		{"too long", payloadTensor{"A", 1, nil, 5}, "", all, all, "of 5 bytes at offset 64 in a payload of 68"},
		{"far too long", payloadTensor{"A", 1, nil, math.MaxInt}, "", all, all, "of 9223372036854775807 bytes"},
		{"a second behind the end", payloadTensor{}, `{"tensors":[{"name":"A","type":1,"length":4},{"name":"B","type":1}]}`, all, all, `tensor "B" of 0 bytes at offset 192 in a payload of 132`},
		{"no document", payloadTensor{}, "no document", all, all, "an invalid document"},
		{"nothing", payloadTensor{}, "", 0, 0, "an invalid document"},
		{"a document beyond the end", payloadTensor{}, "{}", 101, 100, "a payload of 100 bytes with a document of 101"},
		{"too large", payloadTensor{}, "{}", 2, maxMemory + 1, "expected at most 1073741824"},
		{"larger than its file", payloadTensor{}, "{}", 2, 10_000, "a payload of 10000 bytes of which 68 can be read"},
	} {
		content, length := document(tt.tensor, "data")
		if tt.text != "" {
			length = len(tt.text)
			content = append([]byte(tt.text), make([]byte, align(length, alignment)-length)...)
			content = append(content, "data"...)
		}
		if tt.document == all {
			tt.document, tt.size = uint64(length), uint64(len(content))
		}
		p, err := readPayload(int(payloadFile(t, content).Fd()), tt.document, tt.size)
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
		if err == nil && tt.tensor.Length == 4 && string(p.data[0].Data) != "data" {
			t.Errorf("%s: the data is %q", tt.name, p.data[0].Data)
		}
		p.release()
	}
}

// FuzzPayload passes arbitrary payloads to readPayload. The data of accepted tensors must be
// within the payload and must not overlap.
func FuzzPayload(f *testing.F) {
	content, length := document(payloadTensor{"A", uint32(tensor.Uint8), []int64{4}, 4}, "data")
	f.Add(content, uint64(length), uint64(len(content)))
	f.Add([]byte(`{"failed":true,"code":3,"text":"oops"}`), uint64(38), uint64(38))
	f.Add([]byte(`{"model":"m","version":1,"outputs":["y"],"parameters":{"a":1}}`), uint64(62), uint64(62))
	f.Fuzz(func(t *testing.T, content []byte, document, size uint64) {
		if size > 1<<20 {
			size = uint64(len(content)) // allocating it takes all the time
		}
		p, err := readPayload(int(payloadFile(t, content).Fd()), document, size)
		if err != nil {
			return
		}
		defer p.release()
		if uint64(len(p.memory.B)) != size || size > uint64(len(content)) {
			t.Fatalf("%d bytes of memory for a payload of %d in a file of %d", len(p.memory.B), size, len(content))
		}
		clear(p.memory.B)
		for _, x := range p.data {
			for k := range x.Data[:cap(x.Data)] {
				x.Data[k]++
			}
		}
		if size > 0 && slices.Max(p.memory.B) > 1 {
			t.Error("two tensors share memory")
		}
		if all, err := decodeParameters(p.Parameters); err == nil && len(all) > maxParameters {
			t.Errorf("%d parameters", len(all))
		}
	})
}

func TestParametersOfAWorkerAreLimited(t *testing.T) {
	many := make([]string, maxParameters+1)
	for i := range many {
		many[i] = fmt.Sprintf(`"p%d":1`, i)
	}
	for text, want := range map[string]string{
		`{"a":1,"b":0.5,"c":"x","d":true}`:            "",
		`{"a":12345678901234567890}`:                  "",
		`{` + strings.Join(many[1:], ",") + `}`:       "",
		`{` + strings.Join(many, ",") + `}`:           "found 257, expected at most 256",
		`{"a":"` + strings.Repeat("x", 64<<10) + `"}`: "bytes, expected at most 65536",
		`{"a":null}`:  `parameter "a": found <nil>`,
		`{"a":[1]}`:   `parameter "a": found [1]`,
		`{"a":1e999}`: `parameter "a": found <nil>`,
		`[1]`:         "parameters: ",
	} {
		_, err := decodeParameters([]byte(text))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%.40s: %v, want %q", text, err, want)
		}
	}
}
