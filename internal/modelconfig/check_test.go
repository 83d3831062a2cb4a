package modelconfig_test

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/modelconfig"
	"github.com/shoal-serving/shoal/internal/script"
	"github.com/shoal-serving/shoal/tensor"
)

// A block that starts with "config" sets the configuration. Any other block is a request,
// with one line for each input (name, type, shape, and its bytes or strings) or setting
// (id, outputs). The result has its rows, the lane of its shape, and its inputs if their
// order or shape has changed.
func TestRequestsAreCheckedAgainstTheConfiguration(t *testing.T) {
	script.Run(t, "testdata/check.txt", func(t *testing.T) func([]string) string {
		var config *modelconfig.Config
		lanes := map[uint64]string{0: "any"}
		return func(lines []string) string {
			if lines[0] == "config" {
				config = parse(t, strings.Join(lines[1:], "\n"))
				return ""
			}
			req := readRequest(t, lines)
			before := slices.Clone(req.Inputs)
			if err := config.Check(req); err != nil {
				return fmt.Sprintf("%v: %v", infer.CodeOf(err), err)
			}
			if _, ok := lanes[req.Shape]; !ok {
				lanes[req.Shape] = string(rune('A' + len(lanes) - 1))
			}
			answer := fmt.Sprintf("rows %d lane %s", req.Rows, lanes[req.Shape])
			for i, in := range req.Inputs {
				if in.Name != before[i].Name || !slices.Equal(in.Shape, before[i].Shape) {
					answer += fmt.Sprintf("\n%s %v %v", in.Name, in.Type, in.Shape)
				}
			}
			return answer
		}
	})
}

