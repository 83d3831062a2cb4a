// Package infer is the vocabulary of one inference: the request, the response,
// when each step of it happened, and the ways it can fail. Every package on the
// serving path speaks it.
package infer

import (
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
	Classes []uint64 // for each of Outputs, how many classes are asked for in its place; 0 means none, and nil none of any

	// Memory is what Inputs are views of. The maker keeps its own count and
	// releases it when the call has returned; others who read the inputs take
	// counts of their own. Nil means that Inputs are left to the garbage collector.
	Memory *buf.Buf

	// Client tells those apart who send requests: it is equal for requests that
	// came over one connection. 0 means that nobody knows.
	Client uint64

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

	Memory *buf.Buf // what Outputs are views of, with one count, the receiver's
	Times  Timeline

	Shapes []int64 // memory for the shapes of Outputs, kept for the next use
}

// Release gives the outputs' memory back. The response may be used again
// after.
func (r *Response) Release() {
	r.Memory.Release()
	r.Memory = nil
	r.Outputs = r.Outputs[:0]
}

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
func (r *Request) IDOrUnknown() string {
	if r.ID == "" {
		return "<id_unknown>"
	}
	return r.ID
}
