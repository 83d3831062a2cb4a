package kserve

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/shoal-serving/shoal/internal/catalog"
	"github.com/shoal-serving/shoal/tensor"
)

// maxExampleElements is the maximum number of elements of an example, so that it is short.
const maxExampleElements = 64

type exampleInput struct {
	Name     string  `json:"name"`
	Shape    []int64 `json:"shape"`
	Datatype string  `json:"datatype"`
	Data     []any   `json:"data"`
}

// Example returns a valid JSON body of a request to a model. It is nil if a short one does
// not exist; then the hint describes the body.
func Example(m *catalog.Metadata) (body []byte, hint string) {
	inputs := make([]exampleInput, len(m.Inputs))
	total := int64(0)
	for i, in := range m.Inputs {
		shape := oneRow(in.Shape)
		n, err := tensor.Elements(shape)
		if total += n; err != nil || in.Type == tensor.FP16 || in.Type == tensor.BF16 || total > maxExampleElements {
			return nil, describeBody(m)
		}
		inputs[i] = exampleInput{in.Name, shape, in.Type.String(), repeat(exampleElement(in.Type), int(n))}
	}
	if len(inputs) == 0 {
		return nil, ""
	}
	body, err := json.Marshal(map[string][]exampleInput{"inputs": inputs})
	if err != nil {
		return nil, "" // names are valid JSON, so this does not happen
	}
	return body, ""
}

// oneRow returns a shape with 1 in place of dimensions of any size.
func oneRow(shape []int64) []int64 {
	row := make([]int64, len(shape))
	for i, d := range shape {
		row[i] = max(1, d)
	}
	return row
}

func exampleElement(t tensor.Type) any {
	switch t {
	case tensor.Bool:
		return false
	case tensor.Bytes:
		return "text"
	case tensor.FP32, tensor.FP64:
		return 0.5
	}
	return 0
}

func repeat(element any, n int) []any {
	all := make([]any, n)
	for i := range all {
		all[i] = element
	}
	return all
}

// describeBody describes the body of a request whose example would be too long, or that
// JSON cannot represent.
func describeBody(m *catalog.Metadata) string {
	var inputs []string
	for _, in := range m.Inputs {
		switch shape := oneRow(in.Shape); in.Type {
		case tensor.FP16, tensor.BF16:
			inputs = append(inputs, fmt.Sprintf(`{"name":%q,"shape":%s,"datatype":"%v"} with its data in binary, because JSON cannot represent %[3]v`, in.Name, tensor.ShapeText(shape), in.Type))
		default:
			n, _ := tensor.Elements(shape) // 0 if it overflows, which no model can use
			inputs = append(inputs, fmt.Sprintf(`{"name":%q,"shape":%s,"datatype":"%v","data":[…]} with %d elements in data`, in.Name, tensor.ShapeText(shape), in.Type, n))
		}
	}
	return `the body of a request has the member "inputs", a list of ` + strings.Join(inputs, ", and ")
}
