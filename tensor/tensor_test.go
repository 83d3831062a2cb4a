package tensor

import (
	"bytes"
	"math"
	"math/big"
	"slices"
	"testing"
)

func TestEveryTypeHasItsNameAndSize(t *testing.T) {
	sizes := map[string]int{
		"BOOL": 1, "UINT8": 1, "UINT16": 2, "UINT32": 4, "UINT64": 8, "INT8": 1, "INT16": 2, "INT32": 4, "INT64": 8,
		"FP16": 2, "FP32": 4, "FP64": 8, "BYTES": 0, "BF16": 2,
	}
	for name, size := range sizes {
		typ, ok := ParseType(name)
		if !ok || typ.String() != name || typ.Size() != size {
			t.Errorf("%s is known: %v, prints as %v, has size %d; want size %d", name, ok, typ, typ.Size(), size)
		}
	}
	for _, name := range []string{"", "INVALID", "fp32", "STRING"} {
		if _, ok := ParseType(name); ok {
			t.Errorf("%q was taken for a type", name)
		}
	}
	if got := Type(200).String(); got != "Type(200)" {
		t.Errorf("an unknown type prints as %s", got)
	}
}

func TestElementsRefusesWhatCannotBeCounted(t *testing.T) {
	good := func(shape []int64, want int64) {
		t.Helper()
		if n, err := Elements(shape); err != nil || n != want {
			t.Errorf("Elements(%v) = %d, %v; want %d", shape, n, err, want)
		}
	}
	bad := func(shape ...int64) {
		t.Helper()
		if n, err := Elements(shape); err == nil {
			t.Errorf("Elements(%v) = %d, want an error", shape, n)
		}
	}
	good(nil, 1)
	good([]int64{0}, 0)
	good([]int64{2, 3, 4}, 24)
	good([]int64{math.MaxInt64, 0}, 0)
	bad(0, math.MaxInt64, math.MaxInt64) // empty, but no array could have such a shape
	bad(-1)
	bad(0, -1)
	bad(math.MaxInt64, 2)
	bad(1<<32, 1<<32)
	if _, err := ByteSize(FP64, []int64{math.MaxInt64 / 4}); err == nil {
		t.Error("more bytes than can be counted were counted")
	}
}

func TestCheckWantsExactlyTheBytesOfTheShape(t *testing.T) {
	check := func(typ Type, shape []int64, data []byte, ok bool) {
		t.Helper()
		x := Tensor{Name: "x", Type: typ, Shape: shape, Data: data}
		if err := x.Check(); (err == nil) != ok {
			t.Errorf("%v %v of %d bytes: %v", typ, shape, len(data), err)
		}
	}
	two := AppendString(AppendString(nil, "ab"), "\x00")
	check(FP32, []int64{2, 2}, make([]byte, 16), true)
	check(FP32, []int64{2, 2}, make([]byte, 15), false)
	check(FP32, []int64{2, 2}, make([]byte, 17), false)
	check(BF16, nil, make([]byte, 2), true)
	check(Int8, []int64{0, 5}, nil, true)
	check(Invalid, []int64{1}, nil, false)
	check(Bytes, []int64{2}, two, true)
	check(Bytes, []int64{1}, two, false)
	check(Bytes, []int64{3}, two, false)
	check(Bytes, []int64{2}, two[:len(two)-1], false)
	check(Bytes, []int64{1}, []byte{0xff, 0xff, 0xff, 0xff}, false)
	check(Bytes, []int64{math.MaxInt64}, two, false)
}

func TestStringsKeepEveryByte(t *testing.T) {
	want := []string{"", "a\x00b", "\xff"}
	var data []byte
	for _, s := range want {
		data = AppendString(data, s)
	}
	x := Tensor{Type: Bytes, Shape: []int64{3}, Data: data}
	var got []string
	for s := range x.Strings() {
		got = append(got, string(s))
	}
	if !slices.Equal(got, want) {
		t.Errorf("strings are %q, want %q", got, want)
	}
}

func TestSplitCutsRowsWithoutCopying(t *testing.T) {
	numbers := Tensor{Type: Uint16, Shape: []int64{4, 3}, Data: make([]byte, 24)}
	cut := Split(&numbers)
	first, second := cut.Next(1), cut.Next(3)
	if len(first) != 6 || len(second) != 18 || &second[0] != &numbers.Data[6] {
		t.Errorf("cut %d and %d bytes, want 6 and 18 of the tensor's own", len(first), len(second))
	}
	if cap(first) != len(first) {
		t.Error("appending to one request's rows would write into the next one's")
	}

	text := Tensor{Type: Bytes, Shape: []int64{2, 2}}
	for _, s := range []string{"a", "bb", "", "dddd"} {
		text.Data = AppendString(text.Data, s)
	}
	cut = Split(&text)
	if got, want := cut.Next(1), AppendString(AppendString(nil, "a"), "bb"); !bytes.Equal(got, want) {
		t.Errorf("first row is %q, want %q", got, want)
	}
	if got, want := cut.Next(1), AppendString(AppendString(nil, ""), "dddd"); !bytes.Equal(got, want) {
		t.Errorf("second row is %q, want %q", got, want)
	}

	defer func() {
		if recover() == nil {
			t.Error("a row was cut that is not there")
		}
	}()
	cut.Next(1)
}

