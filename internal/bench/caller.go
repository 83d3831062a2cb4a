package bench

import (
	"context"

	"github.com/shoal-serving/shoal/tensor"
)

// A Caller speaks to one model of a server, in one protocol.
type Caller interface {
	// Model asks what the model takes.
	Model(ctx context.Context) (Model, error)
	// Prepare makes a request of inputs, once and before the first Infer. The
	// caller keeps what it needs of them.
	Prepare(inputs []tensor.Tensor) error
	// Infer sends the request and waits for the answer, which it reads and drops.
	// It may be called concurrently.
	Infer(ctx context.Context) error
	// Statistics asks what the server has counted of the model so far.
	Statistics(ctx context.Context) (Statistics, error)
	// Close ends the connections.
	Close() error
}
