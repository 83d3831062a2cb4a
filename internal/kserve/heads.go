package kserve

import (
	"hash/maphash"
	"slices"
	"sync/atomic"

	"github.com/shoal-serving/shoal/internal/buf"
	"github.com/shoal-serving/shoal/tensor"
)

// A head is the JSON part of a request whose tensors are binary, as it was read before.
// Clients send the same one over and over, with other data behind it, and to compare
// it takes a fraction of the time that reading it does.
type head struct {
	text   string
	limits Limits // that it was found to keep
	req    Request
	sizes  []int // of the data of each input
	size   int   // of all
}

const (
	// Heads are kept where their hash leads, one for each place.
	headPlaces = 64
	// Longer ones are not kept.
	maxHead = 4 << 10
)

var (
	headSeed = maphash.MakeSeed()
	heads    [headPlaces]atomic.Pointer[head]
)

func placeOf(text []byte) *atomic.Pointer[head] {
	return &heads[maphash.Bytes(headSeed, text)%headPlaces]
}

// recall returns the request of a body whose JSON was read before, like
// [DecodeRequest], or nil.
func (o *DecodeOptions) recall(body *buf.Buf, length int) *Request {
	text, rest := body.B[:length], body.B[length:]
	h := placeOf(text).Load()
	if h == nil || h.text != string(text) || h.limits != o.Limits || h.size != len(rest) {
		return nil
	}
	req := h.req
	req.Model, req.Version = o.Model, o.Version
	req.Inputs = slices.Clone(req.Inputs)
	for i, n := range h.sizes {
		req.Inputs[i].Data, rest = rest[:n:n], rest[n:]
	}
	body.Retain()
	req.Memory = body
	return &req
}

// remember keeps the JSON part of a request. One that names the request or a sequence
// does not come again, and strings are looked at each time.
func (o *DecodeOptions) remember(text []byte, req *Request) {
	if len(text) > maxHead || req.ID != "" || req.Correlation != 0 || req.CorrelationName != "" {
		return
	}
	h := &head{text: string(text), limits: o.Limits, req: *req}
	h.req.Inputs, h.req.Memory = slices.Clone(req.Inputs), nil
	for i := range h.req.Inputs {
		in := &h.req.Inputs[i]
		if in.Type == tensor.Bytes {
			return
		}
		h.sizes, h.size = append(h.sizes, len(in.Data)), h.size+len(in.Data)
		in.Data = nil
	}
	placeOf(text).Store(h)
}
