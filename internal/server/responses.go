package server

import (
	"context"
	"sync"
	"time"

	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/sched"
)

// responses are those of a model that answers as often as it likes, as the client
// asked for them. The request is inside until they are closed.
type responses struct {
	server  *Server
	inside  inside
	from    infer.More
	version string
	times   infer.Timeline // until the model began
	failed  error          // why there are no more
	ended   bool           // there are no more
	once    sync.Once      // Close
}

// Next implements [infer.More].
func (r *responses) Next(ctx context.Context, resp *infer.Response) error {
	err := r.from.Next(ctx, resp)
	resp.Model, resp.Version, resp.Times = r.inside.req.Model, r.version, r.times
	r.ended = resp.Last
	if err != nil && ctx.Err() != nil {
		err = sched.Left(ctx)
	}
	if err != nil && resp.Last {
		r.failed = err
	}
	if err != nil || resp.Bare {
		return err
	}
	if err := finish(r.inside.version, r.inside.req, resp); err != nil {
		resp.Release()
		return err
	}
	return nil
}

// Close implements [infer.More]. A client that leaves before the last response has
// failed.
func (r *responses) Close() {
	r.once.Do(func() {
		r.from.Close()
		if !r.ended {
			r.failed = sched.Left(context.Background())
		}
		now := time.Now()
		r.times.Ran, r.times.Split = now, now
		resp := infer.Response{Model: r.inside.req.Model, Version: r.version, Times: r.times}
		_ = r.server.end(context.Background(), &r.inside, &resp, r.failed)
	})
}

// one moves the first response to resp of those that a model sends which has one for
// each request. As in Triton, others are dropped. In Triton a model that only says that
// there is none leaves its client waiting; here that is an error.
func one(ctx context.Context, resp *infer.Response) error {
	more, times := resp.More, resp.Times
	resp.More = nil
	defer more.Close()
	err := more.Next(ctx, resp)
	now := time.Now()
	times.Ran, times.Split = now, now
	resp.Times = times
	if err != nil && ctx.Err() != nil {
		return sched.Left(ctx)
	}
	if err == nil && resp.Bare {
		err = infer.Errorf(infer.Internal, "the model sent no response to the request, expected one, because it is not decoupled")
	}
	return err
}
