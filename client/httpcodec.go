package client

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/shoal-serving/shoal/internal/tensorjson"
	"github.com/shoal-serving/shoal/tensor"
)

// The JSON part of a request.
type (
	requestDocument struct {
		ID         string           `json:"id,omitempty"`
		Parameters map[string]any   `json:"parameters,omitempty"`
		Inputs     []inputDocument  `json:"inputs"`
		Outputs    []outputDocument `json:"outputs,omitempty"`
	}
	inputDocument struct {
		Name       string         `json:"name"`
		Datatype   string         `json:"datatype"`
		Shape      []int64        `json:"shape"`
		Parameters map[string]any `json:"parameters"`
	}
	outputDocument struct {
		Name       string         `json:"name"`
		Parameters map[string]any `json:"parameters"`
	}
)

// encodeRequest returns the JSON part of a request. The data of the inputs follows it.
func encodeRequest(req *Request) ([]byte, error) {
	parameters, err := req.parameters()
	if err != nil {
		return nil, err
	}
	for name, value := range parameters {
		if f, ok := value.(float64); ok {
			parameters[name] = floatNumber(f)
		}
	}
	doc := requestDocument{ID: req.ID, Parameters: parameters, Inputs: []inputDocument{}}
	if len(req.Outputs) == 0 {
		parameters["binary_data_output"] = true // says nothing of outputs that are listed
	}
	for _, name := range req.Outputs {
		how := map[string]any{"binary_data": true}
		if req.Classes > 0 {
			how["classification"] = req.Classes
		}
		doc.Outputs = append(doc.Outputs, outputDocument{name, how})
	}
	for _, t := range req.Inputs {
		shape := t.Shape
		if shape == nil {
			shape = []int64{} // a scalar; null is not a shape
		}
		doc.Inputs = append(doc.Inputs, inputDocument{t.Name, t.Type.String(), shape, map[string]any{"binary_data_size": len(t.Data)}})
	}
	head, err := json.Marshal(doc)
	if err != nil {
		return nil, invalid("%v", err)
	}
	return head, nil
}

// floatNumber returns a number in JSON that servers do not take for an integer.
func floatNumber(f float64) json.Number {
	text := strconv.FormatFloat(f, 'g', -1, 64)
	if !strings.ContainsAny(text, ".e") {
		text += ".0"
	}
	return json.Number(text)
}

// The JSON part of a response.
type responseDocument struct {
	ID           string                     `json:"id"`
	ModelName    string                     `json:"model_name"`
	ModelVersion string                     `json:"model_version"`
	Parameters   map[string]json.RawMessage `json:"parameters"`
	Outputs      []struct {
		Name       string  `json:"name"`
		Datatype   string  `json:"datatype"`
		Shape      []int64 `json:"shape"`
		Parameters struct {
			Size *int `json:"binary_data_size"`
		} `json:"parameters"`
		Data json.RawMessage `json:"data"`
	} `json:"outputs"`
}

// decodeResponse reads the answer to an inference. Its outputs are views of body, where
// they were sent as binary data. jsonLength is the value of jsonLengthHeader.
func decodeResponse(body []byte, jsonLength string) (*Response, error) {
	head, rest := body, []byte(nil)
	if jsonLength != "" {
		n, err := strconv.Atoi(jsonLength)
		if err != nil || n < 0 || n > len(body) {
			return nil, fmt.Errorf("%s is %q, and the body has %d bytes", jsonLengthHeader, jsonLength, len(body))
		}
		head, rest = body[:n], body[n:]
	}
	var doc responseDocument
	if err := json.Unmarshal(head, &doc); err != nil {
		return nil, err
	}
	resp := &Response{
		Model: doc.ModelName, Version: doc.ModelVersion, ID: doc.ID, Final: true,
		Parameters: make(map[string]any, len(doc.Parameters)), Outputs: make([]Tensor, len(doc.Outputs)),
	}
	for name, text := range doc.Parameters {
		if value, ok := parameterOf(text); ok {
			resp.Parameters[name] = value
		}
	}
	for i, o := range doc.Outputs {
		t := &resp.Outputs[i]
		*t = Tensor{Name: o.Name, Shape: o.Shape}
		t.Type, _ = tensor.ParseType(o.Datatype)
		var err error
		switch size := o.Parameters.Size; {
		case t.Type == tensor.Invalid:
			err = fmt.Errorf("its type is %q", o.Datatype)
		case size == nil && o.Data == nil:
			err = errors.New("it has no data")
		case size == nil:
			t.Data, err = tensorjson.Elements(t.Type, o.Data)
		case *size < 0 || *size > len(rest):
			err = fmt.Errorf("it has %d bytes of data, but %d are left", *size, len(rest))
		default:
			t.Data, rest = rest[:*size:*size], rest[*size:]
		}
		if err == nil {
			err = t.Check()
		}
		if err != nil {
			return nil, fmt.Errorf("output %q: %w", o.Name, err)
		}
	}
	if len(rest) > 0 {
		return nil, fmt.Errorf("%d bytes follow the last output", len(rest))
	}
	return resp, nil
}

// parameterOf returns the value of a parameter in the type that it would have over gRPC,
// and false if it can have none.
func parameterOf(text json.RawMessage) (any, bool) {
	if n, err := strconv.ParseInt(string(text), 10, 64); err == nil {
		return n, true
	}
	if n, err := strconv.ParseUint(string(text), 10, 64); err == nil {
		return n, true
	}
	var value any
	if json.Unmarshal(text, &value) != nil {
		return nil, false
	}
	switch value.(type) {
	case bool, float64, string:
		return value, true
	}
	return nil, false
}

// appendBits appends the lowest bits of a value, as many as an element has.
func appendBits(data []byte, t tensor.Type, value uint64) []byte {
	var all [8]byte
	binary.LittleEndian.PutUint64(all[:], value)
	return append(data, all[:t.Size()]...)
}
