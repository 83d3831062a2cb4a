package modelconfig

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// A node is a value, with its position, in a protobuf text. The protobuf parser does not keep
// line numbers, so the text is scanned a second time, after the parser has accepted it.
type node struct {
	line   int
	offset int    // of the value in the text
	end    int    // offset after the value
	text   string // of a number, an identifier, or a string without its quotes
	fields map[string]*occurrences
}

// occurrences are all values of one field in a message, in order.
type occurrences struct {
	line   int // of the first occurrence of the name, even if its list is empty
	values []*node
}

// locate returns the root of a text, with all its values.
func locate(text []byte) *node {
	s := scanner{text: text, line: 1}
	return s.message(0)
}

// lineOf returns the line of a field, such as input[0].dims[1], or of the closest
// enclosing field that exists, or 0 if none does. An index of a map is a key, and what
// follows it is a field of the value.
func (n *node) lineOf(path string) int {
	line, _ := n.find(path)
	return line
}

// find is lineOf, and reports whether the field itself exists.
func (n *node) find(path string) (line int, exact bool) {
	for step := range strings.SplitSeq(path, ".") {
		if n == nil {
			return line, false
		}
		name, index, indexed := strings.Cut(strings.TrimSuffix(step, "]"), "[")
		all := n.fields[name]
		if all == nil {
			return line, false
		}
		line, n = all.line, nil
		switch {
		case indexed:
			if n = all.at(index); n == nil {
				return line, false
			}
			line = n.line
			if value := n.fields["value"]; all.isMap() && value != nil {
				n = value.at("0")
			}
		case len(all.values) > 0:
			n = all.values[0]
		}
	}
	return line, true
}

// fieldAt returns the field of a message whose value is at an offset, with its path, or
// nil.
func (n *node) fieldAt(m protoreflect.MessageDescriptor, offset int) (protoreflect.FieldDescriptor, string) {
	for name, all := range n.fields {
		fd := m.Fields().ByTextName(name)
		if fd == nil {
			continue
		}
		for i, v := range all.values {
			path := name
			switch {
			case fd.IsList():
				path = fmt.Sprintf("%s[%d]", name, i)
			case fd.IsMap():
				path = fmt.Sprintf("%s[%s]", name, v.key())
			}
			if v.offset == offset {
				return fd, path
			}
			if fd.Message() == nil {
				continue
			}
			if inner, rest := v.fieldAt(fd.Message(), offset); inner != nil {
				if fd.IsMap() {
					rest = strings.TrimPrefix(rest, "value.") // the key identifies the entry
				}
				return inner, path + "." + rest
			}
		}
	}
	return nil, ""
}

// messageAt returns the innermost message around an offset, with its path; "" for the
// whole configuration, whose descriptor is m.
func (n *node) messageAt(m protoreflect.MessageDescriptor, offset int) (protoreflect.MessageDescriptor, string) {
	for name, all := range n.fields {
		fd := m.Fields().ByTextName(name)
		if fd == nil || fd.Message() == nil {
			continue
		}
		for i, v := range all.values {
			if offset < v.offset || offset >= v.end || v.fields == nil {
				continue
			}
			inner, rest := v.messageAt(fd.Message(), offset)
			path := fd.TextName()
			if fd.IsList() {
				path = fmt.Sprintf("%s[%d]", name, i)
			}
			return inner, strings.TrimSuffix(path+"."+rest, ".")
		}
	}
	return m, ""
}

// isMap distinguishes map entries from other messages by their field named key, which no
// message of a configuration has.
func (o *occurrences) isMap() bool {
	return slices.ContainsFunc(o.values, func(n *node) bool { return n.fields["key"] != nil })
}

// at returns the value with an index, or with a key for a map.
func (o *occurrences) at(index string) *node {
	if !o.isMap() {
		if i, err := strconv.Atoi(index); err == nil && i >= 0 && i < len(o.values) {
			return o.values[i]
		}
		return nil
	}
	var found *node
	for _, v := range o.values {
		if sameKey(v.key(), index) {
			found = v // the last one wins
		}
	}
	return found
}

