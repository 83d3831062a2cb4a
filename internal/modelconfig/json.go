package modelconfig

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/shoal-serving/shoal/internal/modelconfig/configpb"
)

// JSON returns the configuration that is in effect, with what the file leaves
// out, in the way Triton prints it: fields in the order of the .proto and under
// its names, numbers, lists and maps also if they are empty, and 64-bit integers
// as numbers, which is why protojson does not do. A message is there if it is set.
func (c *Config) JSON() []byte {
	return appendMessage(nil, c.effective().ProtoReflect())
}

// The platform and the file of a backend, where it has only one of a kind.
var (
	platformOf = map[string]string{"onnxruntime": "onnxruntime_onnx", "tensorrt": "tensorrt_plan", "pytorch": "pytorch_libtorch"}
	fileOf     = map[string]string{
		"onnxruntime": "model.onnx", "python": "model.py", "tensorrt": "model.plan", "pytorch": "model.pt", "openvino": "model.xml",
	}
)

// effective returns the file as it would be if it left out nothing. Defaults of
// what has no effect here are Triton's.
func (c *Config) effective() *configpb.ModelConfig {
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
	c.effectiveTensors(p)
	c.effectiveBatching(p)
	c.effectiveInstances(p)
	effectiveOptimization(p)
	return p
}

func (c *Config) effectiveTensors(p *configpb.ModelConfig) {
	if len(p.GetInput()) == 0 {
		for _, t := range c.Inputs {
			p.Input = append(p.Input, &configpb.ModelInput{Name: t.Name, DataType: configpb.DataType(t.Type), Dims: t.Dims})
		}
	}
	if len(p.GetOutput()) == 0 {
		for _, t := range c.Outputs {
			p.Output = append(p.Output, &configpb.ModelOutput{Name: t.Name, DataType: configpb.DataType(t.Type), Dims: t.Dims})
		}
	}
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
	if len(d.GetPreferredBatchSize()) == 0 && c.MaxBatchSize > 0 {
		d.PreferredBatchSize = []int32{int32(c.MaxBatchSize)}
	}
}

func (c *Config) effectiveInstances(p *configpb.ModelConfig) {
	if len(p.GetInstanceGroup()) == 0 {
		p.InstanceGroup = []*configpb.ModelInstanceGroup{{Count: new(int32(c.Instances))}}
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

func appendMessage(b []byte, m protoreflect.Message) []byte {
	b = append(b, '{')
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		fd := fields.Get(i)
		if !m.Has(fd) && left(fd) {
			continue
		}
		b = appendName(b, string(fd.Name()))
		switch v := m.Get(fd); {
		case fd.IsMap():
			b = appendMap(b, fd, v.Map())
		case fd.IsList():
			b = appendList(b, fd, v.List())
		default:
			b = appendValue(b, fd, v)
		}
	}
	return append(b, '}')
}

// left reports whether a field that is not set is left out: messages, and all
// of which there is one at most.
func left(fd protoreflect.FieldDescriptor) bool {
	if fd.IsList() || fd.IsMap() {
		return false
	}
	oneof := fd.ContainingOneof()
	return fd.Message() != nil || oneof != nil && !oneof.IsSynthetic()
}

func appendList(b []byte, fd protoreflect.FieldDescriptor, list protoreflect.List) []byte {
	b = append(b, '[')
	for i := range list.Len() {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendValue(b, fd, list.Get(i))
	}
	return append(b, ']')
}

// appendMap writes the entries in the order of their keys, as text.
func appendMap(b []byte, fd protoreflect.FieldDescriptor, entries protoreflect.Map) []byte {
	var keys []protoreflect.MapKey
	entries.Range(func(key protoreflect.MapKey, _ protoreflect.Value) bool {
		keys = append(keys, key)
		return true
	})
	slices.SortFunc(keys, func(a, b protoreflect.MapKey) int { return strings.Compare(a.String(), b.String()) })
	b = append(b, '{')
	for _, key := range keys {
		b = appendName(b, key.String())
		b = appendValue(b, fd.MapValue(), entries.Get(key))
	}
	return append(b, '}')
}

// appendName writes a name and its colon, and a comma before it unless it is
// the first of its object.
func appendName(b []byte, name string) []byte {
	if b[len(b)-1] != '{' {
		b = append(b, ',')
	}
	return append(appendString(b, name), ':')
}

func appendString(b []byte, s string) []byte {
	b, _ = jsontext.AppendQuote(b, s) // what is wrong with its characters it replaces
	return b
}

func appendValue(b []byte, fd protoreflect.FieldDescriptor, v protoreflect.Value) []byte {
	switch x := v.Interface().(type) {
	case protoreflect.Message:
		return appendMessage(b, x)
	case protoreflect.EnumNumber:
		if value := fd.Enum().Values().ByNumber(x); value != nil {
			return appendString(b, string(value.Name()))
		}
		return strconv.AppendInt(b, int64(x), 10)
	case string:
		return appendString(b, x)
	case bool:
		return strconv.AppendBool(b, x)
	case uint32, uint64:
		return strconv.AppendUint(b, v.Uint(), 10)
	case float32:
		return appendFloat(b, float64(x), 32)
	case float64:
		return appendFloat(b, x, 64)
	default: // no field is of type bytes
		return strconv.AppendInt(b, v.Int(), 10)
	}
}

// appendFloat writes what no number can be as a string, as protojson does.
func appendFloat(b []byte, f float64, bits int) []byte {
	switch {
	case math.IsNaN(f):
		return append(b, `"NaN"`...)
	case math.IsInf(f, 1):
		return append(b, `"Infinity"`...)
	case math.IsInf(f, -1):
		return append(b, `"-Infinity"`...)
	}
	return strconv.AppendFloat(b, f, 'g', -1, bits)
}
