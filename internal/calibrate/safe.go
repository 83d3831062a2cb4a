package calibrate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/shoal-serving/shoal/internal/access"
	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/modelconfig"
	"github.com/shoal-serving/shoal/tensor"
)

// A tolerance is how far two numbers that should be equal may differ: the sum of Relative
// times the first number and Absolute times the largest number of its row. They differ
// because engines add in another order when a batch has more rows.
type tolerance struct {
	Relative, Absolute float64
}

// tolerances are the tolerances for floating-point types. All other types are compared
// exactly.
var tolerances = map[tensor.Type]tolerance{
	tensor.FP64: {1e-6, 1e-7},
	tensor.FP32: {1e-3, 1e-4},
	tensor.FP16: {1e-2, 2e-3},
	tensor.BF16: {4e-2, 1e-2},
}

// testBatches are the batches to check, as row numbers: several sizes, with rows in
// different positions.
var testBatches = [][]int{{0, 1}, {2, 0, 1}, {7, 6, 5, 4, 3, 2, 1, 0}}

// checkTimeout bounds the check, because the model does not serve requests meanwhile.
const checkTimeout = 30 * time.Second

// CombineUnsafeReason runs rows of a model one by one and in batches, and compares the
// results. It returns why requests must not share a batch, or "" if they may. It uses the
// first of inputs that the model accepts. The error is that of ctx, if ctx ended.
func CombineUnsafeReason(ctx context.Context, cfg *modelconfig.Config, inst engine.Instance, inputs []Inputs) (reason string, err error) {
	limited, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	c := check{cfg: cfg, inst: inst}
	reason = c.unsafeReason(limited, inputs)
	switch {
	case ctx.Err() != nil:
		return "", context.Cause(ctx)
	case limited.Err() != nil:
		return fmt.Sprintf("the check whether rows are independent did not finish within %v", checkTimeout), nil
	}
	return reason, nil
}

func (c *check) unsafeReason(ctx context.Context, inputs []Inputs) string {
	if len(inputs) == 0 {
		return "no inputs could be generated to check whether rows are independent; add a sample to model_warmup"
	}
	var single [][]tensor.Tensor
	var err error
	for _, c.inputs = range inputs {
		if single, err = c.runSingly(ctx); err == nil || ctx.Err() != nil || errors.Is(err, errRowCount) {
			break
		}
	}
	switch {
	case errors.Is(err, errRowCount):
		return fmt.Sprintf("the model does not return one row of output for each row of input: %v", err)
	case err != nil:
		return fmt.Sprintf("the model failed with all inputs that were generated to check whether rows are independent; add a sample to model_warmup: %v", err)
	}
	again, err := c.run(ctx, 0)
	if err == nil {
		err = compareOutputs(single[0], again)
	}
	if err != nil {
		return fmt.Sprintf("the model is not deterministic, so it cannot be checked whether rows are independent: %v", err)
	}
	for _, rows := range testBatches {
		if len(rows) > c.cfg.MaxBatchSize {
			continue
		}
		if err := c.compareBatch(ctx, rows, single); err != nil {
			return fmt.Sprintf("rows are not independent: %v", err)
		}
	}
	return ""
}

// errRowCount is wrapped by errors about outputs with the wrong number of rows.
var errRowCount = errors.New("has the wrong number of rows")

// A check checks one model.
type check struct {
	cfg    *modelconfig.Config
	inst   engine.Instance
	inputs Inputs
}

// runSingly runs each row by itself and returns the outputs by row.
func (c *check) runSingly(ctx context.Context) ([][]tensor.Tensor, error) {
	var all [][]tensor.Tensor
	for row := range min(len(testBatches[len(testBatches)-1]), c.cfg.MaxBatchSize) {
		out, err := c.run(ctx, row)
		if err != nil {
			return nil, err
		}
		all = append(all, out)
	}
	return all, nil
}

// compareBatch runs a batch, and compares its rows with those that were run singly.
func (c *check) compareBatch(ctx context.Context, rows []int, single [][]tensor.Tensor) error {
	out, err := c.run(ctx, rows...)
	if err != nil {
		return fmt.Errorf("%d rows: %w", len(rows), err)
	}
	return compareRows(out, rows, single, func(int, int, *tensor.Tensor) {})
}

