package calibrate

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/shoal-serving/shoal/internal/access"
	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/modelconfig"
	"github.com/shoal-serving/shoal/tensor"
)

// A fake is an instance that gives its first input to a function, row by row, and
// returns what comes of them.
type fake func(rows [][]float32) ([][]float32, error)

func (f fake) Run(ctx context.Context, in []tensor.Tensor, out *engine.Outputs) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	var rows [][]float32
	cut := tensor.Split(&in[0])
	for range in[0].Rows() {
		data := cut.Next(1)
		row := make([]float32, len(data)/4)
		for i := range row {
			row[i] = math.Float32frombits(binary.LittleEndian.Uint32(data[4*i:]))
		}
		rows = append(rows, row)
	}
	rows, err := f(rows)
	if err != nil {
		return err
	}
	x := tensor.Tensor{Name: "y", Type: tensor.FP32, Shape: []int64{int64(len(rows)), 4}}
	for _, row := range rows {
		for _, v := range row {
			x.Data = binary.LittleEndian.AppendUint32(x.Data, math.Float32bits(v))
		}
	}
	out.Tensors = append(out.Tensors[:0], x)
	return nil
}

func (fake) Close() error { return nil }

func fourNumbers(maxBatch int) *modelconfig.Config {
	return &modelconfig.Config{
		Name: "m", MaxBatchSize: maxBatch,
		Inputs:  []modelconfig.Tensor{{Name: "x", Type: tensor.FP32, Dims: []int64{4}}},
		Outputs: []modelconfig.Tensor{{Name: "y", Type: tensor.FP32, Dims: []int64{4}}},
	}
}

func TestModelsWhoseRowsSeeEachOtherAreFound(t *testing.T) {
	calls := 0
	for _, tt := range []struct {
		name string
		max  int
		run  fake
		want string // "" means that rows may share a batch
	}{
		{"hands through", 64, func(rows [][]float32) ([][]float32, error) { return rows, nil }, ""},
		{"is not quite exact", 64, func(rows [][]float32) ([][]float32, error) {
			rows[0][0] *= 1 + 1e-6*float32(len(rows))
			return rows, nil
		}, ""},
		{"no number is no number", 64, func(rows [][]float32) ([][]float32, error) {
			rows[0][0] = float32(math.NaN())
			for i := range rows {
				rows[i][0] = float32(math.NaN())
			}
			return rows, nil
		}, ""},
		{"no number in the second row", 64, func(rows [][]float32) ([][]float32, error) {
			if len(rows) > 1 {
				rows[1][3] = float32(math.NaN())
			}
			return rows, nil
		}, "rows are not independent: row 2 of 2: output y: element 3 is NaN, not "},
		{"adds up over rows", 64, func(rows [][]float32) ([][]float32, error) {
			for i := 1; i < len(rows); i++ {
				rows[i][0] += rows[i-1][0]
			}
			return rows, nil
		}, "row 2 of 2: output y: element 0 is "},
		{"wrong from three on", 64, func(rows [][]float32) ([][]float32, error) {
			if len(rows) > 2 {
				rows[2], rows[1] = rows[1], rows[2]
			}
			return rows, nil
		}, "row 2 of 3: output y"},
		{"wrong from three on, where two are the most", 2, func(rows [][]float32) ([][]float32, error) {
			if len(rows) > 2 {
				return nil, errors.New("too many")
			}
			return rows, nil
		}, ""},
		{"wrong for two, which are the most", 2, func(rows [][]float32) ([][]float32, error) {
			if len(rows) == 2 {
				rows[1][0]++
			}
			return rows, nil
		}, "row 2 of 2: output y: element 0 is "},
		{"wrong for eight, which are the most", 8, func(rows [][]float32) ([][]float32, error) {
			if len(rows) == 8 {
				rows[0][0]++
			}
			return rows, nil
		}, "row 1 of 8: output y: element 0 is "},
		{"wrong in the last of eight", 64, func(rows [][]float32) ([][]float32, error) {
			if len(rows) == 8 {
				rows[7][1] += 0.01
			}
			return rows, nil
		}, "row 8 of 8: output y: element 1 is "},
		{"never the same", 64, func(rows [][]float32) ([][]float32, error) {
			calls++
			rows[0][0] = float32(calls)
			return rows, nil
		}, "the model is not deterministic"},
		{"fails together", 64, func(rows [][]float32) ([][]float32, error) {
			if len(rows) > 1 {
				return nil, errors.New("one at a time")
			}
			return rows, nil
		}, "2 rows: one at a time"},
		{"fails always", 64, func([][]float32) ([][]float32, error) { return nil, errors.New("not this") }, "failed with all inputs that were generated"},
		{"drops rows", 64, func(rows [][]float32) ([][]float32, error) { return rows[1:], nil }, "does not return one row of output for each row of input: output y has the wrong number of rows: shape [0 4] for 1"},
	} {
		cfg := fourNumbers(tt.max)
		why, err := CombineUnsafeReason(t.Context(), cfg, tt.run, Synthetic(cfg))
		if err != nil || tt.want == "" && why != "" || !strings.Contains(why, tt.want) {
			t.Errorf("%s: %q, %v; want %q", tt.name, why, err, tt.want)
		}
	}
}

