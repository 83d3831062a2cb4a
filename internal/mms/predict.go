package mms

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/shoal-serving/shoal/internal/buf"
	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/sched"
	"github.com/shoal-serving/shoal/tensor"
)

// A Request is one prediction that is asked for.
type Request struct {
	ID             string
	Model, Version string // Version is "" for the usual one
	Client         uint64 // see [infer.Request]
	Header         http.Header
	Parts          []Part
}

// Predict runs a request with others of its model. The answer is a view of resp, which
// the caller releases if there is no error. An error is an [Error], or that of ctx.
func (s *Server) Predict(ctx context.Context, req *Request, resp *infer.Response) (Answer, error) {
	s.inside.Add(1)
	defer s.inside.Add(-1)
	if s.draining.Load() {
		return Answer{}, unavailable("the server is shutting down")
	}
	v, err := s.Find(req.Model, req.Version)
	if err != nil {
		return Answer{}, err
	}
	if v.count() == 0 {
		return Answer{}, s.noWorker(v)
	}
	began := time.Now()
	err = v.submit(ctx, req, resp)
	if err != nil {
		v.stats.Failed(infer.CodeOf(err), time.Since(began))
		return Answer{}, s.told(ctx, v, err)
	}
	v.stats.Succeeded(1, time.Since(began), &resp.Times)
	if len(resp.Outputs) != 1 {
		err = errTorn
	}
	var answer Answer
	if err == nil {
		answer, err = decodeAnswer(resp.Outputs[0].Data)
	}
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

// submit runs a request as what the model's workers read.
func (v *Version) submit(ctx context.Context, req *Request, resp *infer.Response) error {
	memory := buf.Get(encodedSize(req.Header, req.Parts))
	defer memory.Release() // the scheduler has counts of its own
	data := encodeRequest(memory.B[:0], req.Header, req.Parts)
	in := tensor.Tensor{Name: requestTensor, Type: tensor.Uint8, Shape: []int64{1, int64(len(data))}, Data: data}
	return v.sched.Submit(ctx, &infer.Request{
		ID: req.ID, Model: req.Model, Client: req.Client, Inputs: []tensor.Tensor{in}, Memory: memory, Rows: 1,
	}, resp)
}

// told makes of an error of the scheduler what clients know.
func (s *Server) told(ctx context.Context, v *Version, err error) error {
	switch code := infer.CodeOf(err); {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, sched.ErrClosed):
		return notFound("Model not found: %s", v.Name)
	case code == infer.Overloaded || code == infer.Late || code == infer.QueueTimeout:
		return s.noWorker(v)
	case errors.Is(err, errNobody):
		return s.noWorker(v)
	case errors.Is(err, engine.ErrDied):
		return internal("Worker died.")
	case code == infer.Unavailable:
		return unavailable("%v", err)
	}
	s.opts.Log.Error("prediction failed", "model", v.Name, "version", v.Version, "error", err)
	return fail(http.StatusServiceUnavailable, "InternalServerException", "Prediction failed")
}

// noWorker is what clients are told for whom there is no place.
func (s *Server) noWorker(v *Version) error {
	if s.opts.Dialect == TorchServe {
		return unavailable("Model %q has no worker to serve inference request. Please use scale workers API to add workers. "+
			"If this is a sequence inference, please check if it is closed, or expired; or exceeds maxSequenceJobQueueSize", v.Name)
	}
	return unavailable("No worker is available to serve request for model: %s. Consider increasing job queue size.", v.Name)
}
