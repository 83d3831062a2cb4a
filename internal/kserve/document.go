package kserve

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"sync"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/modelconfig"
	"github.com/shoal-serving/shoal/tensor"
)

// A document reads the values of a JSON text in order. Each method reads one value, and
// returns an error that names the field if the value has the wrong type.
type document struct {
	text       []byte
	json       *jsontext.Decoder
	limits     *Limits
	longArrays []longArray // arrays that are not in text and have not been read yet
}

// Decoders are large, and reuse their stacks.
var jsonDecoders = sync.Pool{New: func() any { return jsontext.NewDecoder(new(bytes.Buffer)) }}

// openDocument starts reading text, which it does not copy. The caller closes the
// document.
func openDocument(text []byte, limits *Limits) document {
	d := document{text: text, json: jsonDecoders.Get().(*jsontext.Decoder), limits: limits}
	d.json.Reset(bytes.NewBuffer(text), jsonOptions...) // the decoder reads from a Buffer without copying
	return d
}

// To detect duplicates, the decoder would store the names of all members, which takes ten
// times the memory of the document. Only duplicates of known names matter, and members
// detects those.
var jsonOptions = []jsontext.Options{jsontext.AllowDuplicateNames(true)}

func (d *document) close() { jsonDecoders.Put(d.json) }

// end returns an error unless the whole document has been read.
func (d *document) end() error {
	switch _, err := d.json.ReadToken(); {
	case errors.Is(err, io.EOF):
		return nil
	case err != nil:
		return malformed(err)
	}
	return malformed(errors.New("the document is followed by another"))
}

// knownMembers maps the name of each known member to a bit.
var knownMembers = bits("id", "parameters", "inputs", "outputs", "name", "shape", "datatype", "data", "priority", "timeout",
	"sequence_id", "sequence_start", "sequence_end", "binary_data", "binary_data_output", "binary_data_size", "classification",
	"shared_memory_region", "shared_memory_offset", "shared_memory_byte_size", "key", "offset", "byte_size",
	"ready", ConfigParameter, UnloadDependentsParameter,
	LogFile, LogInfo, LogWarning, LogError, LogVerbose, LogFormat,
	TraceLevel, "trace_rate", "trace_count", "log_frequency", traceFile, "trace_mode")

func bits(names ...string) map[string]uint {
	m := make(map[string]uint, len(names))
	for i, name := range names {
		m[name] = 1 << i
	}
	return m
}

// members calls each with the name of every member of an object. each must read the
// member's value, and must not use name after that. A known name that occurs twice is an
// error, because it is ambiguous.
func (d *document) members(field string, each func(name []byte) error) error {
	if err := d.open(field, '{', "object"); err != nil {
		return err
	}
	var seen uint
	for d.json.PeekKind() == '"' {
		name, err := d.shortString(field)
		if err != nil {
			return err
		}
		bit := knownMembers[string(name)]
		if seen&bit != 0 {
			return malformed(fmt.Errorf("member '%s' of an object comes twice", name))
		}
		seen |= bit
		if err := each(name); err != nil {
			return err
		}
	}
	return d.token() // the closing brace, or an error
}

// elements calls each for every element of an array. each must read the element.
func (d *document) elements(field string, each func() error) error {
	if err := d.open(field, '[', "array"); err != nil {
		return err
	}
	for {
		switch d.json.PeekKind() {
		case ']', jsontext.KindInvalid:
			return d.token() // the closing bracket, or an error
		}
		if err := each(); err != nil {
			return err
		}
	}
}

func (d *document) open(field string, kind jsontext.Kind, name string) error {
	if got := d.json.PeekKind(); got != kind && got != jsontext.KindInvalid {
		return mistyped(field, name)
	}
	if err := d.limits.checkDepth(d.json.StackDepth() + 1); err != nil {
		return err
	}
	return d.token()
}

func (d *document) token() error {
	if _, err := d.json.ReadToken(); err != nil {
		return malformed(err)
	}
	return nil
}

// skip reads and discards a value.
func (d *document) skip() error {
	for depth := d.json.StackDepth(); ; {
		var err error
		if d.json.PeekKind() == '"' {
			_, err = d.shortString("") // checks its length
		} else {
			err = d.token()
		}
		if err != nil {
			return err
		}
		now := d.json.StackDepth()
		if now == depth {
			return nil
		}
		if err := d.limits.checkDepth(now); err != nil {
			return err
		}
	}
}

// value returns the text of a value, which is part of the document and stays valid.
func (d *document) value() ([]byte, error) {
	v, err := d.json.ReadValue()
	if err != nil {
		return nil, malformed(err)
	}
	end := d.json.InputOffset()
	return d.text[end-int64(len(v)) : end], nil
}

