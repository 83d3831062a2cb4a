package kserve

import (
	"cmp"
	"math"
	"time"

	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/tensor"
)

// Limits bound everything that a client can choose. They are checked before memory is
// allocated. A zero field means the default, which [Limits.WithDefaults] sets.
type Limits struct {
	// Body is the maximum size of a request on the wire, in bytes: of an HTTP body or a gRPC
	// message.
	Body int64

	// Decoded is the maximum size of a decompressed body or message, in bytes. It also limits
	// the memory for tensors that are sent in another format than they are stored in: as JSON,
	// or as typed contents over gRPC.
	Decoded int64

	// Ratio is the maximum compression ratio of an HTTP body. It does not apply to bodies that
	// decompress to at most 1 MiB: a blank image exceeds it, and is harmless. Over gRPC the
	// default applies.
	Ratio int64

	// Header is the maximum size of a request's HTTP header in bytes. It is not enforced here:
	// the http.Server must be configured with it.
	Header int

	// Depth is the maximum nesting depth of a JSON document.
	Depth int

	// Inputs and Outputs are the maximum numbers of inputs of a request and of outputs that it
	// names. Dims is the maximum number of dimensions of a tensor, including the batch
	// dimension.
	Inputs, Outputs, Dims int

	// Parameters is the maximum number of parameters of a request and all its tensors. It also
	// limits the number of fields of other gRPC messages.
	Parameters int

	// String is the maximum size of one element of a BYTES tensor, in bytes.
	String int64

	// Text is the maximum size of a name, an id or any other text of a request that is not
	// part of a tensor, in bytes.
	Text int
}

// WithDefaults returns the limits with zero fields set to their defaults.
func (l Limits) WithDefaults() Limits {
	return Limits{
		Body:       min(cmp.Or(l.Body, 64<<20), noLimit),
		Decoded:    min(cmp.Or(l.Decoded, 64<<20), noLimit),
		Ratio:      cmp.Or(l.Ratio, 100),
		Header:     cmp.Or(l.Header, 32<<10),
		Depth:      cmp.Or(l.Depth, 64),
		Inputs:     cmp.Or(l.Inputs, 256),
		Outputs:    cmp.Or(l.Outputs, 256),
		Dims:       cmp.Or(l.Dims, 8),
		Parameters: cmp.Or(l.Parameters, 4096),
		String:     min(cmp.Or(l.String, 16<<20), math.MaxUint32), // the length prefix of an element has four bytes
		Text:       cmp.Or(l.Text, 64<<10),
	}
}

// ErrOverBudget rejects a request for which there is no memory in the budget.
var ErrOverBudget = &infer.Error{
	Code: infer.Overloaded, RetryAfter: time.Second,
	Text: "the requests in flight use all memory that the server has for them; retry later, or raise --memory-budget",
}

// ResponseOverBudget returns the error for a request that has run, if there is no memory in the
// budget for its response. A client that retried a request of a sequence would change the state
// of the sequence twice, so the error for one is not retryable.
func ResponseOverBudget(req *infer.Request) error {
	if req.Correlation == 0 && req.CorrelationName == "" {
		return ErrOverBudget
	}
	return infer.Errorf(infer.Internal, "the model has run, but the server has no memory for its response; start the sequence again, or raise --memory-budget")
}

// noLimit is the largest limit. It leaves room for the one byte that exceeds it.
const noLimit = math.MaxInt64 - 1

// minRatioSize is the size up to which the ratio of a compressed body is not limited.
const minRatioSize = 1 << 20

// CheckBody returns an error if a body of the given size exceeds the limit. The other
// Check methods do the same for their limits.
func (l *Limits) CheckBody(bytes int64) error { return checkLimit("body bytes", bytes, l.Body) }

// CheckDecoded checks the size of a decompressed body, or of tensors in memory.
func (l *Limits) CheckDecoded(bytes int64) error {
	return checkLimit("decoded bytes", bytes, l.Decoded)
}

// CheckRatio checks a compressed body, of which sent bytes expanded to bytes.
func (l *Limits) CheckRatio(bytes, sent int64) error {
	if bytes <= minRatioSize || sent > math.MaxInt64/l.Ratio {
		return nil
	}
	if bytes > sent*l.Ratio {
		return checkLimit("compression ratio", (bytes-1)/max(1, sent)+1, l.Ratio)
	}
	return nil
}

// checkDepth checks the nesting depth of a JSON document.
func (l *Limits) checkDepth(n int) error { return checkLimit("JSON depth", int64(n), int64(l.Depth)) }

// CheckInputs checks the number of inputs.
func (l *Limits) CheckInputs(n int) error { return checkLimit("inputs", int64(n), int64(l.Inputs)) }

// CheckOutputs checks the number of requested outputs.
func (l *Limits) CheckOutputs(n int) error { return checkLimit("outputs", int64(n), int64(l.Outputs)) }

// CheckDims checks the number of dimensions of a tensor.
func (l *Limits) CheckDims(n int) error { return checkLimit("dimensions", int64(n), int64(l.Dims)) }

// CheckParameters checks the number of parameters of a request and its tensors.
func (l *Limits) CheckParameters(n int) error {
	return checkLimit("parameters", int64(n), int64(l.Parameters))
}

// CheckString checks the size of one element.
func (l *Limits) CheckString(bytes int64) error {
	return checkLimit("bytes of a string", bytes, l.String)
}

// CheckStrings checks the size of each element of a BYTES tensor. It ignores truncated
// data, which is rejected elsewhere.
func (l *Limits) CheckStrings(t *tensor.Tensor) error {
	if t.Type != tensor.Bytes || int64(len(t.Data)) <= l.String {
		return nil // no element can be longer than the whole
	}
	for s := range t.Strings() {
		if err := l.CheckString(int64(len(s))); err != nil {
			return err
		}
	}
	return nil
}

// CheckText checks the size of a name, an id or another text.
func (l *Limits) CheckText(bytes int) error {
	return checkLimit("bytes of a text", int64(bytes), int64(l.Text))
}

// checkLimit says "at least" because nothing is counted beyond a limit.
func checkLimit(limit string, found, allowed int64) error {
	if found <= allowed {
		return nil
	}
	return infer.Errorf(infer.Invalid, "limit of %s exceeded: found at least %d, allowed are %d", limit, found, allowed)
}