// compareRows compares the outputs of a batch of the given rows with those that were run
// singly. Before that, cut changes output k of a row.
func compareRows(out []tensor.Tensor, rows []int, single [][]tensor.Tensor, cut func(row, k int, x *tensor.Tensor)) error {
	parts := make([]tensor.Splitter, len(out))
	for k := range out {
		parts[k] = tensor.Split(&out[k])
	}
	for i, row := range rows {
		one := slices.Clone(out)
		for k := range one {
			one[k].Data = parts[k].Next(1)
			one[k].Shape = slices.Clone(one[k].Shape)
			one[k].Shape[0] = 1
			cut(row, k, &one[k])
		}
		if err := compareOutputs(single[row], one); err != nil {
			return fmt.Errorf("row %d of %d: %w", i+1, len(rows), err)
		}
	}
	return nil
}

// run runs the given rows as one batch, and returns a copy of the outputs.
func (c *check) run(ctx context.Context, rows ...int) ([]tensor.Tensor, error) {
	req, err := c.inputs.rowsRequest(rows...)
	if err != nil {
		return nil, err
	}
	return runCopied(ctx, c.inst, req.Inputs, len(rows))
}

// runCopied runs inputs of the given number of rows, and returns a copy of the outputs. Models that
// the model calls are called by the server, as when it is warmed up.
func runCopied(ctx context.Context, inst engine.Instance, inputs []tensor.Tensor, rows int) ([]tensor.Tensor, error) {
	var out engine.Outputs
	var err error
	if d, ok := inst.(engine.DelegateRunner); ok {
		err = d.RunFor(ctx, access.Self, inputs, &out)
	} else {
		err = inst.Run(ctx, inputs, &out)
	}
	if err != nil {
		return nil, err
	}
	defer out.Memory.Release()
	var all []tensor.Tensor
	for _, x := range out.Tensors {
		if err := x.Check(); err != nil {
			return nil, fmt.Errorf("output %s: %w", x.Name, err)
		}
		if len(x.Shape) == 0 || x.Rows() != rows {
			return nil, fmt.Errorf("output %s %w: shape %v for %d", x.Name, errRowCount, x.Shape, rows)
		}
		x.Shape, x.Data = slices.Clone(x.Shape), bytes.Clone(x.Data)
		all = append(all, x)
	}
	return all, nil
}

// compareOutputs returns an error that says how two results for one row differ, or nil.
func compareOutputs(want, got []tensor.Tensor) error {
	if len(want) != len(got) {
		return fmt.Errorf("%d outputs, not %d", len(got), len(want))
	}
	for k := range want {
		if err := compareTensors(&want[k], &got[k]); err != nil {
			return fmt.Errorf("output %s: %w", want[k].Name, err)
		}
	}
	return nil
}

func compareTensors(want, got *tensor.Tensor) error {
	if !slices.Equal(want.Shape, got.Shape) {
		return fmt.Errorf("shape %v, not %v", got.Shape, want.Shape)
	}
	if !isFloat(want.Type) {
		if !bytes.Equal(want.Data, got.Data) {
			return fmt.Errorf("%v values differ", want.Type)
		}
		return nil
	}
	size := want.Type.Size()
	largest := 0.0
	for at := 0; at < len(want.Data); at += size {
		if v := math.Abs(tensor.Float(want.Type, want.Data[at:])); !math.IsInf(v, 0) && v > largest {
			largest = v
		}
	}
	allowed := tolerances[want.Type]
	for at := 0; at < len(want.Data); at += size {
		a, b := tensor.Float(want.Type, want.Data[at:]), tensor.Float(want.Type, got.Data[at:])
		if a == b || math.IsNaN(a) && math.IsNaN(b) {
			continue
		}
		margin := allowed.Relative*math.Abs(a) + allowed.Absolute*largest
		if math.IsInf(a, 0) || !(math.Abs(a-b) <= margin) { // true also if one is NaN
			return fmt.Errorf("element %d is %v, not %v", at/size, b, a)
		}
	}
	return nil
}