func parse(t testing.TB, text string) *modelconfig.Config {
	t.Helper()
	c, err := modelconfig.Parse("config.pbtxt", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func readRequest(t *testing.T, lines []string) *infer.Request {
	req := &infer.Request{}
	for _, line := range lines {
		f := strings.Fields(line)
		switch f[0] {
		case "id":
			req.ID = f[1]
		case "outputs":
			req.Outputs = f[1:]
		case "none":
		case "raw":
			req.Inputs = append(req.Inputs, tensor.Tensor{Data: data(f[1:])})
		default:
			in := tensor.Tensor{Name: f[0], Data: data(f[3:])}
			in.Type, _ = tensor.ParseType(f[1])
			if err := json.Unmarshal([]byte(f[2]), &in.Shape); err != nil {
				t.Fatalf("%s: %v", line, err)
			}
			req.Inputs = append(req.Inputs, in)
		}
	}
	return req
}

// data returns as many bytes as the only word says, or the words as strings.
func data(words []string) []byte {
	if len(words) == 1 {
		if n, err := strconv.Atoi(words[0]); err == nil {
			return make([]byte, n)
		}
	}
	var b []byte
	for _, w := range words {
		if cut, ok := strings.CutPrefix(w, "cut:"); ok { // declares that it is longer than it is
			b = append(binary.LittleEndian.AppendUint32(b, uint32(len(cut))+6), cut...)
			continue
		}
		b = tensor.AppendString(b, w)
	}
	return b
}

const anyImage = `
	name: "any"
	max_batch_size: 8
	input { name: "IMAGE" data_type: TYPE_UINT8 dims: [ -1, -1, 3 ] }
	input { name: "SCALE" data_type: TYPE_FP32 dims: [ 1 ] }
	output { name: "OUTPUT" data_type: TYPE_FP32 dims: [ 10 ] }`

func imageRequest(rows, height, width int64) *infer.Request {
	return &infer.Request{
		Inputs: []tensor.Tensor{
			{Name: "IMAGE", Type: tensor.Uint8, Shape: []int64{rows, height, width, 3}, Data: make([]byte, rows*height*width*3)},
			{Name: "SCALE", Type: tensor.FP32, Shape: []int64{rows, 1}, Data: make([]byte, 4*rows)},
		},
		Outputs: []string{"OUTPUT"},
	}
}

func TestCheckingAGoodRequestAllocatesNothing(t *testing.T) {
	c, req := parse(t, anyImage), imageRequest(2, 4, 5)
	n := testing.AllocsPerRun(100, func() {
		if err := c.Check(req); err != nil {
			t.Fatal(err)
		}
	})
	if n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
}

func TestElementsAreThoseOfOneRowOfVariableInputs(t *testing.T) {
	c := parse(t, anyImage)
	for _, rows := range []int64{1, 8} {
		req := imageRequest(rows, 4, 5)
		if err := c.Check(req); err != nil {
			t.Fatal(err)
		}
		if req.Elements != 4*5*3 {
			t.Errorf("a row of %d has %d elements, want %d: those of IMAGE, because SCALE has a fixed size", rows, req.Elements, 4*5*3)
		}
	}
}

func TestShapesOfEqualVariableDimensionsAreEqual(t *testing.T) {
	c := parse(t, anyImage)
	seen := map[uint64][2]int64{}
	for height := range int64(40) {
		for width := range int64(40) {
			for rows := range int64(2) {
				req := imageRequest(rows+1, height, width)
				if err := c.Check(req); err != nil {
					t.Fatal(err)
				}
				size := [2]int64{height, width}
				if before, ok := seen[req.Shape]; ok && before != size {
					t.Fatalf("%v and %v have the same shape %d", before, size, req.Shape)
				}
				seen[req.Shape] = size
			}
		}
	}
	if len(seen) != 40*40 {
		t.Errorf("%d shapes of %d sizes: the rows made a difference", len(seen), 40*40)
	}
}

// For any request, what passes the check has exactly the inputs of the configuration, with
// data of the size of their shapes.
func FuzzCheck(f *testing.F) {
	f.Add("IMAGE", uint8(tensor.Uint8), int64(2), int64(4), int64(5), int64(3), 120, "SCALE", uint8(tensor.FP32), int64(2), int64(1), 8, "OUTPUT")
	f.Add("SCALE", uint8(tensor.FP32), int64(2), int64(1), int64(0), int64(-1), 8, "IMAGE", uint8(tensor.Uint8), int64(2), int64(math.MaxInt64), 8, "")
	f.Add("", uint8(0), int64(-1), int64(-1), int64(-1), int64(-1), 8, "", uint8(0), int64(-1), int64(-1), 0, "x")
	c := parse(f, anyImage)
	f.Fuzz(func(t *testing.T, name0 string, type0 uint8, a, b, x, d int64, size0 int, name1 string, type1 uint8, e, g int64, size1 int, output string) {
		req := &infer.Request{Inputs: []tensor.Tensor{
			{Name: name0, Type: tensor.Type(type0), Shape: shape(a, b, x, d), Data: make([]byte, max(0, min(size0, 4096)))},
			{Name: name1, Type: tensor.Type(type1), Shape: shape(e, g), Data: make([]byte, max(0, min(size1, 4096)))},
		}}
		if output != "" {
			req.Outputs = []string{output}
		}
		if err := c.Check(req); err != nil {
			if infer.CodeOf(err) != infer.Invalid {
				t.Fatalf("code %v: %v", infer.CodeOf(err), err)
			}
			return
		}
		if req.Rows < 1 || req.Rows > c.MaxBatchSize {
			t.Fatalf("%d rows passed", req.Rows)
		}
		for i := range req.Inputs {
			in, want := &req.Inputs[i], &c.Inputs[i]
			if in.Name != want.Name || in.Type != want.Type || in.Rows() != req.Rows || in.Check() != nil {
				t.Fatalf("%+v passed as %+v", in, want)
			}
		}
	})
}

// shape drops trailing zeros, so that the fuzzer can choose the rank.
func shape(dims ...int64) []int64 {
	for len(dims) > 0 && dims[len(dims)-1] == 0 {
		dims = dims[:len(dims)-1]
	}
	return dims
}

func BenchmarkCheck(b *testing.B) {
	c, req := parse(b, anyImage), imageRequest(2, 4, 5)
	b.ReportAllocs()
	for b.Loop() {
		if err := c.Check(req); err != nil {
			b.Fatal(err)
		}
	}
}
