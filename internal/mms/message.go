package mms

import (
	"encoding/binary"
	"errors"
	"net/http"
)

// A Part is one piece of a request's data: its body, or a field of a form.
type Part struct {
	Name, Type string // Type is that of the content, if the client said
	Data       []byte
}

// Body is the name of the part that a request has which is no form.
const Body = "body"

// encodeRequest encodes a request for the handler. The worker's
// shoal_handler.py reads it. Headers are lines, first a name and then a value, because
// Python takes lines apart in one go; a header has no ends of lines in it.
func encodeRequest(b []byte, header http.Header, parts []Part) []byte {
	at := len(b)
	b = binary.LittleEndian.AppendUint32(b, 0) // how long they are, once that is known
	for name, values := range header {
		for _, v := range values {
			b = append(append(b, name...), '\n')
			b = append(append(b, v...), '\n')
		}
	}
	binary.LittleEndian.PutUint32(b[at:], uint32(len(b)-at-4))
	b = binary.LittleEndian.AppendUint32(b, uint32(len(parts)))
	for _, p := range parts {
		b = appendText(appendText(b, p.Name), p.Type)
		b = appendText(b, p.Data)
	}
	return b
}

// encodedSize returns how many bytes encodeRequest writes.
func encodedSize(header http.Header, parts []Part) int {
	n := 8
	for name, values := range header {
		for _, v := range values {
			n += 2 + len(name) + len(v)
		}
	}
	for _, p := range parts {
		n += 12 + len(p.Name) + len(p.Type) + len(p.Data)
	}
	return n
}

func appendText[T string | []byte](b []byte, text T) []byte {
	return append(binary.LittleEndian.AppendUint32(b, uint32(len(text))), text...)
}

// An Answer is what a handler made of a request.
type Answer struct {
	Status int
	Failed bool // the handler failed, and Body says how
	Header [][2]string
	Body   []byte // of the response's memory
}

var errIncomplete = errors.New("the answer of the worker is incomplete")

// decodeAnswer reads what a worker sent. It keeps b.
func decodeAnswer(b []byte) (a Answer, err error) {
	if len(b) < 12 {
		return a, errIncomplete
	}
	status, failed, count := binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint32(b[4:]), binary.LittleEndian.Uint32(b[8:])
	b = b[12:]
	if status < 200 || status > 999 {
		return a, errors.New("the handler set a status that is not from 200 to 999")
	}
	a.Status, a.Failed = int(status), failed == 1
	for range count {
		var pair [2]string
		for i := range pair {
			if len(b) < 4 || uint64(binary.LittleEndian.Uint32(b)) > uint64(len(b)-4) {
				return a, errIncomplete
			}
			n := binary.LittleEndian.Uint32(b)
			pair[i], b = string(b[4:4+n]), b[4+n:]
		}
		a.Header = append(a.Header, pair)
	}
	a.Body = b
	return a, nil
}
