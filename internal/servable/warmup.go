package servable

import (
	"context"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/shoal-serving/shoal/internal/access"
	"github.com/shoal-serving/shoal/internal/calibrate"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/modelconfig"
	"github.com/shoal-serving/shoal/tensor"
)

// warmUp runs the samples of the configuration on each instance. If the version is to be
// measured, it also runs one row of the inputs to measure with.
func (v *Version) warmUp(ctx context.Context, params tuning) error {
	dir := v.sampleDir()
	for _, s := range v.Config.Warmup {
		req, err := sampleRequest(v.Config, s, dir)
		if err == nil {
			err = checkSample(v.Config, req)
		}
		if err == nil {
			err = v.Scheduler.WarmUp(ctx, req, s.Count)
		}
		if err != nil {
			return infer.Errorf(infer.CodeOf(err), "model_warmup %q: %w", s.Name, err)
		}
	}
	if !v.measurable() {
		return nil
	}
	if params.inputs != nil {
		return v.warmWith(ctx, []calibrate.Inputs{params.inputs.ForConfig(v.Config)})
	}
	inputs, err := inputsOf(v.Config, dir)
	if err != nil {
		return err
	}
	return v.warmWith(ctx, inputs)
}

// warmTimeout limits the time of warmWith. A model that takes longer is not measured.
const warmTimeout = 10 * time.Second

// warmWith runs one row on each instance, and sets v.inputs to the first inputs that the
// model accepts. If the model accepts none, or takes too long, v.inputs stays nil, and the
// version is not measured; v.noInputsReason says why. An error means that ctx has ended.
func (v *Version) warmWith(ctx context.Context, inputs []calibrate.Inputs) error {
	limited, cancel := context.WithTimeout(ctx, warmTimeout)
	defer cancel()
	v.noInputsReason = "no inputs could be generated; add a sample to model_warmup"
	for _, in := range inputs {
		req, err := in.Request(1)
		if err == nil {
			err = v.Scheduler.WarmUp(limited, req, 1)
		}
		switch {
		case err == nil:
			v.inputs = &in
			v.noInputsReason = ""
			return nil
		case limited.Err() != nil:
			v.noInputsReason = fmt.Sprintf("the model did not run one row within %v", warmTimeout)
			return ctx.Err() // nil if only the model took too long
		}
		v.noInputsReason = fmt.Sprintf("no inputs that were generated suit the model; add a sample to model_warmup: %v", err)
	}
	return nil
}

// inputsOf returns candidate inputs for calibration: the first sample of the configuration,
// or synthetic inputs if it has none. dir holds the files of samples.
func inputsOf(cfg *modelconfig.Config, dir string) ([]calibrate.Inputs, error) {
	if len(cfg.Warmup) == 0 {
		return calibrate.Synthetic(cfg), nil
	}
	var row []tensor.Tensor
	left := int64(maxSample)
	for _, in := range cfg.Warmup[0].Inputs {
		in.Random = true // with zeros, all rows would be equal
		data, err := sampleData(in, 1, dir, left)
		if err != nil {
			return nil, infer.Errorf(infer.CodeOf(err), "model_warmup %q: input %q: %w", cfg.Warmup[0].Name, in.Name, err)
		}
		left -= int64(len(data))
		row = append(row, tensor.Tensor{Name: in.Name, Type: in.Type, Shape: in.Dims, Data: data})
	}
	return []calibrate.Inputs{calibrate.FromSample(cfg, row)}, nil
}

// checkSample checks the request of a sample. That of a model with sequences belongs to none, and
// has an ID only for the check.
func checkSample(cfg *modelconfig.Config, req *infer.Request) error {
	if cfg.Sequence == nil {
		return cfg.Check(req)
	}
	req.Correlation = 1
	if slices.ContainsFunc(cfg.Sequence.Controls, func(c modelconfig.Control) bool { return c.Kind == modelconfig.ControlID && c.Type == tensor.Bytes }) {
		req.Correlation, req.CorrelationName = 0, "1"
	}
	err := cfg.Check(req)
	req.Correlation, req.CorrelationName = 0, ""
	return err
}

