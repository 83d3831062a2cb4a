package kserve

import (
	"bytes"
	"sync"
)

// A longArray is an array of numbers that was removed from a document.
//
// Arrays of numbers are most of a document, and are decoded by a scanner that is as strict
// as the JSON library. So that the library does not parse them as well, they are replaced
// with empty arrays before it reads the document.
type longArray struct {
	at     int    // offset of the empty array in the shortened document
	text   []byte // the array
	offset int64  // of the array in the original document
}

const (
	// minLongArray is the length of the shortest array that is worth removing.
	minLongArray = 512

	emptyArray = "[]"
)

// shortDocuments pools the memory of shortened documents.
var shortDocuments = sync.Pool{New: func() any { return new([]byte) }}

// extractLongArrays appends text to short, without the values of members named data that
// are long arrays and contain neither arrays nor strings. It returns nil if text has none.
func extractLongArrays(short, text []byte) ([]byte, []longArray) {
	var arrays []longArray
	done := 0 // length of the prefix of text that has been processed
	end := -1 // offset of the closing bracket; searched for only when it is passed, since many brackets may open before it
	for at := 0; ; {
		i := bytes.Index(text[at:], []byte(`"data"`))
		if i < 0 {
			break
		}
		at += i + len(`"data"`)
		begin := arrayAfter(text, at)
		if begin < 0 {
			continue
		}
		if end < begin {
			i := bytes.IndexByte(text[begin:], ']')
			if i < 0 {
				break
			}
			end = begin + i
		}
		array := text[begin : end+1]
		if len(array) < minLongArray {
			continue
		}
		if bytes.IndexByte(array[1:], '[') >= 0 || bytes.IndexByte(array, '"') >= 0 {
			continue
		}
		short = append(short, text[done:begin]...)
		arrays = append(arrays, longArray{len(short), array, int64(begin)})
		short = append(short, emptyArray...)
		at, done = end+1, end+1
	}
	if arrays != nil {
		short = append(short, text[done:]...)
	}
	return short, arrays
}

// arrayAfter returns the offset of the array that is the value of the name ending at i, or
// -1 if the value is no array.
func arrayAfter(text []byte, i int) int {
	i = skipSpace(text, i)
	if i == len(text) || text[i] != ':' {
		return -1
	}
	i = skipSpace(text, i+1)
	if i == len(text) || text[i] != '[' {
		return -1
	}
	return i
}

func skipSpace(text []byte, i int) int {
	for i < len(text) && (text[i] == ' ' || text[i] == '\t' || text[i] == '\n' || text[i] == '\r') {
		i++
	}
	return i
}

// array returns the text of an input's data, which may be a longArray, and its offset in
// the original document.
func (d *document) array() (text []byte, offset int64, err error) {
	v, err := d.value()
	if err != nil {
		return nil, 0, err
	}
	at := d.json.InputOffset() - int64(len(v))
	if len(d.longArrays) > 0 && d.longArrays[0].at == int(at) {
		c := d.longArrays[0]
		d.longArrays = d.longArrays[1:]
		return c.text, c.offset, nil
	}
	return v, at, nil
}
