package mms

import (
	"context"
	"encoding/binary"
	"errors"
	"net/http"
	"time"

	"github.com/shoal-serving/shoal/internal/access"
	"github.com/shoal-serving/shoal/internal/buf"
	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/sched"
	"github.com/shoal-serving/shoal/internal/servable"
	"github.com/shoal-serving/shoal/internal/trace"
	"github.com/shoal-serving/shoal/tensor"
)

// A Request is a prediction request.
type Request struct {
	ID             string
	Model, Version string // Version "" means the default one
	Client         uint64 // see [infer.Request]
	Header         http.Header
	Parts          []Part
	Trace          *trace.Request // nil if it is not traced
}

// Predict runs a request with others of its model. The answer is a view of resp, which
// the caller releases if there is no error. An error is an [Error], or that of ctx.
func (s *Store) Predict(ctx context.Context, req *Request, resp *infer.Response) (Answer, error) {
	if err := s.Authorize(ctx, access.Run, req.Model); err != nil {
		return Answer{}, err
	}
	v, err := s.Find(req.Model, req.Version)
	if err != nil {
		return Answer{}, err
	}
	if v.ScaledToZero() {
		return Answer{}, s.noWorker(v) // at once: a placeholder would wait for a full batch
	}
	if err := s.submitInTime(ctx, About(v).ClientTimeout, req, resp); err != nil {
		return Answer{}, s.toClientError(ctx, v, err)
	}
	answer, err := unpackAnswer(resp)
	if err == nil && answer.Failed {
		err = fail(answer.Status, "InternalServerException", "%s", answer.Body)
	} else if err != nil {
		err = fail(http.StatusServiceUnavailable, "InternalServerException", "%v", err)
	}
	if err != nil {
		resp.Release()
	}
	return answer, err
}

// unpackAnswer reads the one element of the output.
func unpackAnswer(resp *infer.Response) (Answer, error) {
	if len(resp.Outputs) != 1 || len(resp.Outputs[0].Data) < 4 {
		return Answer{}, errIncomplete
	}
	return decodeAnswer(resp.Outputs[0].Data[4:])
}

// submitInTime submits a request, and gives it up after the model's limit; 0 means none.
func (s *Store) submitInTime(ctx context.Context, limit time.Duration, req *Request, resp *infer.Response) error {
	if limit == 0 {
		return s.submit(ctx, req, resp)
	}
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := s.submit(limited, req, resp)
	// The scheduler may see that the time has passed before the timer of limited fires.
	late := infer.CodeOf(err) == infer.Deadline || limited.Err() != nil
	if err != nil && late && ctx.Err() == nil {
		return errClientTimeout
	}
	return err
}

var errClientTimeout = unavailable("The request was not answered within clientTimeoutInMills of the model's configuration.")

// submit runs a request as what the model's workers read: one element, whose length
// stands before it.
func (s *Store) submit(ctx context.Context, req *Request, resp *infer.Response) error {
	if req.Trace != nil { // handlers continue the trace with the headers
		c := req.Trace.Compute()
		req.Header.Set("Traceparent", c.Traceparent())
		req.Header.Set("Tracestate", c.State)
	}
	memory := buf.Get(4 + encodedSize(req.Header, req.Parts))
	defer memory.Release() // the scheduler has counts of its own
	data := encodeRequest(append(memory.B[:0], 0, 0, 0, 0), req.Header, req.Parts)
	binary.LittleEndian.PutUint32(data, uint32(len(data)-4))
	in := tensor.Tensor{Name: Body, Type: tensor.Bytes, Shape: []int64{1}, Data: data}
	return s.server.Infer(ctx, &infer.Request{
		ID: req.ID, Model: req.Model, Version: req.Version, Client: req.Client, Flags: infer.Envelope, Inputs: []tensor.Tensor{in}, Memory: memory, Trace: req.Trace,
	}, resp)
}

// toClientError converts an error of the server to the one that clients of MMS and
// TorchServe expect.
func (s *Store) toClientError(ctx context.Context, v *servable.Version, err error) error {
	limit, limited := errors.AsType[*access.LimitError](err)
	switch code := infer.CodeOf(err); {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, errClientTimeout):
		return err
	case errors.Is(err, sched.ErrClosed):
		return unavailable("the server is shutting down")
	case code == infer.NotFound:
		return notFound("Model not found: %s", v.Config.Name)
	case limited:
		e := fail(http.StatusTooManyRequests, "TooManyRequestsException", "%v", err)
		e.RetryAfter = limit.RetryAfter
		return e
	case code == infer.Overloaded || code == infer.Late || code == infer.QueueTimeout:
		return s.noWorker(v)
	case errors.Is(err, servable.ErrNoWorker):
		return s.noWorker(v)
	case errors.Is(err, engine.ErrDied):
		return internal("Worker died.")
	case code == infer.Unavailable:
		return unavailable("%v", err)
	}
	s.opts.Log.Error("prediction failed", "model", v.Config.Name, "version", v.Name(), "error", err)
	return fail(http.StatusServiceUnavailable, "InternalServerException", "Prediction failed")
}

// noWorker returns the error for a request that no worker can take.
func (s *Store) noWorker(v *servable.Version) error {
	if s.opts.Dialect == TorchServe {
		return unavailable("Model %q has no worker to serve inference request. Please use scale workers API to add workers. "+
			"If this is a sequence inference, please check if it is closed, or expired; or exceeds maxSequenceJobQueueSize", v.Config.Name)
	}
	return unavailable("No worker is available to serve request for model: %s. Consider increasing job queue size.", v.Config.Name)
}
