package calibrate

import (
	"bytes"
	"slices"
	"testing"

	"github.com/shoal-serving/shoal/internal/modelconfig"
	"github.com/shoal-serving/shoal/tensor"
)

func TestRowsThatAreMadeUpDifferAndAreTheSameEachTime(t *testing.T) {
	types := []tensor.Type{tensor.Int64, tensor.Uint8, tensor.FP16, tensor.BF16, tensor.FP32, tensor.FP64, tensor.Bool, tensor.Bytes}
	cfg := &modelconfig.Config{Name: "m", MaxBatchSize: 8}
	for _, typ := range types {
		cfg.Inputs = append(cfg.Inputs, modelconfig.Tensor{Name: typ.String(), Type: typ, Dims: []int64{-1, 3}})
	}
	in := MadeUp(cfg)[0]
	both, err := in.First(2)
	if err != nil {
		t.Fatal(err)
	}
	second, err := in.Request(1)
	if err != nil {
		t.Fatal(err)
	}
	if both.Rows != 2 || !slices.Equal(both.Inputs[0].Shape, []int64{2, 16, 3}) {
		t.Fatalf("%d rows of shape %v", both.Rows, both.Inputs[0].Shape)
	}
	for k, typ := range types {
		cut := tensor.Split(&both.Inputs[k])
		a, b := cut.Next(1), cut.Next(1)
		if bytes.Equal(a, b) || !bytes.Equal(b, second.Inputs[k].Data) {
			t.Errorf("%v: rows %v and %v, and %v for the second alone", typ, a, b, second.Inputs[k].Data)
		}
	}
}

func TestPicturesAreMadeUpAsPictures(t *testing.T) {
	for want, dims := range map[int64][]int64{16: {-1}, 224: {3, 48, -1}, 64: {3, 2048, -1}} {
		cfg := &modelconfig.Config{Inputs: []modelconfig.Tensor{{Name: "x", Type: tensor.FP32, Dims: dims}}}
		if want == 64 {
			cfg.Inputs[0].Dims[0] = 100 // too much memory for more
		}
		if got := MadeUp(cfg)[0].size; got != want {
			t.Errorf("%v: %d, want %d", dims, got, want)
		}
	}
}

func TestModelsWhoseRowsWouldBeHugeAreTriedWithSmallOnes(t *testing.T) {
	cfg := &modelconfig.Config{Inputs: []modelconfig.Tensor{{Name: "x", Type: tensor.FP32, Dims: []int64{-1, -1, -1, -1, -1, -1, -1}}}}
	all := MadeUp(cfg)
	if len(all) != 2 || all[0].size != 1 || all[1].size != 1 {
		t.Errorf("tried with %+v", all)
	}
}

func TestASampleIsShiftedFromRowToRow(t *testing.T) {
	cfg := &modelconfig.Config{Name: "m", MaxBatchSize: 8, Inputs: []modelconfig.Tensor{
		{Name: "n", Type: tensor.Uint16, Dims: []int64{3}}, {Name: "s", Type: tensor.Bytes, Dims: []int64{2}},
	}}
	words := tensor.AppendString(tensor.AppendString(nil, "ab"), "c")
	in := Given(cfg, []tensor.Tensor{
		{Name: "s", Type: tensor.Bytes, Shape: []int64{2}, Data: words},
		{Name: "n", Type: tensor.Uint16, Shape: []int64{3}, Data: []byte{1, 0, 2, 0, 3, 0}},
	})
	req, err := in.First(2)
	if err != nil {
		t.Fatal(err)
	}
	if want := []byte{1, 0, 2, 0, 3, 0, 2, 0, 3, 0, 1, 0}; !bytes.Equal(req.Inputs[0].Data, want) {
		t.Errorf("numbers %v, want %v", req.Inputs[0].Data, want)
	}
	if want := tensor.AppendString(tensor.AppendString(words, "c"), "ab"); !bytes.Equal(req.Inputs[1].Data, want) {
		t.Errorf("strings %q, want %q", req.Inputs[1].Data, want)
	}
	if _, err := Given(cfg, []tensor.Tensor{{Name: "n"}}).First(1); err == nil {
		t.Error("a sample without all inputs was taken")
	}
}
