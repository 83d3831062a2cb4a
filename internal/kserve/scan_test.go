package kserve

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/leak"
	"github.com/shoal-serving/shoal/tensor"
)

func TestMain(m *testing.M) { leak.Main(m) }

var defaults = Limits{}.WithDefaults()

var numberTypes = []tensor.Type{
	tensor.Uint8, tensor.Uint16, tensor.Uint32, tensor.Uint64,
	tensor.Int8, tensor.Int16, tensor.Int32, tensor.Int64, tensor.FP32, tensor.FP64,
}

// Arrays that are easy to get wrong: text that only resembles JSON, and numbers close to a
// rounding boundary.
var trickyArrays = []string{
	``, ` `, `1`, `[`, `]`, `[]`, `[[]]`, `[[],[]]`, `[1]`, ` [ 1 , 2 ] `, `[1,2,]`, `[,1]`, `[1,,2]`, `[1 2]`, `[1][2]`, `[1],2`, `[[1]2]`, `[1[2]]`, `[[1],2]`,
	`[01]`, `[-01]`, `[+1]`, `[1.]`, `[.5]`, `[-]`, `[--1]`, `[1e]`, `[1e+]`, `[1e5.5]`, `[0x10]`, `[1_000]`, `[NaN]`, `[Infinity]`, `[-Infinity]`, `[null]`,
	`[true]`, `["1"]`, `[{}]`, `[1]x`, "[1\x00]", "[1\f]", "[\u00a01]", `[1}`, `{1]`,
	`[0]`, `[-0]`, `[-0.0]`, `[0e0]`, `[0e999999999999]`, `[1E5]`, `[1e+5]`, `[1e-5]`, `[1e0000000000000000000005]`, `[1e400]`, `[1e-400]`, `[-1e400]`,
	`[255]`, `[256]`, `[127]`, `[128]`, `[-128]`, `[-129]`, `[2147483647]`, `[2147483648]`, `[-2147483648]`, `[-2147483649]`, `[4294967295]`, `[4294967296]`,
	`[9223372036854775807]`, `[9223372036854775808]`, `[-9223372036854775808]`, `[-9223372036854775809]`,
	`[18446744073709551615]`, `[18446744073709551616]`, `[18446744073709551626]`, `[184467440737095516160]`, `[1.0]`, `[1e2]`,
	`[9007199254740993]`, `[9007199254740993.0]`, `[0.1]`, `[0.30000001192092896]`, `[1.7976931348623157e308]`, `[1.7976931348623159e308]`,
	`[16777217]`, `[16777217.000000001]`, `[16777219]`, `[3.4028234663852886e38]`, `[3.4028235677973366e38]`, `[3.4028236e38]`, `[1e39]`,
	`[1.1754943508222875e-38]`, `[1.1754942807573643e-38]`, `[1e-45]`, `[7.006492321624085e-46]`, `[7.0064923216240853546186479164495e-46]`, `[5e-324]`, `[2e-324]`,
	`[1.00000005960464477539062]`, `[1.000000059604644775390625]`, `[1.00000005960464477539063]`, `[1.00000017881393432617187]`, `[1.000000178813934326171875]`,
	`[123456789012345678901234567890]`, `[0.000000000000000000000000000000000000000000000123]`, `[12345678901234567890e-5]`,
	`[1e22]`, `[1e23]`, `[1e-22]`, `[1e-23]`, `[9007199254740992e22]`,
	`[0.` + strings.Repeat("0", 1<<20-1) + `1e5000000]`, `[` + strings.Repeat("9", 400) + `]`,
}

func TestArraysOfNumbersAreReadAsEncodingJSONReadsThem(t *testing.T) {
	for _, text := range trickyArrays {
		for _, kind := range numberTypes {
			compareWithEncodingJSON(t, kind, []byte(text))
		}
	}
}

func FuzzArraysOfNumbersAreReadAsEncodingJSONReadsThem(f *testing.F) {
	for _, text := range trickyArrays {
		if len(text) < 1000 {
			f.Add([]byte(text))
		}
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, kind := range numberTypes {
			compareWithEncodingJSON(t, kind, text)
		}
	})
}

func compareWithEncodingJSON(t *testing.T, kind tensor.Type, text []byte) {
	t.Helper()
	want, elements, ok := referenceArray(kind, text)
	got, err := appendData(nil, kind, elements, text, 0, &defaults)
	if tooDeep := err != nil && strings.Contains(err.Error(), "limit of JSON depth"); tooDeep {
		return // one of our limits
	}
	switch {
	case ok != (err == nil):
		t.Errorf("%v %.60q: encoding/json accepts it: %t, and we: %v", kind, text, ok, err)
	case ok && !bytes.Equal(got, want):
		t.Errorf("%v %.60q: %x, want %x", kind, text, got, want)
	}
}