// sampleRequest builds the request of a sample. That of a model with sequences has one row, and
// may have inputs that the scheduler adds to each request; they are left out. What the model calls
// for it, it calls as the server.
func sampleRequest(cfg *modelconfig.Config, s modelconfig.Sample, dir string) (*infer.Request, error) {
	req := &infer.Request{Model: cfg.Name, Caller: access.Self}
	left := int64(maxSample)
	var added []modelconfig.Tensor
	if cfg.Sequence != nil {
		s.Rows, added = 1, cfg.ModelInputs()[len(cfg.Inputs):]
	}
	for _, in := range s.Inputs {
		if slices.ContainsFunc(added, func(t modelconfig.Tensor) bool { return t.Name == in.Name }) {
			continue
		}
		rows, shape := 1, in.Dims
		if cfg.MaxBatchSize > 0 {
			rows, shape = s.Rows, append([]int64{int64(s.Rows)}, in.Dims...)
		}
		data, err := sampleData(in, rows, dir, left)
		if err != nil {
			return nil, fmt.Errorf("input %q: %w", in.Name, err)
		}
		left -= int64(len(data))
		req.Inputs = append(req.Inputs, tensor.Tensor{Name: in.Name, Type: in.Type, Shape: shape, Data: data})
	}
	return req, nil
}

// maxSample is how many bytes the inputs of a sample may have. A client can send the
// configuration.
const maxSample = 1 << 30

// sampleData returns the data of a row, repeated for each row: limit bytes at most.
func sampleData(in modelconfig.SampleInput, rows int, dir string, limit int64) ([]byte, error) {
	fixed := in.Type
	if in.Type == tensor.Bytes {
		fixed = tensor.Uint32 // an empty string is its length
	}
	size, err := tensor.ByteSize(fixed, in.Dims)
	if err != nil {
		return nil, err
	}
	var row []byte
	if in.File != "" {
		if row, err = os.ReadFile(filepath.Join(dir, in.File)); err != nil {
			return nil, err
		}
		if in.Type != tensor.Bytes {
			if int64(len(row)) < size {
				return nil, fmt.Errorf("%s: found %d bytes, expected at least %d", filepath.Join(dir, in.File), len(row), size)
			}
			row = row[:size] // as in Triton
		}
		size = int64(len(row))
	}
	if size > limit/int64(rows) {
		return nil, infer.Errorf(infer.Invalid, "the inputs of the sample have more than %d MiB", maxSample>>20)
	}
	if in.File == "" {
		row = make([]byte, size)
		if in.Random && in.Type != tensor.Bytes {
			randomise(row, in)
		}
	}
	all := make([]byte, 0, rows*len(row))
	for range rows {
		all = append(all, row...)
	}
	return all, nil
}

// randomise fills a row with values that suit nearly every model: floats from 0.5 to 1, and
// integers and booleans that are 0 or 1, because larger integers may be indices out of
// range. The data of an input is the same each time.
func randomise(row []byte, in modelconfig.SampleInput) {
	h := fnv.New64a()
	_, _ = h.Write([]byte(in.Name))
	random := rand.New(rand.NewPCG(h.Sum64(), uint64(len(row))))
	size := in.Type.Size()
	for at := 0; at < len(row); at += size {
		bits := random.Uint64() & 1
		switch in.Type { // the exponent of 0.5, and any fraction
		case tensor.FP16:
			bits = 0x3800 | random.Uint64()&(1<<10-1)
		case tensor.BF16:
			bits = 0x3F00 | random.Uint64()&(1<<7-1)
		case tensor.FP32:
			bits = 0x3F00_0000 | random.Uint64()&(1<<23-1)
		case tensor.FP64:
			bits = 0x3FE0_0000_0000_0000 | random.Uint64()&(1<<52-1)
		}
		for i := range size {
			row[at+i] = byte(bits >> (8 * i))
		}
	}
}
