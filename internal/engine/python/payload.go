package python

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/shoal-serving/shoal/internal/buf"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/memfd"
	"github.com/shoal-serving/shoal/tensor"
)

// A payload is a JSON document followed by the data of the tensors that it lists, each
// aligned to a cache line. It is passed as an anonymous memory file along with the frame:
// the sender gives it up, and the receiver has it for itself. The server copies a worker's
// payload into its own memory before it reads it.
type payload struct {
	Tensors    []payloadTensor `json:"tensors,omitempty"`
	Parameters json.RawMessage `json:"parameters,omitempty"` // an object

	// Error responses.
	Failed bool   `json:"failed,omitempty"`
	Code   uint32 `json:"code,omitempty"`
	Text   string `json:"text,omitempty"`

	// Calls.
	Do              string   `json:"do,omitempty"` // load or unload; otherwise an inference request
	Model           string   `json:"model,omitempty"`
	Version         int64    `json:"version,omitempty"` // 0 or less means the default version
	ID              string   `json:"id,omitempty"`
	Outputs         []string `json:"outputs,omitempty"`
	Timeout         uint64   `json:"timeout,omitempty"` // microseconds
	Priority        uint64   `json:"priority,omitempty"`
	Correlation     uint64   `json:"correlation,omitempty"`
	CorrelationName string   `json:"correlation_name,omitempty"`
	Flags           uint32   `json:"flags,omitempty"`
	Many            bool     `json:"many,omitempty"` // decoupled: any number of responses
	Traceparent     string   `json:"traceparent,omitempty"`
	Tracestate      string   `json:"tracestate,omitempty"`

	// Loads. The tensors are the model's files.
	Config string `json:"config,omitempty"` // JSON; "" means the file in the model's directory

	memory *buf.Buf // holds the data of a received payload
	data   []tensor.Tensor
}

type payloadTensor struct {
	Name   string  `json:"name"`
	Type   uint32  `json:"type"`
	Shape  []int64 `json:"shape"`
	Length int     `json:"length"`
}

// readPayload reads a payload from fd, which stays the caller's. The caller must release
// the payload.
func readPayload(fd int, document, size uint64) (*payload, error) {
	if size > maxMemory || document > size {
		return nil, fmt.Errorf("a payload of %d bytes with a document of %d, expected at most %d", size, document, maxMemory)
	}
	p := &payload{memory: buf.Get(int(size))}
	if err := p.read(fd, int(document)); err != nil {
		p.memory.Release()
		return nil, err
	}
	return p, nil
}

func (p *payload) read(fd, document int) error {
	b := p.memory.B
	for at := 0; at < len(b); {
		n, err := unix.Pread(fd, b[at:], int64(at))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n == 0 {
			return fmt.Errorf("a payload of %d bytes of which %d can be read: %w", len(b), at, err)
		}
		at += n
	}
	if err := json.Unmarshal(b[:document], p); err != nil {
		return fmt.Errorf("a payload with an invalid document: %w", err)
	}
	at := align(document, alignment)
	for _, t := range p.Tensors {
		switch {
		case t.Type == uint32(tensor.Invalid) || t.Type > uint32(tensor.BF16):
			return fmt.Errorf("tensor %q with the unknown type number %d", t.Name, t.Type)
		case len(t.Shape) > maxDimensions:
			return fmt.Errorf("tensor %q of %d dimensions, expected at most %d", t.Name, len(t.Shape), maxDimensions)
		case t.Length < 0 || at > len(b) || t.Length > len(b)-at:
			return fmt.Errorf("tensor %q of %d bytes at offset %d in a payload of %d", t.Name, t.Length, at, len(b))
		}
		p.data = append(p.data, tensor.Tensor{Name: t.Name, Type: tensor.Type(t.Type), Shape: t.Shape, Data: b[at : at+t.Length : at+t.Length]})
		at = align(at+t.Length, alignment)
	}
	return nil
}

// encode writes a payload with the given tensors to a new memory file. It returns the
// descriptor, which the caller owns, and the sizes of the document and of the whole.
func (p *payload) encode(tensors []tensor.Tensor) (fd, document, size int, err error) {
	for i := range tensors {
		t := &tensors[i]
		p.Tensors = append(p.Tensors, payloadTensor{t.Name, uint32(t.Type), t.Shape, len(t.Data)})
	}
	text, err := json.Marshal(p)
	if err != nil {
		return -1, 0, 0, err
	}
	size = align(len(text), alignment)
	for i := range tensors {
		size = align(size+len(tensors[i].Data), alignment)
	}
	b, fd, err := memfd.New(size)
	if err != nil {
		return -1, 0, 0, err
	}
	defer memfd.Unmap(b)
	at := align(copy(b, text), alignment)
	for i := range tensors {
		at = align(at+copy(b[at:], tensors[i].Data), alignment)
	}
	return fd, len(text), size, nil
}

// release frees the memory of a received payload. p may be nil.
func (p *payload) release() {
	if p != nil {
		p.memory.Release()
		p.memory = nil
	}
}

// takeMemory transfers ownership of the memory to the caller.
func (p *payload) takeMemory() *buf.Buf {
	m := p.memory
	p.memory = nil
	return m
}

// encodeParameters returns parameters as a JSON object. It omits NaN and infinities, which
// JSON cannot represent.
func encodeParameters(all []infer.Parameter) []byte {
	object := make(map[string]any, len(all))
	for _, p := range all {
		if f, ok := p.Value.(float64); ok && (math.IsNaN(f) || math.IsInf(f, 0)) {
			continue
		}
		object[p.Name] = p.Value
	}
	b, err := json.Marshal(object)
	if err != nil {
		return []byte("{}") // unreachable: all remaining values can be encoded
	}
	return b
}

const (
	maxParameters     = 256
	maxParameterBytes = 64 << 10
)

// decodeParameters decodes a JSON object received from a worker. Errors are those of the
// model, not of its client.
func decodeParameters(text []byte) ([]infer.Parameter, error) {
	if len(text) == 0 {
		return nil, nil
	}
	if len(text) > maxParameterBytes {
		return nil, infer.Errorf(infer.Internal, "parameters: found %d bytes, expected at most %d", len(text), maxParameterBytes)
	}
	object := map[string]any{}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&object); err != nil {
		return nil, infer.Errorf(infer.Internal, "parameters: %w", err)
	}
	if len(object) > maxParameters {
		return nil, infer.Errorf(infer.Internal, "parameters: found %d, expected at most %d", len(object), maxParameters)
	}
	all := make([]infer.Parameter, 0, len(object))
	for name, value := range object {
		if n, ok := value.(json.Number); ok {
			value = numberOf(n)
		}
		switch value.(type) {
		case bool, int64, float64, string:
		default:
			return nil, infer.Errorf(infer.Internal, "parameter %q: found %v, expected a boolean, a number or a string", name, value)
		}
		all = append(all, infer.Parameter{Name: name, Value: value})
	}
	slices.SortFunc(all, func(a, b infer.Parameter) int { return strings.Compare(a.Name, b.Name) })
	return all, nil
}

// numberOf returns n as an int64 if it is an integer that fits, otherwise as a float64, or
// nil if it fits neither.
func numberOf(n json.Number) any {
	if i, err := n.Int64(); err == nil {
		return i
	}
	if f, err := n.Float64(); err == nil {
		return f
	}
	return nil
}
