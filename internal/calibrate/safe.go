package calibrate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/modelconfig"
	"github.com/shoal-serving/shoal/tensor"
)

// A Tolerance is how far two numbers may be apart that should be the same:
// Relative of the first, and Absolute of the largest in its row. Engines add up in
// another order when there are more rows.
type Tolerance struct {
	Relative, Absolute float64
}

// Tolerances are those of floating-point types. All others are compared exactly.
var Tolerances = map[tensor.Type]Tolerance{
	tensor.FP64: {1e-6, 1e-7},
	tensor.FP32: {1e-3, 1e-4},
	tensor.FP16: {1e-2, 2e-3},
	tensor.BF16: {4e-2, 1e-2},
}

// togethers are rows that are run together, by number: several sizes, and each row
// at several places.
var togethers = [][]int{{0, 1}, {2, 0, 1}, {7, 6, 5, 4, 3, 2, 1, 0}}

// patience is how long a model may take to show it. Nobody is served meanwhile.
const patience = 30 * time.Second

// Apart runs rows of a model by themselves and together, and returns why requests
// must not share a batch, or nothing if they may. inputs are tried one after the
// other until the model takes them. The error is ctx's.
func Apart(ctx context.Context, cfg *modelconfig.Config, inst engine.Instance, inputs []Inputs) (why string, err error) {
	limited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	c := check{cfg: cfg, inst: inst}
	why = c.apart(limited, inputs)
	switch {
	case ctx.Err() != nil:
		return "", context.Cause(ctx)
	case limited.Err() != nil:
		return fmt.Sprintf("whether rows see each other was not found out within %v", patience), nil
	}
	return why, nil
}

func (c *check) apart(ctx context.Context, inputs []Inputs) string {
	if len(inputs) == 0 {
		return "no inputs could be made up to try whether rows see each other; model_warmup may name some"
	}
	var alone [][]tensor.Tensor
	var err error
	for _, c.inputs = range inputs {
		if alone, err = c.alone(ctx); err == nil || ctx.Err() != nil || errors.Is(err, errRows) {
			break
		}
	}
	switch {
	case errors.Is(err, errRows):
		return fmt.Sprintf("the model does not give one row for each that it takes: %v", err)
	case err != nil:
		return fmt.Sprintf("the model failed with every input that was made up to try whether rows see each other; model_warmup may name better ones: %v", err)
	}
	again, err := c.run(ctx, 0)
	if err == nil {
		err = same(alone[0], again)
	}
	if err != nil {
		return fmt.Sprintf("the model does not give the same row the same answer twice, so that nobody can tell whether rows see each other: %v", err)
	}
	for _, rows := range togethers {
		if len(rows) > c.cfg.MaxBatchSize {
			continue
		}
		if err := c.together(ctx, rows, alone); err != nil {
			return fmt.Sprintf("rows give other answers together than alone: %v", err)
		}
	}
	return ""
}

// errRows is in the chain of errors about outputs that are not rows.
var errRows = errors.New("has another number of rows")

// check is one look at a model.
type check struct {
	cfg    *modelconfig.Config
	inst   engine.Instance
	inputs Inputs
}

// alone returns the outputs of each row by itself.
func (c *check) alone(ctx context.Context) ([][]tensor.Tensor, error) {
	var all [][]tensor.Tensor
	for row := range min(len(togethers[len(togethers)-1]), c.cfg.MaxBatchSize) {
		out, err := c.run(ctx, row)
		if err != nil {
			return nil, err
		}
		all = append(all, out)
	}
	return all, nil
}

func (c *check) together(ctx context.Context, rows []int, alone [][]tensor.Tensor) error {
	out, err := c.run(ctx, rows...)
	if err != nil {
		return fmt.Errorf("%d rows: %w", len(rows), err)
	}
	cuts := make([]tensor.Splitter, len(out))
	for k := range out {
		cuts[k] = tensor.Split(&out[k])
	}
	for place, row := range rows {
		one := slices.Clone(out)
		for k := range one {
			one[k].Data = cuts[k].Next(1)
			one[k].Shape = slices.Clone(one[k].Shape)
			one[k].Shape[0] = 1
		}
		if err := same(alone[row], one); err != nil {
			return fmt.Errorf("row %d of %d: %w", place+1, len(rows), err)
		}
	}
	return nil
}

// run returns the outputs of some rows, in memory of their own.
func (c *check) run(ctx context.Context, rows ...int) ([]tensor.Tensor, error) {
	req, err := c.inputs.Request(rows...)
	if err != nil {
		return nil, err
	}
	var out engine.Outputs
	if err := c.inst.Run(ctx, req.Inputs, &out); err != nil {
		return nil, err
	}
	defer out.Memory.Release()
	var all []tensor.Tensor
	for _, x := range out.Tensors {
		if err := x.Check(); err != nil {
			return nil, fmt.Errorf("output %s: %w", x.Name, err)
		}
		if len(x.Shape) == 0 || x.Rows() != len(rows) {
			return nil, fmt.Errorf("output %s %w: its shape is %v for %d", x.Name, errRows, x.Shape, len(rows))
		}
		x.Shape, x.Data = slices.Clone(x.Shape), bytes.Clone(x.Data)
		all = append(all, x)
	}
	return all, nil
}

// same returns how two answers to one row differ.
func same(want, got []tensor.Tensor) error {
	if len(want) != len(got) {
		return fmt.Errorf("%d outputs, not %d", len(got), len(want))
	}
	for k := range want {
		if err := sameTensor(&want[k], &got[k]); err != nil {
			return fmt.Errorf("output %s: %w", want[k].Name, err)
		}
	}
	return nil
}

func sameTensor(want, got *tensor.Tensor) error {
	if !slices.Equal(want.Shape, got.Shape) {
		return fmt.Errorf("shape %v, not %v", got.Shape, want.Shape)
	}
	if !isFloat(want.Type) {
		if !bytes.Equal(want.Data, got.Data) {
			return fmt.Errorf("other %v", want.Type)
		}
		return nil
	}
	size := want.Type.Size()
	largest := 0.0
	for at := 0; at < len(want.Data); at += size {
		if v := math.Abs(decode(want.Type, want.Data[at:])); !math.IsInf(v, 0) && v > largest {
			largest = v
		}
	}
	allowed := Tolerances[want.Type]
	for at := 0; at < len(want.Data); at += size {
		a, b := decode(want.Type, want.Data[at:]), decode(want.Type, got.Data[at:])
		if a == b || math.IsNaN(a) && math.IsNaN(b) {
			continue
		}
		near := allowed.Relative*math.Abs(a) + allowed.Absolute*largest
		if math.IsInf(a, 0) || !(math.Abs(a-b) <= near) { // also if one is no number
			return fmt.Errorf("element %d is %v, not %v", at/size, b, a)
		}
	}
	return nil
}
