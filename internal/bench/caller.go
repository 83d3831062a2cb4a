package bench

import (
	"context"

	"github.com/shoal-serving/shoal/tensor"
)

// A Caller sends requests to one model of a server, over one protocol.
type Caller interface {
	// Model returns the model's metadata, which it requests from the server.
	Model(ctx context.Context) (Model, error)
	// Prepare encodes requests. It must be called once, before the first Infer; requests
	// may be modified afterwards.
	Prepare(requests []Request) error
	// Infer sends one of the prepared requests, and reads and discards the answer. It may
	// be called concurrently.
	Infer(ctx context.Context, request int) error
	// Statistics returns the server's statistics of the model so far.
	Statistics(ctx context.Context) (Statistics, error)
	// Close closes the connections.
	Close() error
}

// A Request is a request to a model.
type Request struct {
	Inputs   []tensor.Tensor
	Priority uint64 // 0 means the default
}