// shortString returns the contents of a string whose length is limited, such as a name.
func (d *document) shortString(field string) ([]byte, error) {
	v, err := d.quoted(field)
	if err != nil {
		return nil, err
	}
	// At most six characters encode one byte.
	if err := d.limits.CheckText((len(v) - 2) / 6); err != nil {
		return nil, err
	}
	if v, err = unquote(v); err != nil {
		return nil, err
	}
	return v, d.limits.CheckText(len(v))
}

// longString returns the contents of a string of any length.
func (d *document) longString(field string) ([]byte, error) {
	v, err := d.quoted(field)
	if err != nil {
		return nil, err
	}
	return unquote(v)
}

func (d *document) quoted(field string) ([]byte, error) {
	v, err := d.value()
	if err == nil && v[0] != '"' {
		err = mistyped(field, "string")
	}
	return v, err
}

func unquote(v []byte) ([]byte, error) {
	if bytes.IndexByte(v, '\\') < 0 {
		return v[1 : len(v)-1], nil
	}
	v, err := jsontext.AppendUnquote(nil, v)
	if err != nil {
		return nil, malformed(err)
	}
	return v, nil
}

func (d *document) string(field string) (string, error) {
	b, err := d.shortString(field)
	return string(b), err
}

func (d *document) bool(field string) (bool, error) {
	v, err := d.value()
	if err != nil {
		return false, err
	}
	switch v[0] {
	case 't':
		return true, nil
	case 'f':
		return false, nil
	}
	return false, mistyped(field, "boolean")
}

func (d *document) uint(field string) (uint64, error) {
	v, err := d.value()
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseUint(string(v[:min(len(v), 21)]), 10, 64) // no valid number has more digits
	if err != nil {
		return 0, mistyped(field, "unsigned-integer")
	}
	return n, nil
}

// number reads a number as an int64, a uint64 or a float64, whichever fits first.
func (d *document) number() (any, error) {
	v, err := d.value()
	if err != nil {
		return nil, err
	}
	if err := d.limits.CheckText(len(v)); err != nil {
		return nil, err
	}
	text := string(v)
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return n, nil
	}
	if n, err := strconv.ParseUint(text, 10, 64); err == nil {
		return n, nil
	}
	n, _ := strconv.ParseFloat(text, 64) // out of range is infinite
	return n, nil
}

// shape reads the dimensions of a tensor. The result is never nil.
func (d *document) shape() ([]int64, error) {
	shape := []int64{}
	err := d.elements("shape", func() error {
		n, err := d.uint("shape")
		if err == nil && n > math.MaxInt64 {
			err = mistyped("shape", "signed-integer")
		}
		if err == nil {
			err = d.limits.CheckDims(len(shape) + 1)
		}
		shape = append(shape, int64(n))
		return err
	})
	return shape, err
}

// datatype reads the name of a type. An unknown name is not an error: it returns Invalid,
// and the type that was probably meant, which may be Invalid as well.
func (d *document) datatype() (t, meant tensor.Type, err error) {
	name, err := d.shortString("datatype")
	if err != nil {
		return tensor.Invalid, tensor.Invalid, err
	}
	t, ok := tensor.ParseType(string(name))
	if !ok {
		meant = modelconfig.MeantType(string(name))
	}
	return t, meant, nil
}

func malformed(err error) error {
	if e, ok := errors.AsType[*jsontext.SyntacticError](err); ok {
		public := *e
		public.JSONPointer = knownPointer(e.JSONPointer)
		err = &public
	}
	why := strings.TrimPrefix(err.Error(), "jsontext: ")
	if errors.Is(err, io.EOF) {
		why = "the document is empty"
	}
	return infer.Errorf(infer.Invalid, "failed to parse the request JSON buffer: %s", why)
}

// knownPointer returns the beginning of a pointer to a value that has only known names and
// indices: others are the client's data, which errors do not repeat. It is not longer than
// a pointer to a member of a tensor's parameters.
func knownPointer(p jsontext.Pointer) (known jsontext.Pointer) {
	left := 4 // such as /inputs/0/parameters/binary_data_size
	for token := range p.Tokens() {
		_, err := strconv.ParseUint(token, 10, 32)
		if left == 0 || err != nil && knownMembers[token] == 0 {
			break
		}
		known = known.AppendToken(token)
		left--
	}
	return known
}

func unparsable(field, why string) *infer.Error {
	return infer.Errorf(infer.Invalid, "Unable to parse '%s': %s", field, why)
}

func missing(field string) *infer.Error {
	return unparsable(field, "attempt to access non-existing object member '"+field+"'")
}

func mistyped(field, kind string) *infer.Error {
	return unparsable(field, "attempt to access JSON non-"+kind+" as "+kind)
}
