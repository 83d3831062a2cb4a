package modelconfig

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// A place is the position of a value in a protobuf text. The protobuf parser does not keep
// line numbers, so the text is scanned a second time, after the parser has accepted it.
type place struct {
	line   int
	offset int    // of the value in the text
	text   string // of a number, an identifier, or a string without its quotes
	fields map[string]*occurrences
}

// occurrences are all values of one field in a message, in order.
type occurrences struct {
	line   int // of the first occurrence of the name, even if its list is empty
	values []*place
}

// locate returns the places of all values in a text.
func locate(text []byte) *place {
	s := scanner{text: text, line: 1}
	return s.message(0)
}

// lineOf returns the line of a field, such as input[0].dims[1], or of the closest
// enclosing field that exists, or 0 if none does. An index of a map is a key, and what
// follows it is a field of the value.
func (p *place) lineOf(path string) int {
	line, _ := p.find(path)
	return line
}

// find is lineOf, and reports whether the field itself exists.
func (p *place) find(path string) (line int, exact bool) {
	for step := range strings.SplitSeq(path, ".") {
		if p == nil {
			return line, false
		}
		name, index, indexed := strings.Cut(strings.TrimSuffix(step, "]"), "[")
		all := p.fields[name]
		if all == nil {
			return line, false
		}
		line, p = all.line, nil
		switch {
		case indexed:
			if p = all.at(index); p == nil {
				return line, false
			}
			line = p.line
			if value := p.fields["value"]; all.isMap() && value != nil {
				p = value.at("0")
			}
		case len(all.values) > 0:
			p = all.values[0]
		}
	}
	return line, true
}

// fieldAt returns the field of a message whose value is at an offset, with its path, or
// nil.
func (p *place) fieldAt(m protoreflect.MessageDescriptor, offset int) (protoreflect.FieldDescriptor, string) {
	for name, all := range p.fields {
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

// isMap distinguishes map entries from other messages by their field named key, which no
// message of a configuration has.
func (o *occurrences) isMap() bool {
	return slices.ContainsFunc(o.values, func(p *place) bool { return p.fields["key"] != nil })
}

// at returns the value with an index, or with a key for a map.
func (o *occurrences) at(index string) *place {
	if !o.isMap() {
		if i, err := strconv.Atoi(index); err == nil && i >= 0 && i < len(o.values) {
			return o.values[i]
		}
		return nil
	}
	var found *place
	for _, v := range o.values {
		if sameKey(v.key(), index) {
			found = v // the last one wins
		}
	}
	return found
}

// key returns the key of a map entry as written.
func (p *place) key() string {
	if key := p.fields["key"]; key != nil && len(key.values) > 0 {
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
	text []byte
	at   int
	line int
}

// message scans fields until the closing bracket or the end of the text.
func (s *scanner) message(closing byte) *place {
	p := &place{line: s.line, fields: map[string]*occurrences{}}
	for {
		switch c := s.peek(); {
		case c == 0:
			return p
		case c == closing:
			s.at++
			return p
		case isWord(c):
			s.field(p)
		default:
			s.at++ // a comma or semicolon after a field
		}
	}
}

func (s *scanner) field(p *place) {
	line, name := s.line, s.word()
	all := p.fields[name]
	if all == nil {
		all = &occurrences{line: line}
		p.fields[name] = all
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

func (s *scanner) value() *place {
	c := s.peek()
	p := &place{line: s.line, offset: s.at}
	switch {
	case c == '{' || c == '<':
		s.at++
		closing := byte('}')
		if c == '<' {
			closing = '>'
		}
		m := s.message(closing)
		p.fields = m.fields
	case c == '"' || c == '\'':
		for c = s.peek(); c == '"' || c == '\''; c = s.peek() { // adjacent strings are concatenated
			p.text += s.quoted(c)
		}
	case isWord(c):
		p.text = s.word()
		if p.text == "-" && isWord(s.peek()) { // a sign may be separate
			p.text += s.word()
		}
	case c != 0:
		s.at++ // not accepted by the parser
	}
	return p
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
