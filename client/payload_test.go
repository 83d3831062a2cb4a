package client

import (
	"errors"
	"testing"
	"testing/iotest"
)

func TestAPayloadIsAReader(t *testing.T) {
	p := &payload{parts: [][]byte{[]byte("first"), nil, []byte(" and second"), {}}}
	if err := iotest.TestReader(&payloadReader{payload: p, rest: p.parts}, []byte("first and second")); err != nil {
		t.Error(err)
	}
	r := &payloadReader{payload: p, rest: p.parts}
	p.release()
	if n, err := r.Read(make([]byte, 10)); n != 0 || !errors.Is(err, errReleased) {
		t.Errorf("a released payload: %d bytes, %v", n, err)
	}
}
