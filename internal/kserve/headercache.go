package kserve

import (
	"hash/maphash"
	"slices"
	"sync/atomic"

	"github.com/shoal-serving/shoal/internal/buf"
	"github.com/shoal-serving/shoal/tensor"
)

// A cachedHeader is the decoded JSON part of a request whose tensors are binary. Clients
// send the same header repeatedly, with different data after it, and comparing it takes a
// fraction of the time of decoding it.
type cachedHeader struct {
	text   string
	limits Limits // under which it was decoded
	req    Request
	sizes  []int // of the data of each input
	size   int   // sum of sizes
}

const (
	// headerSlots is the size of the cache. A header's hash selects its slot.
	headerSlots = 64
	// maxCachedHeader is the length of the longest header that is cached.
	maxCachedHeader = 4 << 10
)

var (
	headerSeed  = maphash.MakeSeed()
	headerCache [headerSlots]atomic.Pointer[cachedHeader]
)

func headerSlot(text []byte) *atomic.Pointer[cachedHeader] {
	return &headerCache[maphash.Bytes(headerSeed, text)%headerSlots]
}

// lookupHeader returns the request for a body whose JSON part is cached, as
// [DecodeRequest] does, or nil.
func (o *DecodeOptions) lookupHeader(body *buf.Buf, length int) *Request {
	text, rest := body.B[:length], body.B[length:]
	h := headerSlot(text).Load()
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

// storeHeader caches the JSON part of a request. It omits headers with an id or a
// sequence, which are not repeated, those with BYTES inputs, whose elements must be
// checked each time, and those with tensors in shared memory, which have no data yet.
func (o *DecodeOptions) storeHeader(text []byte, req *Request) {
	if len(text) > maxCachedHeader || !req.Shared.Empty() || req.ID != "" || req.Correlation != 0 || req.CorrelationName != "" {
		return
	}
	h := &cachedHeader{text: string(text), limits: o.Limits, req: *req}
	h.req.Inputs, h.req.Memory = slices.Clone(req.Inputs), nil
	for i := range h.req.Inputs {
		in := &h.req.Inputs[i]
		if in.Type == tensor.Bytes {
			return
		}
		h.sizes, h.size = append(h.sizes, len(in.Data)), h.size+len(in.Data)
		in.Data = nil
	}
	headerSlot(text).Store(h)
}
