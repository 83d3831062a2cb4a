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
	"github.com/shoal-serving/shoal/tensor"
)

// A document is read value by value, in the order in which they stand. Each
// method reads one, and names the field in its error if it is of another kind.
type document struct {
	text   []byte
	json   *jsontext.Decoder
	limits *Limits
	cuts   []cut // arrays that are not in text, and have not been read yet
}

// Decoders are large, and keep their stacks from one use to the next.
var jsonDecoders = sync.Pool{New: func() any { return jsontext.NewDecoder(new(bytes.Buffer)) }}

// openDocument starts to read text, in place. The caller closes the document.
func openDocument(text []byte, limits *Limits) document {
	d := document{text: text, json: jsonDecoders.Get().(*jsontext.Decoder), limits: limits}
	d.json.Reset(bytes.NewBuffer(text), jsonOptions...) // from a Buffer it reads without copying
	return d
}

// The decoder would remember the names of all members, to find one that comes
// twice, and take ten times the memory of the document for it. Only names that
// are known here matter, and members looks for those.
var jsonOptions = []jsontext.Options{jsontext.AllowDuplicateNames(true)}

func (d *document) close() { jsonDecoders.Put(d.json) }

// end returns an error unless everything has been read.
func (d *document) end() error {
	switch _, err := d.json.ReadToken(); {
	case errors.Is(err, io.EOF):
		return nil
	case err != nil:
		return malformed(err)
	}
	return malformed(errors.New("the document is followed by another"))
}

// known has a bit for the name of each member that is read somewhere.
var known = bits("id", "parameters", "inputs", "outputs", "name", "shape", "datatype", "data", "priority", "timeout",
	"sequence_id", "sequence_start", "sequence_end", "binary_data", "binary_data_output", "binary_data_size", "classification", "shared_memory_region",
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

// members calls each with the name of every member of an object. each must
// read the member's value, and may not look at the name once it has begun to. A
// known name that comes twice is an error: which of the two is meant?
func (d *document) members(field string, each func(name []byte) error) error {
	if err := d.open(field, '{', "object"); err != nil {
		return err
	}
	var seen uint
	for d.json.PeekKind() == '"' {
		name, err := d.unquoted(field)
		if err != nil {
			return err
		}
		bit := known[string(name)]
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

// elements calls each for every element of an array. each must read it.
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
	if err := d.limits.CheckDepth(d.json.StackDepth() + 1); err != nil {
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

// skip reads a value that nobody asks for.
func (d *document) skip() error {
	for depth := d.json.StackDepth(); ; {
		var err error
		if d.json.PeekKind() == '"' {
			_, err = d.unquoted("") // whose length is limited
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
		if err := d.limits.CheckDepth(now); err != nil {
			return err
		}
	}
}

// value returns the text of a value. It stays valid, as part of the document.
func (d *document) value() ([]byte, error) {
	v, err := d.json.ReadValue()
	if err != nil {
		return nil, malformed(err)
	}
	end := d.json.InputOffset()
	return d.text[end-int64(len(v)) : end], nil
}

// unquoted returns what a string stands for, which is a text and not long.
func (d *document) unquoted(field string) ([]byte, error) {
	v, err := d.quoted(field)
	if err != nil {
		return nil, err
	}
	// At most six characters stand for one byte.
	if err := d.limits.CheckText((len(v) - 2) / 6); err != nil {
		return nil, err
	}
	if v, err = unquote(v); err != nil {
		return nil, err
	}
	return v, d.limits.CheckText(len(v))
}

// content returns what a string stands for, of any length.
func (d *document) content(field string) ([]byte, error) {
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
	b, err := d.unquoted(field)
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
	n, err := strconv.ParseUint(string(v[:min(len(v), 21)]), 10, 64) // none has more digits
	if err != nil {
		return 0, mistyped(field, "unsigned-integer")
	}
	return n, nil
}

// number reads one as the first that it fits of an int64, a uint64 and a float64.
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
	n, _ := strconv.ParseFloat(text, 64) // one that is too large is infinite
	return n, nil
}

// shape reads the dimensions of a tensor. Even without any it is not nil.
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

// datatype reads the name of a type, which may be one that there is not.
func (d *document) datatype() (tensor.Type, error) {
	name, err := d.unquoted("datatype")
	if err != nil {
		return tensor.Invalid, err
	}
	t, _ := tensor.ParseType(string(name))
	return t, nil
}

func malformed(err error) error {
	why := strings.TrimPrefix(err.Error(), "jsontext: ")
	if errors.Is(err, io.EOF) {
		why = "the document is empty"
	}
	return infer.Errorf(infer.Invalid, "failed to parse the request JSON buffer: %s", why)
}

func unparsable(field, why string) error {
	return infer.Errorf(infer.Invalid, "Unable to parse '%s': %s", field, why)
}

func missing(field string) error {
	return unparsable(field, "attempt to access non-existing object member '"+field+"'")
}

func mistyped(field, kind string) error {
	return unparsable(field, "attempt to access JSON non-"+kind+" as "+kind)
}
