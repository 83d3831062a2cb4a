package bench

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/shoal-serving/shoal/tensor"
)

// ReadRequest returns the inputs of one request from JSON: the body of a KServe v2 request,
// {"inputs": [{"name": …, "shape": …, "data": …}]}, or {"NAME": [[…]]} with nested lists
// that have the shape of the input. Inputs have the types of the model.
func (m Model) ReadRequest(text []byte) ([]tensor.Tensor, error) {
	var doc map[string]json.RawMessage
	if err := json.Unmarshal(text, &doc); err != nil {
		return nil, fmt.Errorf("not a JSON object: %w; expected something like %s", err, m.Example())
	}
	if len(doc) == 0 {
		return nil, fmt.Errorf("found no inputs; expected something like %s", m.Example())
	}
	if m.isBody(doc) {
		return m.readBody(doc["inputs"])
	}
	var all []tensor.Tensor
	for _, in := range m.Inputs {
		if raw, ok := doc[in.Name]; ok {
			t, err := in.read(raw, nil)
			if err != nil {
				return nil, err
			}
			t.Shape = in.WithRows(t.Shape)
			all = append(all, t)
			delete(doc, in.Name)
		}
	}
	for name := range doc {
		return nil, m.unknownInput(name)
	}
	return all, nil
}

// IsBody reports whether text is the body of a KServe v2 request, which may have more than inputs.
func (m Model) IsBody(text []byte) bool {
	var doc map[string]json.RawMessage
	return json.Unmarshal(text, &doc) == nil && m.isBody(doc)
}

func (m Model) isBody(doc map[string]json.RawMessage) bool {
	return doc["inputs"] != nil && !m.has("inputs")
}

func (m Model) has(name string) bool {
	return slices.ContainsFunc(m.Inputs, func(in Input) bool { return in.Name == name })
}

func (m Model) unknownInput(name string) error {
	return fmt.Errorf("model %q has no input %q; expected something like %s", m.Name, name, m.Example())
}

// readBody reads the inputs of the body of a request.
func (m Model) readBody(raw []byte) ([]tensor.Tensor, error) {
	var list []struct {
		Name  string          `json:"name"`
		Shape []int64         `json:"shape"`
		Data  json.RawMessage `json:"data"`
	}
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, fmt.Errorf("inputs: %w; expected something like %s", err, m.Example())
	}
	var all []tensor.Tensor
	for _, one := range list {
		i := slices.IndexFunc(m.Inputs, func(in Input) bool { return in.Name == one.Name })
		if i < 0 {
			return nil, m.unknownInput(one.Name)
		}
		t, err := m.Inputs[i].read(one.Data, one.Shape)
		if err != nil {
			return nil, err
		}
		all = append(all, t)
	}
	return all, nil
}

// read returns an input whose values are a nested list. A nil shape means that of the list.
func (in Input) read(raw json.RawMessage, shape []int64) (tensor.Tensor, error) {
	t := tensor.Tensor{Name: in.Name, Type: in.Type, Shape: shape}
	var values any
	if err := json.Unmarshal(raw, &values); err != nil {
		return t, fmt.Errorf("input %q has no data", in.Name)
	}
	if _, ok := values.([]any); !ok {
		return t, fmt.Errorf("input %q: expected a list of values", in.Name)
	}
	if shape == nil {
		t.Shape = nesting(values)
		if !rectangular(values, t.Shape) {
			return t, fmt.Errorf("input %q: lists have different lengths; the first have the shape %s, which all must have", in.Name, tensor.ShapeText(t.Shape))
		}
	}
	var err error
	if t.Data, err = readList(bytes.TrimSpace(raw), in.Type); err != nil {
		return t, fmt.Errorf("input %q: %w", in.Name, err)
	}
	if err := t.Check(); err != nil {
		return t, fmt.Errorf("input %q: %w", in.Name, err)
	}
	return t, nil
}

// nesting returns the shape of nested lists, by the first element of each.
func nesting(values any) []int64 {
	list, ok := values.([]any)
	if !ok {
		return nil
	}
	shape := []int64{int64(len(list))}
	if len(list) == 0 {
		return shape
	}
	return append(shape, nesting(list[0])...)
}

// rectangular reports whether nested lists have a shape throughout.
func rectangular(values any, shape []int64) bool {
	list, ok := values.([]any)
	if !ok || len(shape) == 0 {
		return !ok && len(shape) == 0
	}
	return int64(len(list)) == shape[0] && !slices.ContainsFunc(list, func(v any) bool { return !rectangular(v, shape[1:]) })
}

// WithRows returns the shape of an array for the input. An array without the dimension of
// the rows is one row.
func (in Input) WithRows(shape []int64) []int64 {
	if len(shape) == len(in.Shape)-1 && in.Shape[0] == -1 {
		return append([]int64{1}, shape...)
	}
	return shape
}

// Example returns the body of a request for the model, of one row and with its sizes if
// they are known.
func (m Model) Example() string {
	type input struct {
		Name     string  `json:"name"`
		Datatype string  `json:"datatype"`
		Shape    []int64 `json:"shape"`
		Data     []any   `json:"data"`
	}
	body := struct {
		Inputs []input `json:"inputs"`
	}{Inputs: []input{}}
	const most = 8 // values, so that it can be read
	for _, in := range m.Inputs {
		one := input{Name: in.Name, Datatype: in.Type.String(), Data: []any{}}
		n := int64(1)
		for _, d := range in.Shape {
			d = max(1, d)
			one.Shape, n = append(one.Shape, d), min(n*d, most+1)
		}
		for range min(n, most) {
			one.Data = append(one.Data, exampleValue(in.Type))
		}
		if n > most {
			one.Data = append(one.Data, "…")
		}
		body.Inputs = append(body.Inputs, one)
	}
	text, _ := json.Marshal(body) // it has nothing that cannot be encoded
	return string(text)
}

func exampleValue(t tensor.Type) any {
	switch t {
	case tensor.Bytes:
		return "text"
	case tensor.Bool:
		return true
	}
	return 0
}
