package kserve

import (
	"bytes"
	"sync"
)

// Arrays of numbers are most of a document, and are read by a scanner that is as
// strict as the JSON library. So that they need not be read twice, they are cut out
// of the document before the library sees it, and it finds empty arrays instead.
type cut struct {
	at     int    // where the empty array begins, in the document that is left
	text   []byte // the array
	offset int64  // where it begins in the document as it was sent
}

const (
	// Shorter arrays are not worth the trouble.
	minCut = 512

	standIn = "[]"
)

// remains are memory for what is left of a document.
var remains = sync.Pool{New: func() any { return new([]byte) }}

// cutArrays appends to short what is left of text without its long arrays that are
// called data and hold neither arrays nor strings. It returns no cuts if there are
// none.
func cutArrays(short, text []byte) ([]byte, []cut) {
	var cuts []cut
	done := 0 // how much of text is in short, or cut
	end := -1 // where a bracket closes; looked for only when it is passed, since many may open before it
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
		if len(array) < minCut {
			continue
		}
		if bytes.IndexByte(array[1:], '[') >= 0 || bytes.IndexByte(array, '"') >= 0 {
			continue
		}
		short = append(short, text[done:begin]...)
		cuts = append(cuts, cut{len(short), array, int64(begin)})
		short = append(short, standIn...)
		at, done = end+1, end+1
	}
	if cuts != nil {
		short = append(short, text[done:]...)
	}
	return short, cuts
}

// arrayAfter returns where the array begins that is the value of the name which
// ends at i; -1 if there is none.
func arrayAfter(text []byte, i int) int {
	i = blanks(text, i)
	if i == len(text) || text[i] != ':' {
		return -1
	}
	i = blanks(text, i+1)
	if i == len(text) || text[i] != '[' {
		return -1
	}
	return i
}

func blanks(text []byte, i int) int {
	for i < len(text) && (text[i] == ' ' || text[i] == '\t' || text[i] == '\n' || text[i] == '\r') {
		i++
	}
	return i
}

// array returns the text of an input's data, which may have been cut out, and where
// it begins in the document.
func (d *document) array() (text []byte, offset int64, err error) {
	v, err := d.value()
	if err != nil {
		return nil, 0, err
	}
	at := d.json.InputOffset() - int64(len(v))
	if len(d.cuts) > 0 && d.cuts[0].at == int(at) {
		c := d.cuts[0]
		d.cuts = d.cuts[1:]
		return c.text, c.offset, nil
	}
	return v, at, nil
}