// A calling one calls another model when it runs, which only the server may.
type calling struct{ fake }

func (calling) Run(context.Context, []tensor.Tensor, *engine.Outputs) error {
	return errors.New("it has no caller")
}

func (c calling) RunFor(ctx context.Context, caller *access.Caller, in []tensor.Tensor, out *engine.Outputs) error {
	if caller != access.Self {
		return fmt.Errorf("%s may not call the other model", caller.Name())
	}
	return c.fake.Run(ctx, in, out)
}

func TestAModelThatIsCheckedCallsOthersAsTheServer(t *testing.T) {
	model := calling{func(rows [][]float32) ([][]float32, error) { return rows, nil }}
	cfg := fourNumbers(8)
	if why, err := CombineUnsafeReason(t.Context(), cfg, model, Synthetic(cfg)); why != "" || err != nil {
		t.Errorf("%q, %v; want that rows may share a batch", why, err)
	}
}

// A slow one is not waited for.
type slowly struct{}

func (slowly) Run(ctx context.Context, _ []tensor.Tensor, _ *engine.Outputs) error {
	<-ctx.Done()
	return ctx.Err()
}
func (slowly) Close() error { return nil }

func TestAModelThatTakesTooLongToShowItIsNotBatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := fourNumbers(8)
		why, err := CombineUnsafeReason(t.Context(), cfg, slowly{}, Synthetic(cfg))
		if err != nil || why != "the check whether rows are independent did not finish within 30s" {
			t.Errorf("%q, %v", why, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := CombineUnsafeReason(ctx, cfg, slowly{}, Synthetic(cfg)); !errors.Is(err, context.Canceled) {
			t.Errorf("%v when the load has ended", err)
		}
	})
}

func TestTolerancesAreThoseOfTheType(t *testing.T) {
	pair := func(typ tensor.Type, data ...byte) *tensor.Tensor {
		return &tensor.Tensor{Name: "y", Type: typ, Shape: []int64{1, int64(len(data) / typ.Size())}, Data: data}
	}
	float32s := func(v ...float32) *tensor.Tensor {
		var data []byte
		for _, x := range v {
			data = binary.LittleEndian.AppendUint32(data, math.Float32bits(x))
		}
		return pair(tensor.FP32, data...)
	}
	for _, tt := range []struct {
		name      string
		want, got *tensor.Tensor
		same      bool
	}{
		{"a thousandth", float32s(100), float32s(100.09), true},
		{"more", float32s(100), float32s(100.2), false},
		{"small beside large", float32s(1000, 0), float32s(1000, 0.09), true},
		{"large beside small", float32s(1, 0), float32s(1, 0.09), false},
		{"infinity", float32s(float32(math.Inf(1)), 1), float32s(float32(math.Inf(1)), 1), true},
		{"the other infinity", float32s(float32(math.Inf(1))), float32s(float32(math.Inf(-1))), false},
		{"halves: 1 and 1.0078", pair(tensor.FP16, 0x00, 0x3c), pair(tensor.FP16, 0x08, 0x3c), true},
		{"halves: 1 and 1.03", pair(tensor.FP16, 0x00, 0x3c), pair(tensor.FP16, 0x20, 0x3c), false},
		{"integers", pair(tensor.Int8, 7), pair(tensor.Int8, 7), true},
		{"other integers", pair(tensor.Int8, 7), pair(tensor.Int8, 8), false},
		{"other shapes", pair(tensor.Int8, 7), pair(tensor.Int8, 7, 7), false},
	} {
		if err := compareTensors(tt.want, tt.got); (err == nil) != tt.same {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}

func TestNumbersAreEncodedAsTheyAreDecoded(t *testing.T) {
	for typ, exact := range map[tensor.Type]float64{tensor.FP64: 1e-15, tensor.FP32: 1e-7, tensor.FP16: 1e-3, tensor.BF16: 1e-2} {
		for _, v := range []float64{0, 0.001, 0.1, 0.25, 0.5, 0.75, 0.999} {
			data := binary.LittleEndian.AppendUint64(nil, encode(typ, v))
			if got := tensor.Float(typ, data); !(math.Abs(got-v) <= exact*v) {
				t.Errorf("%v: %v became %v", typ, v, got)
			}
		}
	}
}
