package modelconfig

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/modelconfig/configpb"
	"github.com/shoal-serving/shoal/internal/suggest"
)

// The protobuf parser reports the position of an error, its kind and the token only in its
// message.
var (
	positioned   = regexp.MustCompile(`\(line (\d+):(\d+)\): (.*)`)
	unknownField = regexp.MustCompile(`^unknown field: (.*)`)
	unknownJSON  = regexp.MustCompile(`unknown field "(.*)"`)
	setTwice     = regexp.MustCompile(`^non-repeated field "(\w+)" is repeated`)
	conflicting  = regexp.MustCompile(`^error parsing "(\w+)", oneof \S+ is already set`)
	wrongValue   = regexp.MustCompile(`^invalid value for \w+ type: (.*)`)
)

// Configurations of large models are often templates, whose values a script fills in.
var (
	placeholder = regexp.MustCompile(`^\$\{\w*\}`)
	fieldBefore = regexp.MustCompile(`(\w+)\s*:\s*\[?\s*$`)
)

// parseError converts an error of the parser to the format of this package.
func parseError(file string, text []byte, err error) error {
	if strings.HasSuffix(err.Error(), io.ErrUnexpectedEOF.Error()) {
		last := 1 + bytes.Count(bytes.TrimSpace(text), []byte("\n"))
		return infer.Errorf(infer.Invalid, "%s:%d: the file ends inside a string, a list or a block; close it with a quote, ] or }", file, last)
	}
	at := positioned.FindStringSubmatch(err.Error())
	if at == nil {
		return infer.Errorf(infer.Invalid, "%s: %w", file, err)
	}
	line, _ := strconv.Atoi(at[1])
	column, _ := strconv.Atoi(at[2])
	return infer.Errorf(infer.Invalid, "%s:%d:%d: %s", file, line, column, rewordParseError(at[3], text, offsetOf(text, line, column)))
}

// rewordParseError says what is wrong at an offset of the text, given the parser's message.
func rewordParseError(message string, text []byte, offset int) string {
	if found, field := placeholder.Find(text[offset:]), fieldBefore.FindSubmatch(text[:offset]); found != nil && field != nil {
		return fmt.Sprintf("%s: found %s, which is a placeholder of a template; replace it by a value", field[1], found)
	}
	root, schema := locate(text), new(configpb.ModelConfig).ProtoReflect().Descriptor()
	if m := unknownField.FindStringSubmatch(message); m != nil {
		enclosing, path := root.messageAt(schema, offset)
		return unknownFieldText(m[1], enclosing, path)
	}
	if m := setTwice.FindStringSubmatch(message); m != nil {
		return m[1] + ": set twice; remove one of the two"
	}
	if m := conflicting.FindStringSubmatch(message); m != nil {
		enclosing, _ := root.messageAt(schema, offset)
		return fmt.Sprintf("%s: only one of %s can be set", m[1], alternatives(enclosing, m[1]))
	}
	if m := wrongValue.FindStringSubmatch(message); m != nil {
		if field, path := root.fieldAt(schema, offset); field != nil {
			return fmt.Sprintf("%s: found %s, expected %s", path, m[1], expectedValues(field, m[1]))
		}
	}
	return message
}

// jsonError returns the error for a configuration that is not the JSON of one.
func jsonError(err error) error {
	hint := ""
	if m := unknownJSON.FindStringSubmatch(err.Error()); m != nil {
		// The parser does not say in which message the field is.
		var names []string
		for field := range rules {
			names = append(names, field[strings.LastIndexByte(field, '.')+1:])
		}
		slices.Sort(names)
		hint = didYouMean(m[1], names)
	}
	return infer.Errorf(infer.Invalid, "the configuration that was sent: %w%s", err, hint)
}

// unknownFieldText says that a message has no field of this name, and which one was
// probably meant.
func unknownFieldText(name string, in protoreflect.MessageDescriptor, path string) string {
	unknown := name + ": unknown field"
	if path != "" {
		unknown += " of " + path
	}
	var names []string
	for i := range in.Fields().Len() {
		names = append(names, string(in.Fields().Get(i).Name()))
	}
	if hint := didYouMean(name, names); hint != "" {
		return unknown + hint
	}
	if other := elsewhere(name); other != "" {
		return unknown + "; it belongs inside " + other
	}
	return unknown + "; docs/reference/configuration.md lists the fields of a configuration"
}

// didYouMean returns the end of an error about an unknown name: "" if no candidate is
// similar.
func didYouMean(name string, candidates []string) string {
	if meant := suggest.Nearest(name, candidates); meant != "" {
		return "; did you mean " + meant + "?"
	}
	return ""
}

// elsewhere returns the only block that has a field of this name; "" if there is none, or
// more than one.
func elsewhere(name string) string {
	var blocks []string
	for _, field := range slices.Sorted(maps.Keys(rules)) {
		if block, ok := strings.CutSuffix(field, "."+name); ok && !strings.HasPrefix(block, "sequence_batching") { // the other block is meant far more often
			blocks = append(blocks, block)
		}
	}
	if len(blocks) != 1 {
		return ""
	}
	return blocks[0]
}

// alternatives returns the fields of which a message may have only one, given one of them.
func alternatives(in protoreflect.MessageDescriptor, field string) string {
	var names []string
	if fd := in.Fields().ByTextName(field); fd != nil && fd.ContainingOneof() != nil {
		all := fd.ContainingOneof().Fields()
		for i := range all.Len() {
			names = append(names, string(all.Get(i).Name()))
		}
	}
	return strings.Join(names, ", ")
}

// expectedValues describes the valid values of a field, given an invalid one.
func expectedValues(field protoreflect.FieldDescriptor, found string) string {
	switch field.Kind() {
	case protoreflect.EnumKind:
		return "one of " + strings.Join(enumNames(field.Enum()), ", ") + meantValue(field.Enum(), found)
	case protoreflect.BoolKind:
		return "true or false"
	case protoreflect.StringKind:
		return "a text in quotes"
	case protoreflect.Int32Kind, protoreflect.Int64Kind:
		return "a whole number of at most " + strings.TrimPrefix(field.Kind().String(), "int") + " bits"
	case protoreflect.Uint32Kind, protoreflect.Uint64Kind:
		return "a whole number of at least 0 and at most " + strings.TrimPrefix(field.Kind().String(), "uint") + " bits"
	}
	return "a value of type " + field.Kind().String()
}

// enumNames returns the names of the values that can be set.
func enumNames(enum protoreflect.EnumDescriptor) (names []string) {
	for i := range enum.Values().Len() {
		if name := string(enum.Values().Get(i).Name()); !strings.HasSuffix(name, "_INVALID") {
			names = append(names, name)
		}
	}
	return names
}

// meantValue returns the end of an error about an unknown value of an enumeration.
func meantValue(enum protoreflect.EnumDescriptor, found string) string {
	if enum.Name() == "DataType" {
		if meant := MeantType(found); meant != 0 {
			return "; did you mean " + typeName(meant) + "?"
		}
	}
	return didYouMean(found, enumNames(enum))
}

// offsetOf returns the byte offset of a line and a column, both counted from 1, the column
// in characters.
func offsetOf(text []byte, line, column int) int {
	offset := 0
	for ; line > 1; line-- {
		offset += bytes.IndexByte(text[offset:], '\n') + 1
	}
	for ; column > 1 && offset < len(text); column-- {
		_, size := utf8.DecodeRune(text[offset:])
		offset += size
	}
	return offset
}