// referenceArray is encoding/json's result for an array of numbers.
func referenceArray(kind tensor.Type, text []byte) (data []byte, elements int64, ok bool) {
	var array []any
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	if !json.Valid(text) || dec.Decode(&array) != nil || array == nil {
		return nil, 0, false
	}
	var flatten func(v any) error
	flatten = func(v any) (err error) {
		switch v := v.(type) {
		case []any:
			for _, e := range v {
				if err = flatten(e); err != nil {
					return err
				}
			}
			return nil
		case json.Number:
			elements++
			data, err = referenceNumber(data, kind, []byte(v))
			return err
		}
		return fmt.Errorf("%T", v)
	}
	return data, elements, flatten(array) == nil
}

func referenceNumber(dst []byte, kind tensor.Type, text []byte) ([]byte, error) {
	switch kind {
	case tensor.Uint8:
		return referenceOf[uint8](dst, text)
	case tensor.Uint16:
		return referenceOf[uint16](dst, text)
	case tensor.Uint32:
		return referenceOf[uint32](dst, text)
	case tensor.Uint64:
		return referenceOf[uint64](dst, text)
	case tensor.Int8:
		return referenceOf[int8](dst, text)
	case tensor.Int16:
		return referenceOf[int16](dst, text)
	case tensor.Int32:
		return referenceOf[int32](dst, text)
	case tensor.Int64:
		return referenceOf[int64](dst, text)
	case tensor.FP32:
		return referenceOf[float32](dst, text)
	}
	return referenceOf[float64](dst, text)
}

func referenceOf[T tensor.Number](dst, text []byte) ([]byte, error) {
	var v T
	if err := json.Unmarshal(text, &v); err != nil {
		return nil, err
	}
	return binary.Append(dst, binary.LittleEndian, v)
}

// jsonNumber is the grammar of numbers in JSON.
var jsonNumber = regexp.MustCompile(`^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?$`)

func FuzzNumbersAreReadAsStrconvReadsThem(f *testing.F) {
	for _, text := range trickyArrays {
		f.Add(strings.Trim(text[:min(len(text), 1000)], "[] "))
	}
	f.Fuzz(func(t *testing.T, text string) {
		if strings.ContainsAny(text, " \t\r\n,[]") {
			return // possibly another number of elements
		}
		for _, kind := range numberTypes {
			want, err := strconvNumber(kind, text)
			ok := err == nil && jsonNumber.MatchString(text)
			got, err := appendData(nil, kind, 1, []byte("["+text+"]"), 0, &defaults)
			switch {
			case ok != (err == nil):
				t.Errorf("%v %q: strconv reads it: %t, and we: %v", kind, text, ok, err)
			case ok && !bytes.Equal(got, want):
				t.Errorf("%v %q: %x, want %x", kind, text, got, want)
			}
		}
	})
}

func strconvNumber(kind tensor.Type, text string) ([]byte, error) {
	size := kind.Size()
	var bits uint64
	var err error
	switch kind {
	case tensor.FP32:
		var v float64
		v, err = strconv.ParseFloat(text, 32)
		bits = uint64(math.Float32bits(float32(v)))
	case tensor.FP64:
		var v float64
		v, err = strconv.ParseFloat(text, 64)
		bits = math.Float64bits(v)
	case tensor.Int8, tensor.Int16, tensor.Int32, tensor.Int64:
		var v int64
		v, err = strconv.ParseInt(text, 10, 8*size)
		bits = uint64(v)
	default:
		bits, err = strconv.ParseUint(text, 10, 8*size)
	}
	return binary.LittleEndian.AppendUint64(nil, bits)[:size], err
}

// The text of a response, decoded as a request and by strconv, must yield the same bits.
func FuzzNumbersGoThereAndBack(f *testing.F) {
	for _, bits := range []uint64{0, 1, 1 << 31, 1 << 63, math.MaxUint64, math.Float64bits(0.1), uint64(math.Float32bits(0.1)), 0x7f800000, 0x807fffff, 0x000fffffffffffff} {
		f.Add(bits)
	}
	f.Fuzz(func(t *testing.T, bits uint64) {
		for _, kind := range numberTypes {
			data := binary.LittleEndian.AppendUint64(nil, bits)[:kind.Size()]
			text, ok := appendElement(nil, kind, data)
			if !ok {
				continue // JSON has no infinity
			}
			parsed, err := strconvNumber(kind, string(text))
			if err != nil || !bytes.Equal(parsed, data) {
				t.Errorf("%v %x is written as %s, which strconv reads as %x, %v", kind, data, text, parsed, err)
			}
			read, err := appendData(nil, kind, 1, fmt.Appendf(nil, "[%s]", text), 0, &defaults)
			if err != nil || !bytes.Equal(read, data) {
				t.Errorf("%v %x is written as %s and read as %x, %v", kind, data, text, read, err)
			}
		}
	})
}

