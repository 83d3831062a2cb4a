package bench

import (
	"context"

	"github.com/shoal-serving/shoal/tensor"
)

// A Caller speaks to one model of a server, in one protocol.
type Caller interface {
	// Model asks what the model takes.
	Model(ctx context.Context) (Model, error)
	// Prepare encodes requests, once and before the first Infer. The caller keeps
	// what it needs of them.
	Prepare(requests []Request) error
	// Infer sends one of the prepared requests and waits for the answer, which it
	// reads and drops. It may be called concurrently.
	Infer(ctx context.Context, request int) error
	// Statistics asks what the server has counted of the model so far.
	Statistics(ctx context.Context) (Statistics, error)
	// Close ends the connections.
	Close() error
}

// A Request is what is sent to a model.
type Request struct {
	Inputs   []tensor.Tensor
	Priority uint64 // 0 means that it names none
}
