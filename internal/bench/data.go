package bench

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/shoal-serving/shoal/internal/tensorjson"
	"github.com/shoal-serving/shoal/tensor"
)

// A Sample has the values of one row for each input, by name. Of a model without
// rows it is all of a request.
type Sample map[string]Values

// Values are those of one input, as raw tensors have them.
type Values struct {
	Shape []int64 // without the rows; nil means the model's, or what is given
	Data  []byte
}

// ReadFolder returns the one sample that a folder holds: a file for each input, under
// its name, with the raw values, or for strings with a line for each.
func (m Model) ReadFolder(folder fs.FS) ([]Sample, error) {
	sample := Sample{}
	for _, in := range m.Inputs {
		data, err := fs.ReadFile(folder, in.Name)
		if err != nil {
			return nil, fmt.Errorf("input %q of model %q needs a file of that name: %w", in.Name, m.Name, err)
		}
		if in.Type == tensor.Bytes {
			text := strings.TrimSuffix(string(data), "\n")
			data = nil
			for line := range strings.SplitSeq(text, "\n") {
				data = tensor.AppendString(data, strings.TrimSuffix(line, "\r"))
			}
		}
		sample[in.Name] = Values{Data: data}
	}
	return []Sample{sample}, nil
}

// ReadJSON returns the samples of a document of perf_analyzer's: {"data": [{…}, …]},
// where each has for each input a list, {"b64": …}, or either of them as "content"
// beside a "shape".
func (m Model) ReadJSON(text []byte) ([]Sample, error) {
	var doc struct {
		Data []json.RawMessage `json:"data"`
	}
	if err := json.Unmarshal(text, &doc); err != nil {
		return nil, err
	}
	if len(doc.Data) == 0 {
		return nil, errors.New(`found no samples, expected {"data": [{"INPUT": [1, 2]}]}`)
	}
	var all []Sample
	for n, raw := range doc.Data {
		s, err := m.readSample(raw)
		if err != nil {
			return nil, fmt.Errorf("sample %d: %w", n+1, err)
		}
		all = append(all, s)
	}
	return all, nil
}

func (m Model) readSample(raw []byte) (Sample, error) {
	if bytes.HasPrefix(raw, []byte("[")) {
		return nil, errors.New("found a list of samples for each sequence, which is not supported yet; list all samples one after the other, as objects")
	}
	var inputs map[string]json.RawMessage
	if err := json.Unmarshal(raw, &inputs); err != nil {
		return nil, err
	}
	sample := Sample{}
	for _, in := range m.Inputs {
		raw, ok := inputs[in.Name]
		if !ok {
			return nil, fmt.Errorf("found no values for input %q", in.Name)
		}
		delete(inputs, in.Name)
		v, err := readValues(raw, in.Type)
		if err != nil {
			return nil, fmt.Errorf("input %q: %w", in.Name, err)
		}
		sample[in.Name] = v
	}
	for name := range inputs {
		return nil, fmt.Errorf("found values for %q, but model %q has the inputs %s", name, m.Name, m.names())
	}
	return sample, nil
}

func readValues(raw []byte, t tensor.Type) (v Values, err error) {
	if bytes.HasPrefix(raw, []byte("[")) {
		v.Data, err = readList(raw, t)
		return v, err
	}
	var doc struct {
		B64     *string         `json:"b64"`
		Content json.RawMessage `json:"content"`
		Shape   []int64         `json:"shape"`
	}
	switch err := json.Unmarshal(raw, &doc); {
	case err != nil:
		return v, err
	case doc.B64 != nil:
		v.Data, err = base64.StdEncoding.DecodeString(*doc.B64)
		return v, err
	case doc.Content == nil:
		return v, errors.New(`expected a list, {"b64": …} or {"content": …, "shape": …}`)
	}
	v, err = readValues(doc.Content, t)
	if doc.Shape != nil {
		v.Shape = doc.Shape
	}
	return v, err
}

// readList encodes the elements of a JSON array, which may be nested, as tensor data of
// type t.
func readList(raw []byte, t tensor.Type) ([]byte, error) {
	if t == tensor.FP16 || t == tensor.BF16 {
		return nil, fmt.Errorf(`%v has no values in JSON: give them as {"b64": …}`, t)
	}
	return tensorjson.Elements(t, raw)
}

// join returns the inputs of the request that begins with a sample. The rows after
// it are the samples that follow, and after the last the first.
func (m Model) join(d Data, first int) ([]tensor.Tensor, error) {
	var all []tensor.Tensor
	for _, in := range m.Inputs {
		t := tensor.Tensor{Name: in.Name, Type: in.Type}
		for row := range max(1, d.Rows) {
			n := (first + row) % len(d.Samples)
			values := d.Samples[n][in.Name]
			given := values.Shape
			if given == nil {
				given = d.Shapes[in.Name]
			}
			shape, err := m.shape(in, given)
			if err != nil {
				return nil, fmt.Errorf("sample %d: %w", n+1, err)
			}
			if row > 0 && !slices.Equal(shape, t.Shape) {
				return nil, fmt.Errorf("input %q has the shape %v in sample %d and another in the one before, so they cannot be rows of one request: leave the batch size at 1", in.Name, shape, n+1)
			}
			t.Shape = shape
			t.Data = append(t.Data, values.Data...)
		}
		t.Shape = m.withRows(t.Shape, d.Rows)
		if err := t.Check(); err != nil {
			return nil, fmt.Errorf("sample %d: input %q: %w", first+1, in.Name, err)
		}
		all = append(all, t)
	}
	return all, nil
}
