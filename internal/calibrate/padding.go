package calibrate

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/modelconfig"
	"github.com/shoal-serving/shoal/tensor"
)

// paddedBatches are the batches in which padding is checked, as row numbers: each row has
// another length, see lengths. A row is padded by one element, by a quarter, and to the
// double, first and last in the batch, and with different rows beside it.
var paddedBatches = [][]int{{0, 1}, {2, 0}, {0, 3}, {3, 2, 1}, {7, 6, 5, 4, 3, 2, 1, 0}}

// lengths returns the lengths of the rows, given the greatest.
func lengths(longest int64) []int64 {
	all := []int64{longest, longest - 1, longest * 3 / 4, longest / 2, longest / 3, longest / 4, longest / 8, 1}
	for i := range all {
		all[i] = max(1, all[i])
	}
	return all
}

// CheckPadding runs rows of different lengths singly, and padded in batches, and compares the
// results. If padding does not change them, it returns the dimensions of the outputs that
// have the length of a request, for [modelconfig.Padding.Outputs]. Otherwise it returns why
// requests must not be padded. It uses the first of inputs that the model accepts. The error
// is that of ctx, if ctx ended.
func CheckPadding(ctx context.Context, cfg *modelconfig.Config, inst engine.Instance, inputs []Inputs) (outputs []int, reason string, err error) {
	limited, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	c := paddingCheck{cfg: cfg, inst: inst}
	outputs, reason = c.check(limited, inputs)
	switch {
	case ctx.Err() != nil:
		return nil, "", context.Cause(ctx)
	case limited.Err() != nil:
		return nil, fmt.Sprintf("the check whether rows can be padded did not finish within %v", checkTimeout), nil
	}
	return outputs, reason, nil
}

// A paddingCheck checks the padding of one model.
type paddingCheck struct {
	cfg  *modelconfig.Config
	inst engine.Instance

	rows   []*infer.Request  // with one row each, of different lengths
	single [][]tensor.Tensor // the outputs of each
}

func (c *paddingCheck) check(ctx context.Context, inputs []Inputs) (outputs []int, reason string) {
	err := errors.New("no inputs could be generated; add a sample to model_warmup")
	for _, in := range inputs {
		if err = c.runSingly(ctx, in); err == nil || ctx.Err() != nil {
			break
		}
	}
	if err != nil {
		return nil, fmt.Sprintf("the model failed with rows of different lengths: %v", err)
	}
	outputs, err = c.cutDims()
	for i := 0; i < len(paddedBatches) && err == nil; i++ {
		if len(paddedBatches[i]) <= c.cfg.MaxBatchSize {
			err = c.compareBatch(ctx, paddedBatches[i], outputs)
		}
	}
	if err != nil {
		return nil, fmt.Sprintf("padding changes the results: %v", err)
	}
	return outputs, ""
}

// runSingly runs rows of different lengths by themselves.
func (c *paddingCheck) runSingly(ctx context.Context, in Inputs) error {
	c.rows, c.single = nil, nil
	full, err := in.rowsRequest(0)
	if err != nil {
		return err
	}
	longest := c.cfg.Padding.Length(full.Inputs)
	if longest < 2 {
		return errors.New("the sample has a length of 1, which leaves nothing to pad; add a longer one to model_warmup")
	}
	for n, length := range lengths(longest) {
		req, err := in.rowsRequest(n)
		if err != nil {
			return err
		}
		c.shorten(req, length)
		out, err := runCopied(ctx, c.inst, req.Inputs, 1)
		if err != nil {
			return err
		}
		c.rows, c.single = append(c.rows, req), append(c.single, out)
	}
	return nil
}

// shorten cuts a request to the given length. Masks are set to 1, so that no element counts as
// padding.
func (c *paddingCheck) shorten(req *infer.Request, length int64) {
	for k := range req.Inputs {
		x, pad := &req.Inputs[k], &c.cfg.Padding.Inputs[k]
		if pad.Dim == 0 {
			continue
		}
		x.Data = bytes.Clone(tensor.CutData(x, pad.Dim, length))
		x.Shape = slices.Clone(x.Shape)
		x.Shape[pad.Dim] = length
		if strings.Contains(x.Name, "mask") && !isFloat(x.Type) {
			fillOnes(x.Data, x.Type.Size())
		}
	}
}

// fillOnes sets integers of the given size to 1.
func fillOnes(data []byte, size int) {
	var one [8]byte
	binary.LittleEndian.PutUint64(one[:], 1)
	for at := 0; at < len(data); at += size {
		copy(data[at:], one[:size])
	}
}

// cutDims returns the dimensions of the outputs that have the length of the request.
func (c *paddingCheck) cutDims() ([]int, error) {
	dims := make([]int, len(c.single[0]))
	for k := range dims {
		for dim, d := range c.cfg.Outputs[k].RowDims() {
			if d != -1 || !c.hasLength(k, dim+1) {
				continue
			}
			if dims[k] > 0 || c.cfg.Outputs[k].Type == tensor.Bytes || c.cfg.Outputs[k].Reshape != nil {
				return nil, fmt.Errorf("output %s cannot be cut back", c.cfg.Outputs[k].Name)
			}
			dims[k] = dim + 1
		}
	}
	return dims, nil
}

// hasLength reports whether a dimension of output k has the length of each request.
func (c *paddingCheck) hasLength(k, dim int) bool {
	for n, out := range c.single {
		if dim >= len(out[k].Shape) || out[k].Shape[dim] != c.cfg.Padding.Length(c.rows[n].Inputs) {
			return false
		}
	}
	return true
}

// compareBatch runs a padded batch, and compares its rows with those that were run singly.
func (c *paddingCheck) compareBatch(ctx context.Context, rows, outputs []int) error {
	longest := int64(0)
	for _, n := range rows {
		longest = max(longest, c.cfg.Padding.Length(c.rows[n].Inputs))
	}
	var batch []tensor.Tensor
	for k, x := range c.rows[rows[0]].Inputs {
		pad := &c.cfg.Padding.Inputs[k]
		x.Shape, x.Data = slices.Clone(x.Shape), nil
		x.Shape[0] = int64(len(rows))
		for _, n := range rows {
			row := &c.rows[n].Inputs[k]
			if pad.Dim == 0 {
				x.Data = append(x.Data, row.Data...)
				continue
			}
			x.Shape[pad.Dim] = longest
			x.Data = tensor.AppendPadded(x.Data, row, pad.Dim, longest, pad.Element)
		}
		batch = append(batch, x)
	}
	out, err := runCopied(ctx, c.inst, batch, len(rows))
	if err != nil {
		return fmt.Errorf("%d rows: %w", len(rows), err)
	}
	return compareRows(out, rows, c.single, func(row, k int, x *tensor.Tensor) {
		if dim := outputs[k]; dim > 0 && x.Shape[dim] == longest {
			length := c.cfg.Padding.Length(c.rows[row].Inputs)
			x.Data = tensor.CutData(x, dim, length)
			x.Shape[dim] = length
		}
	})
}
