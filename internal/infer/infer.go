// Package infer defines the types of an inference that all packages on the serving path
// share: the request, the response, the times of its steps, and errors.
package infer

import (
	"cmp"
	"context"
	"time"

	"github.com/shoal-serving/shoal/internal/access"
	"github.com/shoal-serving/shoal/internal/buf"
	"github.com/shoal-serving/shoal/internal/trace"
	"github.com/shoal-serving/shoal/tensor"
)

// A Waiter learns that a request waits for its model to be loaded, so that requests for other
// models need not wait for its answer.
type Waiter interface {
	// AwaitsModel is called on the goroutine of the request, before it waits.
	AwaitsModel()
}

// A Request is a request to run a model once. The caller that submits it must not modify it
// afterwards, not even when the call has returned: a call returns at its deadline while the
// batch that holds the request may still run.
type Request struct {
	ID      string
	Model   string
	Version string // "" means the version that the model's policy selects

	// Inputs are in any order; the check against the model's configuration sorts them. A
	// single input without name, type and shape is raw data; the check sets all three.
	Inputs  []tensor.Tensor
	Outputs []string // names of the requested outputs; empty means all

	// Convert, if not nil, converts the outputs of a response to what the client asked
	// for. The server calls it for each response, before it selects the outputs named by
	// Outputs. batched reports whether the first dimension of outputs is that of rows;
	// labels are class names by output. If Convert fails, it has released resp.
	Convert func(resp *Response, batched bool, labels map[string][]string) error

	// Caller is the client that the request is made for. The server sets it if it authenticates its
	// clients; nil means unknown.
	Caller *access.Caller

	// Pinned, if not nil, is the server's choice of versions for all steps of one request to an
	// ensemble; only the server uses it. Nil means the versions that serve when the request arrives.
	Pinned any

	// Tenant and Weight are the caller's share of a queue; see batching.Item. The server sets
	// them.
	Tenant, Weight int

	// Memory holds the data of Inputs. The caller keeps its reference and releases it
	// when the call has returned; the server takes its own reference while it reads the
	// inputs. Nil means that the garbage collector owns the data.
	Memory *buf.Buf

	// Client identifies the client: it is equal for requests from one connection. 0 means
	// unknown.
	Client uint64

	Parameters      []Parameter // custom parameters, passed to the model
	Correlation     uint64      // ID of the request's sequence, if that is a number; 0 means none
	CorrelationName string      // ID of the request's sequence, if that is a string; "" means none
	Flags           uint32      // SequenceStart and SequenceEnd

	// Trace, if not nil, means that the request is traced.
	Trace *trace.Request

	// Waiter, if not nil, is called when the request waits for its model to be loaded.
	Waiter Waiter

	// Queued, if not nil, is called once the request has its place in the order of requests. It may
	// not be called if the request fails before. It must not wait: a lock may be held.
	Queued func()

	// Deadline is that of the context with which the request was submitted; zero means none. The
	// scheduler sets it, for models that make requests of their own.
	Deadline time.Time

	// AcceptStream means that the caller accepts any number of responses; see
	// [Response.Stream]. A decoupled model rejects other requests with ErrDecoupled.
	AcceptStream bool

	Priority uint64        // 1 is the highest; 0 means the model's default
	Timeout  time.Duration // requested limit of the time in the queue or to the response, depending on the model; 0 means none

	// Rows is the number of rows of the request, Shape is equal for requests that may share a
	// batch, PadGroup is equal for those that may share one if they are padded, and 0 if the
	// request cannot be padded, and Elements is the number of elements of a row in inputs with
	// variable dimensions; 0 if there are none. The check against the model's configuration
	// sets them.
	Rows     int
	Shape    uint64
	PadGroup uint64
	Elements int64
}

// A Response holds the outputs of one request. The receiver owns it, and must call Release
// when it has sent the outputs.
type Response struct {
	Model   string
	Version string
	Outputs []tensor.Tensor

	Parameters []Parameter // set by the model

	// Stream, if not nil, is the stream of responses of a decoupled model, and this response
	// has no outputs. Only responses to requests with AcceptStream have it. The receiver
	// must close it.
	Stream ResponseStream

	// For responses from a stream. Last means that no other response follows; Empty means
	// that this one has no outputs, and only marks the end.
	Last, Empty bool

	Memory *buf.Buf // holds the data of Outputs; the receiver has one reference
	Times  Timeline

	Shapes []int64 // backing array of the shapes of Outputs, reused
}

// Release releases the memory of the outputs. The response may be reused afterwards.
func (r *Response) Release() {
	r.Memory.Release()
	r.Memory = nil
	r.Outputs, r.Parameters = r.Outputs[:0], nil
}

// DataSize returns how many bytes the data of tensors has.
func DataSize(tensors []tensor.Tensor) int64 {
	n := 0
	for i := range tensors {
		n += len(tensors[i].Data)
	}
	return int64(n)
}

// A ResponseStream is the stream of responses to one request. Its methods must not be called
// concurrently.
type ResponseStream interface {
	// Next waits for the next response and fills in resp, which the caller must release if
	// the error is nil. An error is one that the model sent in place of outputs, or the
	// reason why the stream ended, such as the end of ctx. resp.Last is set in either
	// case; when it is true, Next must not be called again.
	Next(ctx context.Context, resp *Response) error
	// Close notifies the model that the caller does not wait for more responses.
	Close()
}

// A Parameter is a named value of a request or a response: a bool, an int64, a uint64, a
// float64 or a string.
type Parameter struct {
	Name  string
	Value any
}

// Flags of a request. The first two have Triton's values; clients cannot set others.
const (
	SequenceStart = 1
	SequenceEnd   = 2

	// Envelope means that the input is not plain data but an envelope, in which package
	// mms encodes a request with headers and parts, and that the output must be one, too.
	Envelope = 1 << 31
)

// A Timeline records when the steps of one request happened. Statistics and traces are
// computed from it when the request has been answered.
type Timeline struct {
	Queued      time.Time // the scheduler queued the request
	Taken       time.Time // an instance took it in a batch
	RunStarted  time.Time // the batch was joined and the engine called, the first time if it was retried
	RunEnded    time.Time // the engine returned
	Split       time.Time // the outputs were split
	Batch       int       // rows of the batch
	CloseReason string    // why the batch closed

	BatchSpan *trace.Context // of the span of the batch; nil unless a request of it is traced
}

// IDOrUnknown returns the request's ID as error messages quote it.
func (r *Request) IDOrUnknown() string { return cmp.Or(r.ID, "<id_unknown>") }

// A ModelVersion names a version of a model. Version "" means the default one.
type ModelVersion struct{ Model, Version string }
