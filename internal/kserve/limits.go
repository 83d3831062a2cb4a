package kserve

import (
	"cmp"
	"math"

	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/tensor"
)

// Limits bound what a client can choose. They are looked at before memory is
// taken for what they bound. A field that is zero stands for its default, which
// [Limits.WithDefaults] sets.
type Limits struct {
	// Body is the most bytes of a request as it is sent: of an HTTP body or a
	// gRPC message.
	Body int64

	// Decoded is the most bytes of a body or message once it is decompressed, and
	// the most that those tensors of a request take in memory that were not sent
	// as they are kept: as JSON, or as typed contents over gRPC.
	Decoded int64

	// Ratio is how many times its size a compressed HTTP body may grow. Up to
	// 1 MiB it may grow further: an empty picture does, and costs nothing. gRPC
	// has Decoded alone.
	Ratio int64

	// Header is the most bytes of a request's header. The face over HTTP does not
	// see it; whoever makes the http.Server sets it there.
	Header int

	// Depth is how deep arrays and objects of a JSON document are nested.
	Depth int

	// Inputs and Outputs are the most tensors of a request and the most outputs it
	// names; Dims is the most dimensions of a tensor, with that of the batch.
	Inputs, Outputs, Dims int

	// Parameters are the most of a request, together with those of its tensors.
	// A gRPC message of another kind has no more fields than these.
	Parameters int

	// String is the most bytes of one element of a BYTES tensor.
	String int64

	// Text is the most bytes of a name, an id or any other text of a request that
	// is not part of a tensor.
	Text int
}

// WithDefaults returns the limits with the defaults in place of zeros.
func (l Limits) WithDefaults() Limits {
	return Limits{
		Body:       min(cmp.Or(l.Body, 64<<20), mostBytes),
		Decoded:    min(cmp.Or(l.Decoded, 64<<20), mostBytes),
		Ratio:      cmp.Or(l.Ratio, 100),
		Header:     cmp.Or(l.Header, 32<<10),
		Depth:      cmp.Or(l.Depth, 64),
		Inputs:     cmp.Or(l.Inputs, 256),
		Outputs:    cmp.Or(l.Outputs, 256),
		Dims:       cmp.Or(l.Dims, 8),
		Parameters: cmp.Or(l.Parameters, 4096),
		String:     min(cmp.Or(l.String, 16<<20), math.MaxUint32), // the length before an element has four bytes
		Text:       cmp.Or(l.Text, 64<<10),
	}
}

// mostBytes stands for no limit, and leaves room for one byte beyond it.
const mostBytes = math.MaxInt64 - 1

// ratioFrom is the size up to which a compressed body may grow by any ratio.
const ratioFrom = 1 << 20

// CheckBody returns an error unless a body may have so many bytes. So do the
// others that follow, each for what it is named after.
func (l *Limits) CheckBody(bytes int64) error { return within("body bytes", bytes, l.Body) }

// CheckDecoded is about bytes of decompressed bodies, and of tensors in memory.
func (l *Limits) CheckDecoded(bytes int64) error { return within("decoded bytes", bytes, l.Decoded) }

// CheckRatio is about a compressed body: so many bytes have become of those sent.
func (l *Limits) CheckRatio(bytes, sent int64) error {
	if bytes <= ratioFrom || sent > math.MaxInt64/l.Ratio {
		return nil
	}
	if bytes > sent*l.Ratio {
		return within("compression ratio", (bytes-1)/max(1, sent)+1, l.Ratio)
	}
	return nil
}

// CheckDepth is about the JSON document.
func (l *Limits) CheckDepth(n int) error { return within("JSON depth", int64(n), int64(l.Depth)) }

// CheckInputs is about how many there are.
func (l *Limits) CheckInputs(n int) error { return within("inputs", int64(n), int64(l.Inputs)) }

// CheckOutputs is about how many are named.
func (l *Limits) CheckOutputs(n int) error { return within("outputs", int64(n), int64(l.Outputs)) }

// CheckDims is about how many a tensor has.
func (l *Limits) CheckDims(n int) error { return within("dimensions", int64(n), int64(l.Dims)) }

// CheckParameters is about how many there are in a whole request.
func (l *Limits) CheckParameters(n int) error {
	return within("parameters", int64(n), int64(l.Parameters))
}

// CheckString is about the bytes of one element.
func (l *Limits) CheckString(bytes int64) error {
	return within("bytes of a string", bytes, l.String)
}

// CheckStrings is about each element of a BYTES tensor. Data that ends in the
// middle of one is for others to find.
func (l *Limits) CheckStrings(t *tensor.Tensor) error {
	if t.Type != tensor.Bytes || int64(len(t.Data)) <= l.String {
		return nil // most need not be walked through
	}
	for s := range t.Strings() {
		if err := l.CheckString(int64(len(s))); err != nil {
			return err
		}
	}
	return nil
}

// CheckText is about the bytes of a name, an id or the like.
func (l *Limits) CheckText(bytes int) error {
	return within("bytes of a text", int64(bytes), int64(l.Text))
}

// within says "at least" because nothing is counted beyond a limit.
func within(limit string, found, allowed int64) error {
	if found <= allowed {
		return nil
	}
	return infer.Errorf(infer.Invalid, "limit of %s exceeded: found at least %d, allowed are %d", limit, found, allowed)
}
