package kserve

import (
	"context"
	"sync"

	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/machine"
)

// A CoreLimit lets at most half of the cores, and at least one, work on large messages: more at once
// would take the cores from small requests, and each other's memory until all are refused. What has
// acquired it only computes until it releases it, so that the others do not wait for long.
type CoreLimit chan struct{} // has an element for each core at work

// NewCoreLimit returns a limit for the cores of this machine.
func NewCoreLimit() CoreLimit {
	return make(CoreLimit, max(1, machine.Cores(machine.Root())/2))
}

// Acquire waits for a core. If ctx ends before there is one, the error is that of a request whose
// client has left or whose deadline has passed.
func (l CoreLimit) Acquire(ctx context.Context) error {
	select {
	case l <- struct{}{}:
		return nil
	default:
	}
	select {
	case l <- struct{}{}:
		return nil
	case <-ctx.Done():
		return infer.Errorf(infer.CodeOf(ctx.Err()), "the request waited for a core: %w", ctx.Err())
	}
}

// Release gives it back.
func (l CoreLimit) Release() { <-l }

// From these sizes of JSON on decoding and encoding are limited: they take some tens of milliseconds of
// a core then.
const (
	largeDocument   = 4 << 20
	encodedDocument = 4 * largeDocument // as it is predicted; most are a quarter of that
)

// documentLimit is that of all servers of the process.
var documentLimit = sync.OnceValue(NewCoreLimit)

// limitDocument waits for a core if a document has more than large bytes. If the error is nil, the
// caller calls release when it has decoded or encoded the document.
func limitDocument(ctx context.Context, size, large int64) (release func(), err error) {
	if size <= large {
		return func() {}, nil
	}
	limit := documentLimit()
	if err := limit.Acquire(ctx); err != nil {
		return nil, err
	}
	return limit.Release, nil
}
