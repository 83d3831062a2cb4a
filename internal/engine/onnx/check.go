package onnx

import (
	"fmt"
	"slices"
	"strings"

	"github.com/shoal-serving/shoal/internal/engine/onnx/onnxruntime"
	"github.com/shoal-serving/shoal/internal/modelconfig"
	"github.com/shoal-serving/shoal/tensor"
)

// check compares the configuration with the model, and finds out how the
// tensors of one become those of the other.
func (m *model) check() error {
	for _, p := range m.session.Inputs {
		if !slices.Contains(m.inputNames(), p.Name) {
			return fmt.Errorf("the configuration has no input %q, expected one for each of the model's: %s", p.Name, portNames(m.session.Inputs))
		}
	}
	var err error
	if m.inputs, err = m.checkAll("input", m.cfg.Inputs, m.session.Inputs); err != nil {
		return err
	}
	if err := m.checkBatchInputs(); err != nil {
		return err
	}
	m.outputs, err = m.checkAll("output", m.cfg.Outputs, m.session.Outputs)
	return err
}

// checkAll returns for each tensor of the configuration whether the model's has no
// dimension where the configuration has one of size 1.
func (m *model) checkAll(what string, configured []modelconfig.Tensor, ports []onnxruntime.Port) (scalars []bool, err error) {
	for i, t := range configured {
		at := slices.IndexFunc(ports, func(p onnxruntime.Port) bool { return p.Name == t.Name })
		if at < 0 {
			return nil, fmt.Errorf("%s %q: the model has none of that name, only %s", what, t.Name, portNames(ports))
		}
		p := ports[at]
		if p.Type == tensor.Invalid || p.Type != t.Type {
			return nil, fmt.Errorf("%s %q: the configuration says %v, but the model has %s", what, t.Name, t.Type, typeText(p))
		}
		scalar := m.isScalar(t, p)
		if !scalar && !m.fits(t, p) && !(what == "output" && m.scattered(i)) {
			return nil, fmt.Errorf("%s %q: the configuration's dims%s are %v, but the model has %s", what, t.Name, m.withBatch(), m.cfg.ModelShape(t), dimsText(p))
		}
		scalars = append(scalars, scalar)
	}
	return scalars, nil
}

// isScalar reports whether a tensor is one number for each row, or for the batch
// if there are no rows. A configuration cannot say so, because its tensors have
// at least one dimension; it says [1] then.
func (m *model) isScalar(t modelconfig.Tensor, p onnxruntime.Port) bool {
	if !slices.Equal(t.Dims, []int64{1}) || t.Reshape != nil || t.Ragged {
		return false
	}
	if m.cfg.MaxBatchSize == 0 {
		return len(p.Dims) == 0 && !p.AnyShape
	}
	return len(p.Dims) == 1 && p.Dims[0] == -1
}

// fits reports whether the model's dimensions are those of the configuration. A
// dimension that the model leaves open may be fixed, but not the other way round:
// requests would then be accepted that cannot run.
func (m *model) fits(t modelconfig.Tensor, p onnxruntime.Port) bool {
	if p.AnyShape {
		return true
	}
	dims := m.cfg.ModelShape(t)
	if len(dims) != len(p.Dims) {
		return false
	}
	for i, d := range p.Dims {
		if d != -1 && d != dims[i] {
			return false
		}
	}
	return true
}

// scattered reports whether an output is handed out by the sizes of an input. The
// model may then give it in any shape.
func (m *model) scattered(output int) bool {
	return slices.ContainsFunc(m.cfg.BatchOutputs, func(b modelconfig.BatchOutput) bool { return b.Output == output })
}

func (m *model) checkBatchInputs() error {
	for _, b := range m.cfg.BatchInputs {
		at := slices.IndexFunc(m.session.Inputs, func(p onnxruntime.Port) bool { return p.Name == b.Name })
		if at < 0 {
			return fmt.Errorf("batch_input %q: the model has no input of that name, only %s", b.Name, portNames(m.session.Inputs))
		}
		if p := m.session.Inputs[at]; p.Type != b.Type {
			return fmt.Errorf("batch_input %q: the configuration says %v, but the model has %s", b.Name, b.Type, typeText(p))
		}
	}
	return nil
}

func (m *model) withBatch() string {
	if m.cfg.MaxBatchSize == 0 {
		return ""
	}
	return ", with the batch dimension that max_batch_size adds,"
}

func portNames(ports []onnxruntime.Port) string {
	var names []string
	for _, p := range ports {
		names = append(names, fmt.Sprintf("%q", p.Name))
	}
	return strings.Join(names, ", ")
}

func typeText(p onnxruntime.Port) string {
	if p.Type == tensor.Invalid {
		return p.Kind + ", which cannot be served"
	}
	return p.Type.String()
}

// dimsText writes dimensions with the names of those that have one.
func dimsText(p onnxruntime.Port) string {
	var dims []string
	for i, d := range p.Dims {
		if d == -1 && p.Symbols[i] != "" {
			dims = append(dims, "-1 ("+p.Symbols[i]+")")
		} else {
			dims = append(dims, fmt.Sprint(d))
		}
	}
	return "[" + strings.Join(dims, " ") + "]"
}
