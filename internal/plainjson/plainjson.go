// Package plainjson prints protocol buffers as JSON in the way Triton does over
// HTTP: fields in the order of the .proto and under its names, numbers, strings,
// lists and maps also if they are empty, and 64-bit integers as numbers, which is
// why protojson does not do. A message is printed if it is set.
//
// Fields that are Shoal's own, with numbers from 1000 on, are left out if they are
// empty.
//
// It only prints. What it has printed, protojson reads.
package plainjson

import (
	"encoding/base64"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Append prints a message to the end of b.
func Append(b []byte, m proto.Message) []byte { return appendMessage(b, m.ProtoReflect()) }

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

// ownFields is the first number of those that Triton does not have.
const ownFields = 1000

// left reports whether a field that is not set is left out: messages, all of
// which there is one at most, and those that Triton's clients do not look for.
func left(fd protoreflect.FieldDescriptor) bool {
	if fd.Number() >= ownFields {
		return true
	}
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
	case []byte:
		return append(base64.StdEncoding.AppendEncode(append(b, '"'), x), '"')
	case bool:
		return strconv.AppendBool(b, x)
	case uint32, uint64:
		return strconv.AppendUint(b, v.Uint(), 10)
	case float32:
		return appendFloat(b, float64(x), 32)
	case float64:
		return appendFloat(b, x, 64)
	default: // signed integers
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