// key returns the key of a map entry as written.
func (n *node) key() string {
	if key := n.fields["key"]; key != nil && len(key.values) > 0 {
		return key.values[0].text
	}
	return ""
}

// sameKey compares a key as written, such as 0x10, with its decimal form.
func sameKey(written, key string) bool {
	n, err := strconv.ParseUint(written, 0, 64)
	return written == key || err == nil && strconv.FormatUint(n, 10) == key
}

// A scanner parses just enough of the text format to track line numbers. It accepts any
// text, but its result is meaningful only for texts that the parser accepts.
type scanner struct {
	text  []byte
	at    int
	line  int
	depth int // of the message that is scanned
}

// maxDepth is how deep messages may be nested: the rest of a text that goes deeper is not scanned.
// Those of a configuration do not come near it, and the text may be one that the parser rejects.
const maxDepth = 100

// message scans fields until the closing bracket or the end of the text.
func (s *scanner) message(closing byte) *node {
	n := &node{line: s.line, fields: map[string]*occurrences{}}
	if s.depth == maxDepth {
		s.at = len(s.text)
		return n
	}
	s.depth++
	defer func() { s.depth-- }()
	for {
		switch c := s.peek(); {
		case c == 0:
			return n
		case c == closing:
			s.at++
			return n
		case isWord(c):
			s.field(n)
		default:
			s.at++ // a comma or semicolon after a field
		}
	}
}

func (s *scanner) field(n *node) {
	line, name := s.line, s.word()
	all := n.fields[name]
	if all == nil {
		all = &occurrences{line: line}
		n.fields[name] = all
	}
	if s.peek() == ':' {
		s.at++
	}
	if s.peek() != '[' {
		v := s.value()
		v.line = line // the line of the name, even if the value is below it
		all.values = append(all.values, v)
		return
	}
	s.at++
	for {
		switch s.peek() {
		case ']':
			s.at++
			return
		case 0:
			return
		case ',':
			s.at++
		default:
			all.values = append(all.values, s.value())
		}
	}
}

func (s *scanner) value() *node {
	c := s.peek()
	n := &node{line: s.line, offset: s.at}
	switch {
	case c == '{' || c == '<':
		s.at++
		closing := byte('}')
		if c == '<' {
			closing = '>'
		}
		m := s.message(closing)
		n.fields = m.fields
	case c == '"' || c == '\'':
		for c = s.peek(); c == '"' || c == '\''; c = s.peek() { // adjacent strings are concatenated
			n.text += s.quoted(c)
		}
	case isWord(c):
		n.text = s.word()
		if n.text == "-" && isWord(s.peek()) { // a sign may be separate
			n.text += s.word()
		}
	case c != 0:
		s.at++ // not accepted by the parser
	}
	n.end = s.at
	return n
}

func (s *scanner) word() string {
	from := s.at
	for s.at < len(s.text) && isWord(s.text[s.at]) {
		s.at++
	}
	return string(s.text[from:s.at])
}

func (s *scanner) quoted(quote byte) string {
	s.at++
	from := s.at
	for s.at < len(s.text) && s.text[s.at] != quote {
		switch s.text[s.at] {
		case '\\':
			s.at++
		case '\n':
			s.line++
		}
		s.at++
	}
	s.at = min(s.at, len(s.text))
	text := string(s.text[from:s.at])
	s.at = min(s.at+1, len(s.text))
	return text
}

// peek skips space and comments, and returns the next character, or 0 at the end.
func (s *scanner) peek() byte {
	for ; s.at < len(s.text); s.at++ {
		switch c := s.text[s.at]; c {
		case '\n':
			s.line++
		case ' ', '\t', '\r', '\v', '\f', 0:
		case '#':
			for s.at+1 < len(s.text) && s.text[s.at+1] != '\n' {
				s.at++
			}
		default:
			return c
		}
	}
	return 0
}

func isWord(c byte) bool {
	return c == '_' || c == '-' || c == '+' || c == '.' || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}
