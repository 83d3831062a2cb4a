// Package infer is the vocabulary of one inference: the request, the response,
// when each step of it happened, and the ways it can fail. Every package on the
// serving path speaks it.
package infer

import (
	"cmp"
	"context"
	"time"

	"github.com/shoal-serving/shoal/internal/buf"
	"github.com/shoal-serving/shoal/tensor"
)

// A Request asks one model to run once. Whoever makes it fills it in, and
// changes nothing after handing it over, not even when the call has returned: a
// caller is answered at its deadline although the batch that holds its request
// may still run.
type Request struct {
	ID      string
	Model   string
	Version string // "" means the version that the model's policy serves

	// Inputs are in any order until the request has been checked. A single one
	// without name, type and shape is data alone; the check gives it the three.
	Inputs  []tensor.Tensor
	Outputs []string // names of the outputs asked for; empty means all

	// Convert, if not nil, changes the outputs of a response to what the client asked
	// for. The server calls it for each response, before it chooses the outputs that
	// Outputs name. batched reports whether the first dimension of outputs counts rows;
	// labels are the names of classes by output. If it fails, it has released resp.
	Convert func(resp *Response, batched bool, labels map[string][]string) error

	// Memory is what Inputs are views of. The maker keeps its own count and
	// releases it when the call has returned; others who read the inputs take
	// counts of their own. Nil means that Inputs are left to the garbage collector.
	Memory *buf.Buf

	// Client tells those apart who send requests: it is equal for requests that
	// came over one connection. 0 means that nobody knows.
	Client uint64

	Parameters      []Parameter // the client's own, for models that look at them
	Correlation     uint64      // the sequence that the request belongs to; 0 means none
	CorrelationName string      // the same of a sequence that has a name and not a number; "" means none
	Flags           uint32      // SequenceStart and SequenceEnd

	// Many says that the maker takes any number of responses; see [Response]. A model
	// that answers so refuses others, with ErrMany.
	Many bool

	Priority uint64        // 1 is the highest; 0 means the model's default
	Timeout  time.Duration // longest time that the client asks for, in the queue or to the answer, as the model says; 0 means none

	// Rows is how many rows of a batch the request fills, and Shape is equal for
	// requests that may share a batch. Both are set by the check against the
	// model's configuration, not by the client.
	Rows  int
	Shape uint64
}

// A Response carries one request's outputs. Whoever receives it owns it, and
// calls Release when the outputs have been sent.
type Response struct {
	Model   string
	Version string
	Outputs []tensor.Tensor

	Parameters []Parameter // that the model adds

	// More, if not nil, is where the responses come from, and this one has no outputs:
	// the model answers as often as it likes. Only requests with Many have it, and who
	// has it closes it.
	More More

	// Last and Bare are for responses that come from More: no other follows; it says
	// only that.
	Last, Bare bool

	Memory *buf.Buf // what Outputs are views of, with one count, the receiver's
	Times  Timeline

	Shapes []int64 // memory for the shapes of Outputs, kept for the next use
}

// Release gives the outputs' memory back. The response may be used again
// after.
func (r *Response) Release() {
	r.Memory.Release()
	r.Memory = nil
	r.Outputs, r.Parameters = r.Outputs[:0], nil
}

// A More gives the responses to one request, one after the other. Its methods are
// for one goroutine at a time.
type More interface {
	// Next waits for the next response, or for the end of ctx, and fills in resp, which
	// the caller releases if the error is nil. An error is what the model says in place
	// of outputs, or why there are no more. Last is set in either case, and after it
	// Next is not called again.
	Next(ctx context.Context, resp *Response) error
	// Close lets the model know that nobody waits any more.
	Close()
}

// A Parameter is a name and a value of a request or a response: a bool, an int64, a
// uint64, a float64 or a string.
type Parameter struct {
	Name  string
	Value any
}

// Flags of a request. The first two have Triton's numbers; protocols let clients set no
// others.
const (
	SequenceStart = 1
	SequenceEnd   = 2

	// Envelope says that the input is no plain text but what package mms makes of a
	// request with headers and parts, and that the output is to be the like.
	Envelope = 1 << 31
)

// A Timeline says when the steps of one request happened. Statistics and
// traces are made from it in one place, when the request has been answered.
type Timeline struct {
	Queued time.Time // the scheduler had it
	Taken  time.Time // an instance took it into a batch
	Run    time.Time // its batch was joined and the engine was called, for the first time if it was called again for parts
	Ran    time.Time // the engine returned
	Split  time.Time // its rows were cut out of the outputs
	Batch  int       // rows of the batch that it ran in
	Why    string    // why that batch closed
}

// IDOrUnknown returns the request's id as error texts quote it.
func (r *Request) IDOrUnknown() string { return cmp.Or(r.ID, "<id_unknown>") }
