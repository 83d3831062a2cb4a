package modelconfig

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"

	"github.com/shoal-serving/shoal/internal/modelconfig/configpb"
	"github.com/shoal-serving/shoal/tensor"
)

// emptySample is the rule for a sample without rows.
var emptySample = rule{kind: Unused, what: "its batch_size is 0, so that it is not run, as in Triton", instead: "set batch_size: 1"}

func warmupField(i int) string { return fmt.Sprintf("model_warmup[%d]", i) }

// readWarmup parses the warmup samples. They are validated when the model is loaded.
func (c *Config) readWarmup() error {
	for i, p := range c.Proto.GetModelWarmup() {
		field := warmupField(i)
		if p.GetBatchSize() == 0 {
			continue // as in Triton
		}
		s := Sample{Name: p.GetName(), Rows: int(p.GetBatchSize()), Count: max(1, int(p.GetCount()))}
		for _, name := range slices.Sorted(maps.Keys(p.GetInputs())) {
			in, err := sampleInput(fmt.Sprintf("%s.inputs[%s]", field, name), name, p.GetInputs()[name])
			if err != nil {
				return err
			}
			s.Inputs = append(s.Inputs, in)
		}
		c.Warmup = append(c.Warmup, s)
	}
	return nil
}

func sampleInput(field, name string, p *configpb.ModelWarmup_Input) (SampleInput, error) {
	in := SampleInput{Tensor: Tensor{Name: name, Type: tensor.Type(p.GetDataType()), Dims: p.GetDims()}}
	for i, d := range in.Dims {
		if d < 0 {
			return in, bad(fmt.Sprintf("%s.dims[%d]", field, i), d, "at least 0, because a sample has a fixed size")
		}
	}
	switch data := p.GetInputDataType().(type) {
	case *configpb.ModelWarmup_Input_ZeroData:
	case *configpb.ModelWarmup_Input_RandomData:
		in.Random = true
	case *configpb.ModelWarmup_Input_InputDataFile:
		in.File = data.InputDataFile
		if !filepath.IsLocal(in.File) {
			return in, bad(field+".input_data_file", fmt.Sprintf("%q", in.File), "a file below the directory warmup of the model")
		}
	default:
		return in, bad(field, "no data", "zero_data, random_data or input_data_file")
	}
	return in, nil
}
