package modelconfig

import (
	"cmp"
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/shoal-serving/shoal/internal/modelconfig/configpb"
)

// Platform and default file name of backends that have only one.
var (
	platformOf = map[string]string{"onnxruntime": "onnxruntime_onnx", "tensorrt": "tensorrt_plan", "pytorch": "pytorch_libtorch"}
	fileOf     = map[string]string{
		"onnxruntime": "model.onnx", "python": "model.py", "tensorrt": "model.plan", "pytorch": "model.pt", "openvino": "model.xml",
	}
)

// Platform returns Triton's name for the kind of model, which is that of its backend if it has no
// other.
func (c *Config) Platform() string {
	return cmp.Or(c.Proto.GetPlatform(), platformOf[c.Backend], c.Backend)
}

// Effective returns the complete configuration, with all defaults filled in. The caller
// owns it. Settings that have no effect here get Triton's defaults.
func (c *Config) Effective() *configpb.ModelConfig {
	p := &configpb.ModelConfig{}
	if c.Proto != nil {
		p = proto.CloneOf(c.Proto)
	}
	p.Name, p.Backend = c.Name, c.Backend
	if p.GetPlatform() == "" {
		p.Platform = platformOf[c.Backend]
	}
	if p.GetDefaultModelFilename() == "" {
		p.DefaultModelFilename = fileOf[c.Backend]
	}
	if p.GetVersionPolicy().GetPolicyChoice() == nil {
		latest := &configpb.ModelVersionPolicy_Latest{NumVersions: 1}
		p.VersionPolicy = &configpb.ModelVersionPolicy{PolicyChoice: &configpb.ModelVersionPolicy_Latest_{Latest: latest}}
	}
	p.MaxBatchSize = new(int32(c.MaxBatchSize))
	if c.Decoupled {
		p.ModelTransactionPolicy = &configpb.ModelTransactionPolicy{Decoupled: true}
	}
	c.effectiveTensors(p)
	c.effectiveBatching(p)
	c.effectiveInstances(p)
	effectiveOptimization(p)
	return p
}

// effectiveTensors adds the inputs and outputs that the file lacks, which follow those of the file.
func (c *Config) effectiveTensors(p *configpb.ModelConfig) {
	for _, t := range c.Inputs[min(len(p.GetInput()), len(c.Inputs)):] {
		p.Input = append(p.Input, &configpb.ModelInput{Name: t.Name, DataType: configpb.DataType(t.Type), Dims: t.Dims, Reshape: t.effectiveReshape(), Optional: t.Optional})
	}
	for _, t := range c.Outputs[min(len(p.GetOutput()), len(c.Outputs)):] {
		p.Output = append(p.Output, &configpb.ModelOutput{Name: t.Name, DataType: configpb.DataType(t.Type), Dims: t.Dims, Reshape: t.effectiveReshape()})
	}
}

func (t *Tensor) effectiveReshape() *configpb.ModelTensorReshape {
	if t.Reshape == nil {
		return nil
	}
	return &configpb.ModelTensorReshape{Shape: t.Reshape}
}

func (c *Config) effectiveBatching(p *configpb.ModelConfig) {
	if c.Dynamic == nil {
		return
	}
	d := p.GetDynamicBatching()
	if d == nil {
		d = &configpb.ModelDynamicBatching{}
		p.SchedulingChoice = &configpb.ModelConfig_DynamicBatching{DynamicBatching: d}
	}
	if len(d.GetPreferredBatchSize()) == 0 && c.MaxBatchSize > 0 && !c.Tunes() {
		d.PreferredBatchSize = []int32{int32(c.MaxBatchSize)}
	}
}

func (c *Config) effectiveInstances(p *configpb.ModelConfig) {
	if c.Steps != nil {
		return // an ensemble computes nothing itself
	}
	if len(p.GetInstanceGroup()) == 0 {
		p.InstanceGroup = []*configpb.ModelInstanceGroup{{Name: c.Name, Count: new(int32(c.Instances))}}
	}
	for i, g := range p.GetInstanceGroup() {
		if g.GetName() == "" {
			g.Name = fmt.Sprintf("%s_%d", c.Name, i)
		}
		if g.GetKind() == configpb.ModelInstanceGroup_KIND_AUTO {
			g.Kind = configpb.ModelInstanceGroup_KIND_CPU
		}
		g.Count = new(max(1, g.GetCount()))
	}
}

func effectiveOptimization(p *configpb.ModelConfig) {
	if p.GetOptimization() == nil {
		p.Optimization = &configpb.ModelOptimizationPolicy{}
	}
	if p.GetOptimization().GetInputPinnedMemory() == nil {
		p.Optimization.InputPinnedMemory = &configpb.ModelOptimizationPolicy_PinnedMemoryBuffer{Enable: true}
	}
	if p.GetOptimization().GetOutputPinnedMemory() == nil {
		p.Optimization.OutputPinnedMemory = &configpb.ModelOptimizationPolicy_PinnedMemoryBuffer{Enable: true}
	}
}

// Encode returns a deterministic encoding of the configuration as written.
func (c *Config) Encode() ([]byte, error) {
	return proto.MarshalOptions{Deterministic: true}.Marshal(c.Proto)
}
