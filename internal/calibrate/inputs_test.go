package calibrate

import (
	"bytes"
	"slices"
	"testing"

	"github.com/shoal-serving/shoal/internal/access"
	"github.com/shoal-serving/shoal/internal/modelconfig"
	"github.com/shoal-serving/shoal/tensor"
)

func TestRowsThatAreMadeUpDifferAndAreTheSameEachTime(t *testing.T) {
	types := []tensor.Type{tensor.Int64, tensor.Uint8, tensor.FP16, tensor.BF16, tensor.FP32, tensor.FP64, tensor.Bool, tensor.Bytes}
	cfg := &modelconfig.Config{Name: "m", MaxBatchSize: 8}
	for _, typ := range types {
		cfg.Inputs = append(cfg.Inputs, modelconfig.Tensor{Name: typ.String(), Type: typ, Dims: []int64{-1, 3}})
	}
	in := Synthetic(cfg)[0]
	both, err := in.Request(2)
	if err != nil {
		t.Fatal(err)
	}
	second, err := in.rowsRequest(1)
	if err != nil {
		t.Fatal(err)
	}
	if both.Caller != access.Self { // or calls of the model to others are refused where callers have rights
		t.Errorf("the request has the caller %q, want the server", both.Caller.Name())
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
		if got := Synthetic(cfg)[0].dimSize; got != want {
			t.Errorf("%v: %d, want %d", dims, got, want)
		}
	}
}

func TestModelsWhoseRowsWouldBeHugeAreTriedWithSmallOnes(t *testing.T) {
	cfg := &modelconfig.Config{Inputs: []modelconfig.Tensor{{Name: "x", Type: tensor.FP32, Dims: []int64{-1, -1, -1, -1, -1, -1, -1}}}}
	all := Synthetic(cfg)
	if len(all) != 2 || all[0].dimSize != 1 || all[1].dimSize != 1 {
		t.Errorf("tried with %+v", all)
	}
}

func TestASampleIsShiftedFromRowToRow(t *testing.T) {
	cfg := &modelconfig.Config{Name: "m", MaxBatchSize: 8, Inputs: []modelconfig.Tensor{
		{Name: "n", Type: tensor.Uint16, Dims: []int64{3}}, {Name: "s", Type: tensor.Bytes, Dims: []int64{2}},
	}}
	words := tensor.AppendString(tensor.AppendString(nil, "ab"), "c")
	in := FromSample(cfg, []tensor.Tensor{
		{Name: "s", Type: tensor.Bytes, Shape: []int64{2}, Data: words},
		{Name: "n", Type: tensor.Uint16, Shape: []int64{3}, Data: []byte{1, 0, 2, 0, 3, 0}},
	})
	req, err := in.Request(2)
	if err != nil {
		t.Fatal(err)
	}
	if want := []byte{1, 0, 2, 0, 3, 0, 2, 0, 3, 0, 1, 0}; !bytes.Equal(req.Inputs[0].Data, want) {
		t.Errorf("numbers %v, want %v", req.Inputs[0].Data, want)
	}
	if want := tensor.AppendString(tensor.AppendString(words, "c"), "ab"); !bytes.Equal(req.Inputs[1].Data, want) {
		t.Errorf("strings %q, want %q", req.Inputs[1].Data, want)
	}
	if _, err := FromSample(cfg, []tensor.Tensor{{Name: "n"}}).Request(1); err == nil {
		t.Error("a sample without all inputs was taken")
	}
}

func TestRowsAreMadeUpInTheShapeThatTrafficHas(t *testing.T) {
	cfg := &modelconfig.Config{Name: "m", MaxBatchSize: 8, Inputs: []modelconfig.Tensor{
		{Name: "x", Type: tensor.FP32, Dims: []int64{3, -1}}, {Name: "n", Type: tensor.Int32, Dims: []int64{2}}, {Name: "o", Type: tensor.FP32, Dims: []int64{-1}, Optional: true},
	}}
	in := Synthetic(cfg)[0]
	if !in.SizesGuessed() || in.Shape() != "x[3,16] o[16]" || in.SeenShape() != "" {
		t.Errorf("made up as %q, seen %q", in.Shape(), in.SeenShape())
	}
	like, err := in.WithSizesOf([]tensor.Tensor{{Name: "x", Shape: []int64{3, 320}}, {Name: "n", Shape: []int64{2}}})
	if err != nil || !like.SizesGuessed() || like.Shape() != "x[3,320]" || like.SeenShape() != "x[3,320]" {
		t.Errorf("like the traffic it is %q, seen %q, %v", like.Shape(), like.SeenShape(), err)
	}
	req, err := like.Request(2)
	if err != nil || len(req.Inputs) != 2 || !slices.Equal(req.Inputs[0].Shape, []int64{2, 3, 320}) {
		t.Errorf("asks %+v, %v", req, err)
	}
	if back, err := like.WithSizesOf([]tensor.Tensor{{Name: "x", Shape: []int64{3, 16}}, {Name: "n", Shape: []int64{2}}, {Name: "o", Shape: []int64{16}}}); err != nil || back.Shape() != in.Shape() || back.SeenShape() != "" {
		t.Errorf("as it was made up it is %q, seen %q, %v", back.Shape(), back.SeenShape(), err)
	}
	if _, err := in.WithSizesOf([]tensor.Tensor{{Name: "x", Shape: []int64{3, maxElements}}}); err == nil {
		t.Error("a huge row was made up")
	}
}

func TestOnlySizesThatWereMadeUpAreToBeSeen(t *testing.T) {
	free := modelconfig.Tensor{Name: "x", Type: tensor.Uint8, Dims: []int64{-1}}
	reshaped := free
	reshaped.Reshape = []int64{1, -1}
	for want, in := range map[string]Inputs{
		"x[16]": Synthetic(&modelconfig.Config{Inputs: []modelconfig.Tensor{reshaped}})[0],
		"x[2]":  FromSample(&modelconfig.Config{Inputs: []modelconfig.Tensor{free}}, []tensor.Tensor{{Name: "x", Shape: []int64{2}}}),
		"":      Synthetic(fourNumbers(8))[0],
	} {
		if in.SizesGuessed() || in.Shape() != want {
			t.Errorf("%q is to be seen, want %q", in.Shape(), want)
		}
	}
}
