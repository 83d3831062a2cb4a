package kserve

import (
	"cmp"
	"context"
	"slices"

	"github.com/shoal-serving/shoal/internal/budget"
	"github.com/shoal-serving/shoal/internal/buf"
	"github.com/shoal-serving/shoal/internal/catalog"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/tensor"
)

// DecodeGenerate decodes the body of a request of Triton's generate extension. A member
// that has the name of one of inputs becomes that tensor, with a shape that follows from
// the number of its elements; every other member becomes a parameter. The members of the
// object "parameters" count as if they were members of the body. An empty body has no
// members. ctx and charge are as for [DecodeRequest].
//
// As in Triton, parameters such as priority have no meaning here: all are passed to the
// model.
//
// The caller keeps its reference to body. If the error is nil, the caller also owns the
// reference to the request's Memory.
func DecodeGenerate(ctx context.Context, body *buf.Buf, inputs []catalog.Tensor, o DecodeOptions, charge *budget.Charge) (*Request, error) {
	release, err := limitDocument(ctx, int64(len(body.B)), largeDocument)
	if err != nil {
		return nil, err
	}
	defer release()
	limits := o.Limits.WithDefaults()
	d := decoder{document: openDocument(body.B, &limits), req: o.request()}
	defer d.close()
	d.req.AcceptStream = true
	if err := d.generate(inputs); err != nil {
		return nil, err
	}
	if err := d.data(body, charge); err != nil {
		return nil, err
	}
	return d.req, nil
}

func (d *decoder) generate(inputs []catalog.Tensor) error {
	if len(d.text) == 0 {
		return nil
	}
	err := d.members("request", func(name []byte) error {
		if string(name) != "parameters" {
			return d.generateMember(inputs, string(name))
		}
		return d.members("parameters", func(name []byte) error { return d.generateMember(inputs, string(name)) })
	})
	if err != nil {
		return err
	}
	return d.end()
}

// generateMember decodes an input or a parameter.
func (d *decoder) generateMember(inputs []catalog.Tensor, name string) error {
	if i := slices.IndexFunc(inputs, func(in catalog.Tensor) bool { return in.Name == name }); i >= 0 {
		return d.generateInput(&inputs[i])
	}
	d.parameters++
	if err := d.limits.CheckParameters(d.parameters); err != nil {
		return err
	}
	value, err := d.generateParameter(name)
	if err != nil {
		return err
	}
	d.req.Parameters = append(d.req.Parameters, infer.Parameter{Name: name, Value: value})
	return nil
}

// generateParameter decodes the value of a parameter. That of "id" is also the request's ID.
func (d *decoder) generateParameter(name string) (value any, err error) {
	switch kind := d.json.PeekKind(); {
	case name == "id":
		d.req.ID, err = d.string("id")
		return d.req.ID, err
	case kind == '"':
		return d.string(name)
	case kind == 't' || kind == 'f':
		return d.bool(name)
	case kind == '0':
		return d.number()
	case kind == 'n' || kind == '{' || kind == '[':
		return nil, infer.Errorf(infer.Invalid, "parameter '%s' has invalid type. It should be either 'int', 'bool', or 'string'.", name)
	}
	return nil, d.token() // the value is not valid
}

// generateInput reserves memory for the value of an input: one element, or an array.
func (d *decoder) generateInput(spec *catalog.Tensor) error {
	if err := d.limits.CheckInputs(len(d.req.Inputs) + 1); err != nil {
		return err
	}
	text, offset, err := d.array()
	if err != nil {
		return err
	}
	elements := countElements(text)
	shape, ok := generateShape(spec.Shape, elements)
	if !ok {
		return infer.Errorf(infer.Invalid, "The schema can not convert input '%s' to tensor with proper shape", spec.Name).
			WithHint("it has %d elements, which do not make a tensor of shape %s", elements, tensor.ShapeText(spec.Shape))
	}
	in := inputReader{Tensor: tensor.Tensor{Name: spec.Name, Type: spec.Type, Shape: shape}, text: text, single: text[0] != '[', offset: offset}
	if err := in.checkJSONType(); err != nil {
		return err
	}
	err = d.reserveElements(&in, elements)
	d.req.Inputs = append(d.req.Inputs, in.Tensor)
	return err
}

// generateShape returns the shape of a tensor with the given number of elements. Its last
// dimension of any size takes all elements that the fixed ones leave, and the others
// become 1. It returns false if the elements do not fit.
func generateShape(dims []int64, elements int64) ([]int64, bool) {
	for _, d := range dims {
		switch {
		case d == -1:
		case d <= 0 || elements%d != 0:
			return nil, false
		default:
			elements /= d
		}
	}
	shape := slices.Clone(dims)
	for i, d := range slices.Backward(dims) {
		if d == -1 {
			shape[i], elements = elements, 1
		}
	}
	return shape, elements == 1
}

// countElements returns the number of elements of a valid JSON value: 1 unless it is an
// array, and those of nested arrays together.
func countElements(text []byte) (n int64) {
	inside := false // of a number or a name
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '[', ']', ',', ' ', '\t', '\n', '\r':
			inside = false
		case '"':
			n++
			for i++; i < len(text) && text[i] != '"'; i++ {
				if text[i] == '\\' {
					i++ // an escaped character does not end the string
				}
			}
		default:
			if !inside {
				n++
			}
			inside = true
		}
	}
	return n
}

// A generated is a member of a response of the generate extension: an output, or a value
// if output is nil.
type generated struct {
	name   string
	output *tensor.Tensor
	value  any
}

// AppendGenerated appends a response of the generate extension to dst: an object of its
// outputs, its parameters, and its id, model and version, sorted by name as in Triton. An
// output of one element is that element, any other is a flat array. A large object waits for a
// core, until ctx ends.
func (r *Request) AppendGenerated(ctx context.Context, dst []byte, resp *infer.Response) ([]byte, error) {
	release, err := limitDocument(ctx, r.JSONSize(resp), encodedDocument)
	if err != nil {
		return nil, err
	}
	defer release()
	members := []generated{{name: "model_name", value: resp.Model}, {name: "model_version", value: resp.Version}}
	if r.ID != "" {
		members = append(members, generated{name: "id", value: r.ID})
	}
	for _, p := range resp.Parameters {
		members = append(members, generated{name: p.Name, value: p.Value})
	}
	for i := range resp.Outputs {
		members = append(members, generated{name: resp.Outputs[i].Name, output: &resp.Outputs[i]})
	}
	slices.SortStableFunc(members, func(a, b generated) int { return cmp.Compare(a.name, b.name) })
	// A name that occurs twice is the protocol's, or else the parameter's.
	members = slices.CompactFunc(members, func(a, b generated) bool { return a.name == b.name })
	dst = append(dst, '{')
	for i := range members {
		if i > 0 {
			dst = append(dst, ',')
		}
		if dst, err = members[i].append(dst); err != nil {
			return nil, err
		}
	}
	return append(dst, '}'), nil
}

func (m *generated) append(dst []byte) ([]byte, error) {
	dst = append(appendQuoted(dst, m.name), ':')
	if m.output == nil {
		return appendParameter(dst, m.value), nil
	}
	if n, err := tensor.Elements(m.output.Shape); err == nil && n == 1 {
		return appendElements(dst, m.output)
	}
	dst, err := appendElements(append(dst, '['), m.output)
	return append(dst, ']'), err
}
