package enginetest

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/shoal-serving/shoal/internal/buf"
	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/tensor"
)

// Echo is an engine that computes nothing: outputs are its inputs. The zero Echo
// answers at once. It is also its own model, so that Echo.Instance can be used
// without loading anything.
type Echo struct {
	Takes func(rows int) time.Duration   // how long a batch runs; nil means no time
	Fails func(in []tensor.Tensor) error // what a batch fails with; nil means never
	NoOp  bool                           // neither copy nor remember, to measure the scheduler alone

	mu   sync.Mutex // guards the following
	rows []int
}

var (
	_ engine.Engine = (*Echo)(nil)
	_ engine.Model  = (*Echo)(nil)
)

// Load implements [engine.Engine].
func (e *Echo) Load(ctx context.Context, _ engine.Source) (engine.Model, error) { return e, ctx.Err() }

// Instance implements [engine.Model].
func (e *Echo) Instance(context.Context) (engine.Instance, error) { return &echo{e}, nil }

// Close implements [engine.Model].
func (e *Echo) Close() error { return nil }

// Batches returns the rows of each batch run so far, in the order in which they
// began.
func (e *Echo) Batches() []int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.rows)
}

type echo struct{ e *Echo }

func (i *echo) Run(ctx context.Context, in []tensor.Tensor, out *engine.Outputs) error {
	if i.e.NoOp {
		out.Tensors = append(out.Tensors[:0], in...)
		return nil
	}
	i.remember(in[0].Rows())
	if err := i.compute(ctx, in); err != nil {
		return err
	}
	size := 0
	for _, t := range in {
		size += len(t.Data)
	}
	out.Memory = buf.Get(size)
	out.Tensors = out.Tensors[:0]
	rest := out.Memory.B
	for _, t := range in {
		n := copy(rest, t.Data)
		t.Data, rest = rest[:n:n], rest[n:]
		out.Tensors = append(out.Tensors, t)
	}
	return nil
}

func (i *echo) remember(rows int) {
	i.e.mu.Lock()
	defer i.e.mu.Unlock()
	i.e.rows = append(i.e.rows, rows)
}

func (i *echo) compute(ctx context.Context, in []tensor.Tensor) error {
	if i.e.Takes != nil {
		timer := time.NewTimer(i.e.Takes(in[0].Rows()))
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if i.e.Fails != nil {
		return i.e.Fails(in)
	}
	return nil
}

func (i *echo) Close() error { return nil }
