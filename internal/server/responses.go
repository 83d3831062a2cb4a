package server

import (
	"context"
	"sync"
	"time"

	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/sched"
)

// responses is the response stream of a decoupled model, converted to what the client
// asked for. The request is in flight until the stream is closed.
type responses struct {
	server  *Server
	request inference
	stream  infer.ResponseStream
	version string
	times   infer.Timeline // up to the start of the batch
	failed  error          // that ended the responses
	ended   bool           // the last response was returned
	once    sync.Once      // guards Close
}

// Next implements [infer.ResponseStream].
func (r *responses) Next(ctx context.Context, resp *infer.Response) error {
	err := r.stream.Next(ctx, resp)
	resp.Model, resp.Version, resp.Times = r.request.req.Model, r.version, r.times
	r.ended = resp.Last
	if err != nil && ctx.Err() != nil {
		err = sched.ContextError(ctx)
	}
	if err != nil && resp.Last {
		r.failed = err
	}
	if err != nil || resp.Empty {
		return err
	}
	if err := buildResponse(r.request.version, r.request.req, resp); err != nil {
		resp.Release()
		if r.ended {
			r.failed = err
		}
		return err
	}
	return nil
}

// Close implements [infer.ResponseStream]. A request whose client leaves before the last
// response counts as failed.
func (r *responses) Close() {
	r.once.Do(func() {
		r.stream.Close()
		if !r.ended {
			r.failed = sched.ContextError(context.Background())
		}
		now := time.Now()
		r.times.RunEnded, r.times.Split = now, now
		resp := infer.Response{Model: r.request.req.Model, Version: r.version, Times: r.times}
		_ = r.server.end(context.Background(), &r.request, &resp, r.failed)
	})
}

// takeFirst moves the first response of a model that is not decoupled to resp. Further
// responses are dropped, as in Triton. A model that sends none is an error; in Triton its
// client waits for ever.
func takeFirst(ctx context.Context, resp *infer.Response) error {
	stream, times := resp.Stream, resp.Times
	resp.Stream = nil
	defer stream.Close()
	err := stream.Next(ctx, resp)
	now := time.Now()
	times.RunEnded, times.Split = now, now
	resp.Times = times
	if err != nil && ctx.Err() != nil {
		return sched.ContextError(ctx)
	}
	if err == nil && resp.Empty {
		err = infer.Errorf(infer.Internal, "the model sent no response to the request, expected one, because it is not decoupled")
	}
	return err
}
