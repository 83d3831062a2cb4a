package kserve

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/shoal-serving/shoal/internal/buf"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/tensor"
)

// asking returns a request for outputs, each with a number of classes.
func asking(outputs ...any) *infer.Request {
	var req infer.Request
	var c Classes
	for i := 0; i < len(outputs); i += 2 {
		n := outputs[i+1].(uint64)
		c.AddOutput(&req, outputs[i].(string), n)
	}
	return &req
}

// classes returns the classes of one output, and their shape.
func classes(t *testing.T, kind tensor.Type, shape []int64, values any, most uint64, batched bool, labels ...string) string {
	t.Helper()
	data, err := binary.Append(nil, binary.LittleEndian, values)
	if err != nil {
		t.Fatal(err)
	}
	req := asking("other", uint64(0), "A", most, "A", uint64(0))
	resp := infer.Response{Outputs: []tensor.Tensor{{Name: "A", Type: kind, Shape: shape, Data: data}}}
	if err := req.Convert(&resp, batched, map[string][]string{"A": labels}); err != nil {
		t.Fatal(err)
	}
	out := &resp.Outputs[0]
	if err := out.Check(); err != nil || out.Type != tensor.Bytes {
		t.Errorf("%v of type %v", err, out.Type)
	}
	return fmt.Sprintf("%v %q", out.Shape, slices.Collect(out.Strings()))
}

func TestClassesAreTheLargestElementsOfEachRow(t *testing.T) {
	floats := []float32{0.25, 1, -3, 0.5, 0.125, 7}
	for _, c := range []struct{ got, want string }{
		{classes(t, tensor.FP32, []int64{2, 3}, floats, 2, true, "a", "b"), `[2 2] ["1.000000:1:b" "0.250000:0:a" "7.000000:2" "0.500000:0:a"]`},
		{classes(t, tensor.FP32, []int64{2, 3}, floats, 2, false), `[2] ["7.000000:5" "1.000000:1"]`},
		{classes(t, tensor.FP32, []int64{1, 2, 3}, floats, 1, true), `[1 1] ["7.000000:5"]`},
		{classes(t, tensor.FP32, []int64{6}, floats, math.MaxUint64, false), `[6] ["7.000000:5" "1.000000:1" "0.500000:3" "0.250000:0" "0.125000:4" "-3.000000:2"]`},
		{classes(t, tensor.FP64, []int64{2}, []float64{1e15, 2.0 / 3}, 2, false), `[2] ["1000000000000000.000000:0" "0.666667:1"]`},
		{classes(t, tensor.Int64, []int64{3}, []int64{math.MaxInt64 - 1, math.MaxInt64, math.MinInt64}, 2, false), `[2] ["9223372036854775807:1" "9223372036854775806:0"]`},
		{classes(t, tensor.Uint8, []int64{2}, []uint8{7, 200}, 1, false, "", "x:y"), `[1] ["200:1:x:y"]`},
		{classes(t, tensor.Int8, []int64{2}, []int8{-7, -1}, 1, false, "a"), `[1] ["-1:1"]`},
	} {
		if c.got != c.want {
			t.Errorf("got %s, want %s", c.got, c.want)
		}
	}
}

func TestOfEqualElementsTheFirstIsFirst(t *testing.T) {
	got := classes(t, tensor.Int32, []int64{4}, []int32{5, 9, 5, 5}, 4, false)
	if want := `[4] ["9:1" "5:0" "5:2" "5:3"]`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	nan, inf := math.NaN(), math.Inf(1)
	got = classes(t, tensor.FP64, []int64{4}, []float64{nan, -inf, 1, inf}, 4, false)
	if want := `[4] ["inf:3" "1.000000:2" "-inf:1" "nan:0"]`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestOutputsThatAreNotAskedForClassesStayAsTheyAre(t *testing.T) {
	if req := asking("A", uint64(0), "B", uint64(0)); req.Convert != nil || len(req.Outputs) != 2 {
		t.Errorf("nobody asked for classes: %+v", req)
	}
	for _, req := range []*infer.Request{asking("B", uint64(3)), asking("A", uint64(0), "B", uint64(3), "A", uint64(3))} {
		out := tensor.Tensor{Name: "A", Type: tensor.Uint8, Shape: []int64{2}, Data: []byte{1, 2}}
		resp := infer.Response{Outputs: []tensor.Tensor{out}}
		if err := req.Convert(&resp, false, nil); err != nil || resp.Outputs[0].Type != tensor.Uint8 || string(resp.Outputs[0].Data) != "\x01\x02" {
			t.Errorf("%+v: %v, %+v", req, err, resp.Outputs[0])
		}
	}
}

func TestWhatHasNoOrderHasNoClasses(t *testing.T) {
	before := buf.Live()
	for _, out := range []tensor.Tensor{
		{Name: "A", Type: tensor.Bytes, Shape: []int64{1}, Data: []byte("\x01\x00\x00\x00a")},
		{Name: "A", Type: tensor.FP16, Shape: []int64{1}, Data: []byte("ab")},
		{Name: "A", Type: tensor.Bool, Shape: []int64{1}, Data: []byte("\x01")},
		{Name: "A", Type: tensor.Uint8, Shape: []int64{maxRanked + 1}, Data: make([]byte, maxRanked+1)},
	} {
		resp := infer.Response{Outputs: []tensor.Tensor{out}, Memory: buf.Get(8)}
		if err := asking("A", uint64(1)).Convert(&resp, false, nil); infer.CodeOf(err) != infer.Invalid {
			t.Errorf("%v %v: %v", out.Type, out.Shape, err)
		}
	}
	if live := buf.Live(); live != before {
		t.Errorf("%d buffers in use, %d before", live, before)
	}
}

// The text of a class is many times as large as its element, and is not charged before it is made.
func TestAnOutputHasAsManyClassesAsOneRow(t *testing.T) {
	const rows = 1000
	for _, c := range []struct {
		shape []int64
		most  uint64
		want  bool
	}{
		{[]int64{rows, maxRanked / rows}, maxRanked, true},
		{[]int64{rows, maxRanked/rows + 1}, maxRanked / rows, true}, // the last of each row is left out
		{[]int64{rows, maxRanked/rows + 1}, math.MaxUint64, false},
		{[]int64{maxRanked, 0}, 1, true},
		{[]int64{maxRanked + 1, 0}, 1, false},
	} {
		size := c.shape[0] * c.shape[1]
		resp := infer.Response{Outputs: []tensor.Tensor{{Name: "A", Type: tensor.Uint8, Shape: c.shape, Data: make([]byte, size)}}}
		err := asking("A", c.most).Convert(&resp, true, nil)
		if (err == nil) != c.want || !c.want && infer.CodeOf(err) != infer.Invalid {
			t.Errorf("%d classes of %v: %v", c.most, c.shape, err)
		}
	}
}