func TestANumberThatCannotBeReadIsRefusedWithItsPlace(t *testing.T) {
	for _, c := range []struct{ kind, data string }{ // a ^ marks the position
		{"FP32", `[1, ^x, 3]`},
		{"FP32", `[1, 0^2, 3]`},
		{"FP32", `[1, 2.^, 3]`},
		{"FP32", `[1, ^+2, 3]`},
		{"FP32", `[1, ^.5, 3]`},
		{"FP32", `[1, 2e^, 3]`},
		{"FP32", `[1, ^NaN, 3]`},
		{"FP32", `[1, ^"2", 3]`},
		{"FP32", `[1, ^1e39, 3]`},
		{"FP64", `[[1, 2], [^-1e309]]`},
		{"INT8", `[1, ^128, 3]`},
		{"INT8", `[1, 2, ^3.5]`},
		{"UINT64", `[1,2,^-3]`},
		{"BOOL", `[true,^1,true]`},
		{"FP32", `^1234567`},
	} {
		marked := fmt.Sprintf(`{"inputs":[{"name":"A", "shape":[3], "datatype":"%s", "data": %s}]}`, c.kind, c.data)
		b, o := body(strings.ReplaceAll(marked, "^", ""), "")
		_, err := DecodeRequest(t.Context(), b, o, nil)
		b.Release()
		if want := fmt.Sprintf(" offset %d", strings.Index(marked, "^")); infer.CodeOf(err) != infer.Invalid || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%s %s: %v, want it to end in%s", c.kind, c.data, err, want)
		}
	}
}

func TestArraysNestedTooDeeplyAreRefused(t *testing.T) {
	for depth, ok := range map[int]bool{1: true, 61: true, 62: false, 5000: false} { // nested in 3 more
		text := strings.Repeat("[", depth) + "7" + strings.Repeat("]", depth)
		if _, err := appendData(nil, tensor.Int32, 1, []byte(text), 0, &defaults); (err == nil) != ok {
			t.Errorf("depth %d: error %v", depth, err)
		}
	}
}

func TestEveryFloat32IsReadBackAsItWasWritten(t *testing.T) {
	for i := range uint64(50_000) {
		bits := uint32(i * 0x9e3779b97f4a7c15 >> 32) // evenly distributed
		f := math.Float32frombits(bits)
		text, ok := appendFloat([]byte("["), float64(f))
		if !ok {
			continue
		}
		got, err := appendData(nil, tensor.FP32, 1, append(text, ']'), 0, &defaults)
		if err != nil || binary.LittleEndian.Uint32(got) != bits {
			t.Fatalf("%x was written as %s and read as %x: %v", bits, text, got, err)
		}
	}
}

func TestStringsAndBooleansAreReadFromArrays(t *testing.T) {
	for _, c := range []struct {
		kind tensor.Type
		text string
		n    int64
		want string
	}{
		{tensor.Bool, `[true,false,[true]]`, 3, "\x01\x00\x01"},
		{tensor.Bytes, `["a","","\u00e9\"\\\n"]`, 3, "\x01\x00\x00\x00a\x00\x00\x00\x00\x05\x00\x00\x00é\"\\\n"},
		{tensor.Bytes, `["]",["[,"]]`, 2, "\x01\x00\x00\x00]\x02\x00\x00\x00[,"},
	} {
		got, err := appendData(nil, c.kind, c.n, []byte(c.text), 0, &defaults)
		if err != nil || string(got) != c.want {
			t.Errorf("%s: %q, %v, want %q", c.text, got, err, c.want)
		}
	}
	for _, text := range []string{`["a]`, `["a\"]`, `["a\`, `["`, `[a]`, `["\x"]`, `["\ud800"]`, "[\"\xff\"]", `[1]`, `[true]`, `["a""b"]`} {
		if got, err := appendData(nil, tensor.Bytes, 1, []byte(text), 0, &defaults); infer.CodeOf(err) != infer.Invalid {
			t.Errorf("%s: %q, %v, want an error", text, got, err)
		}
	}
	for _, text := range []string{`[tru]`, `[t]`, `[truefalse]`, `[1]`, `["true"]`, `[null]`} {
		if got, err := appendData(nil, tensor.Bool, 1, []byte(text), 0, &defaults); infer.CodeOf(err) != infer.Invalid {
			t.Errorf("%s: %q, %v, want an error", text, got, err)
		}
	}
}

func BenchmarkReadingNumbers(b *testing.B) {
	const n = 3200
	text := []byte("[")
	for i := range n {
		if i > 0 {
			text = append(text, ',')
		}
		text = fmt.Appendf(text, "%.8f", math.Sin(float64(i)))
	}
	text = append(text, ']')
	dst := make([]byte, 0, 4*n)
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := appendData(dst, tensor.FP32, n, text, 0, &defaults); err != nil {
			b.Fatal(err)
		}
	}
}
