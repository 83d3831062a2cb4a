package kserve

import (
	"bytes"
	"errors"

	"github.com/go-json-experiment/json/jsontext"
)

// dataDepth is how deep an input's data lies in the document: inside the request,
// its inputs, and the input.
const dataDepth = 3

var (
	errSyntax   = errors.New("not an array in JSON")
	errMismatch = errors.New("an element has another type")
)

// A scanner walks over the elements of a JSON array, nested or flat, in the
// order in which they stand. It is for arrays of numbers, where a general
// parser takes several times as long, and is as strict as one.
type scanner struct {
	text   []byte
	limits *Limits
	pos    int
	depth  int
	state  state
}

type state uint8

const (
	wanting state = iota // at the start and after a comma: a value must come
	opened               // after a bracket: a value or a closing bracket
	ended                // after a value: a comma or a closing bracket
)

// next moves to the first byte of the next element, which the caller must
// then read. It returns false after the last one.
func (s *scanner) next() (bool, error) {
	for ; s.pos < len(s.text); s.pos++ {
		ok := true
		switch s.text[s.pos] {
		case ' ', '\t', '\n', '\r':
		case '[':
			ok = s.state != ended
			s.depth++
			s.state = opened
		case ']':
			ok = s.state != wanting && s.depth > 0
			s.depth--
			s.state = ended
		case ',':
			ok = s.state == ended && s.depth > 0
			s.state = wanting
		default:
			if s.state == ended || s.depth == 0 {
				return false, errSyntax
			}
			s.state = ended
			return true, nil
		}
		switch {
		case !ok:
			return false, errSyntax
		case s.depth > s.limits.Depth-dataDepth:
			return false, s.limits.CheckDepth(s.depth + dataDepth)
		}
	}
	if s.depth > 0 || s.state != ended {
		return false, errSyntax
	}
	return false, nil
}

// number reads the number at the position into n. What follows it is for next
// to judge.
func (s *scanner) number(n *number) error {
	text, i := s.text[s.pos:], 0
	*n = number{negative: text[0] == '-', integer: true}
	if n.negative {
		i++
	}
	size := n.digits(text[i:])
	if size == 0 {
		return errMismatch
	}
	if text[i] == '0' {
		size = 1 // no digit may follow; if one does, next refuses it
	}
	i += size
	if i < len(text) && text[i] == '.' {
		size := n.digits(text[i+1:])
		if size == 0 {
			return errSyntax
		}
		i += 1 + size
		n.exponent = -int64(size)
		n.integer = false
	}
	if i < len(text) && (text[i] == 'e' || text[i] == 'E') {
		size := n.power(text[i+1:])
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

// appendString reads the string at the position, and appends what it stands
// for to dst.
func (s *scanner) appendString(dst []byte) ([]byte, error) {
	text := s.text[s.pos:]
	if text[0] != '"' {
		return dst, errMismatch
	}
	for i := 1; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++ // whatever it escapes does not end the string
		case '"':
			s.pos += i + 1
			return jsontext.AppendUnquote(dst, text[:i+1])
		}
	}
	return dst, errSyntax
}