func TestJoinableTellsWhatCannotBeRowsOfOneTensor(t *testing.T) {
	a := Tensor{Name: "x", Type: FP32, Shape: []int64{1, 3}}
	for _, b := range []Tensor{
		{Name: "y", Type: FP32, Shape: []int64{1, 3}},
		{Name: "x", Type: FP64, Shape: []int64{1, 3}},
		{Name: "x", Type: FP32, Shape: []int64{3}},
		{Name: "x", Type: FP32, Shape: []int64{1, 4}},
	} {
		if Joinable(&a, &b) == nil {
			t.Errorf("%v and %v were taken for rows of one tensor", a, b)
		}
	}
	b := Tensor{Name: "x", Type: FP32, Shape: []int64{7, 3}}
	if err := Joinable(&a, &b); err != nil {
		t.Error(err)
	}
}

func TestViewsSeeTheTensorsOwnMemory(t *testing.T) {
	values := []float32{1, 2, 3}
	x := Tensor{Name: "x", Type: FP32, Shape: []int64{3}, Data: Data(values)}
	view, err := View[float32](&x)
	if err != nil {
		t.Fatal(err)
	}
	view[1] = 7
	if values[1] != 7 {
		t.Error("the view is a copy")
	}
	if _, err := View[float64](&x); err == nil {
		t.Error("4-byte elements were seen as 8-byte ones")
	}
	x.Data = append([]byte{0}, x.Data...)[1:]
	if _, err := View[float32](&x); err == nil {
		t.Error("data that is not aligned was seen in place")
	}
	x.Data = x.Data[:5]
	if _, err := View[float32](&x); err == nil {
		t.Error("half an element was seen")
	}
	if empty, err := View[int64](&Tensor{Type: Int64, Shape: []int64{0}}); err != nil || len(empty) != 0 {
		t.Errorf("an empty tensor is seen as %v, %v", empty, err)
	}
}

func FuzzCheck(f *testing.F) {
	f.Add(uint8(Bytes), int64(2), int64(1), []byte{1, 0, 0, 0, 'a', 0, 0, 0, 0})
	f.Add(uint8(FP32), int64(1), int64(2), make([]byte, 8))
	f.Fuzz(func(t *testing.T, typ uint8, rows, columns int64, data []byte) {
		x := Tensor{Type: Type(typ), Shape: []int64{rows, columns}, Data: data}
		if x.Check() != nil || rows > 1000 {
			return
		}
		cut := Split(&x)
		total := 0
		for range rows {
			total += len(cut.Next(1))
		}
		if total != len(data) {
			t.Errorf("the rows have %d bytes together, the tensor %d", total, len(data))
		}
	})
}

// Sizes are those of numbers that cannot overflow, or there are none.
func FuzzSizesDoNotOverflow(f *testing.F) {
	f.Add(uint8(FP64), int64(1)<<31, int64(1)<<32, int64(0))
	f.Add(uint8(Int8), int64(math.MaxInt64), int64(2), int64(-1))
	f.Add(uint8(BF16), int64(3037000500), int64(3037000500), int64(1))
	f.Add(uint8(Bytes), int64(1), int64(1), int64(1))
	f.Fuzz(func(t *testing.T, kind uint8, a, b, c int64) {
		shape := []int64{a, b, c}
		want := big.NewInt(1)
		for _, d := range shape {
			want.Mul(want, big.NewInt(d))
		}
		negative := a < 0 || b < 0 || c < 0
		// A dimension of 0 makes the others count for nothing, but for their sign.
		elements, err := Elements(shape)
		if ok := !negative && want.IsInt64(); err == nil && (!ok || elements != want.Int64()) || err != nil && ok && want.Sign() != 0 {
			t.Errorf("%v: %d elements, %v, want %v", shape, elements, err, want)
		}
		size, err := ByteSize(Type(kind), shape)
		want.Mul(want, big.NewInt(int64(Type(kind).Size())))
		if err == nil && (negative || Type(kind).Size() == 0 || !want.IsInt64() || size != want.Int64()) {
			t.Errorf("%v of %v: %d bytes, want %v", shape, Type(kind), size, want)
		}
	})
}
