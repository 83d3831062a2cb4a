package kserve

import (
	"bytes"
	"errors"

	"github.com/go-json-experiment/json/jsontext"
)

// dataDepth is the nesting depth of an input's data: in the request, its inputs, and the
// input.
const dataDepth = 3

var (
	errSyntax   = errors.New("not an array in JSON")
	errMismatch = errors.New("an element has another type")
)

// A scanner reads the elements of a JSON array, nested or flat, in order. For arrays of
// numbers it is several times as fast as a general parser, and as strict.
type scanner struct {
	text   []byte
	limits *Limits
	pos    int
	depth  int
	state  state
}

type state uint8

const (
	expectValue state = iota // at the start and after a comma: a value must follow
	afterOpen                // after an opening bracket: a value or a closing bracket
	afterValue               // after a value: a comma or a closing bracket
)

// next moves to the first byte of the next element, which the caller must then read. It
// returns false after the last one.
func (s *scanner) next() (bool, error) {
	for ; s.pos < len(s.text); s.pos++ {
		ok := true
		switch s.text[s.pos] {
		case ' ', '\t', '\n', '\r':
		case '[':
			ok = s.state != afterValue
			s.depth++
			s.state = afterOpen
		case ']':
			ok = s.state != expectValue && s.depth > 0
			s.depth--
			s.state = afterValue
		case ',':
			ok = s.state == afterValue && s.depth > 0
			s.state = expectValue
		default:
			if s.state == afterValue || s.depth == 0 {
				return false, errSyntax
			}
			s.state = afterValue
			return true, nil
		}
		switch {
		case !ok:
			return false, errSyntax
		case s.depth > s.limits.Depth-dataDepth:
			return false, s.limits.checkDepth(s.depth + dataDepth)
		}
	}
	if s.depth > 0 || s.state != afterValue {
		return false, errSyntax
	}
	return false, nil
}

// number reads the number at the current position into n. next checks what follows it.
func (s *scanner) number(n *number) error {
	text, i := s.text[s.pos:], 0
	*n = number{negative: text[0] == '-', integer: true}
	if n.negative {
		i++
	}
	size := n.readDigits(text[i:])
	if size == 0 {
		return errMismatch
	}
	if text[i] == '0' {
		size = 1 // no digit may follow; next rejects it
	}
	i += size
	if i < len(text) && text[i] == '.' {
		size := n.readDigits(text[i+1:])
		if size == 0 {
			return errSyntax
		}
		i += 1 + size
		n.exponent = -int64(size)
		n.integer = false
	}
	if i < len(text) && (text[i] == 'e' || text[i] == 'E') {
		size := n.readExponent(text[i+1:])
		if size == 0 {
			return errSyntax
		}
		i += 1 + size
		n.integer = false
	}
	n.text = text[:i]
	s.pos += i
	return nil
}

func (s *scanner) boolean() (byte, error) {
	rest := s.text[s.pos:]
	switch {
	case bytes.HasPrefix(rest, []byte("true")):
		s.pos += len("true")
		return 1, nil
	case bytes.HasPrefix(rest, []byte("false")):
		s.pos += len("false")
		return 0, nil
	}
	return 0, errMismatch
}

// appendString reads the string at the current position, and appends its unescaped
// contents to dst.
func (s *scanner) appendString(dst []byte) ([]byte, error) {
	text := s.text[s.pos:]
	if text[0] != '"' {
		return dst, errMismatch
	}
	for i := 1; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++ // an escaped character does not end the string
		case '"':
			s.pos += i + 1
			return jsontext.AppendUnquote(dst, text[:i+1])
		}
	}
	return dst, errSyntax
}
