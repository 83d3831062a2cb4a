package kservegrpc

import (
	"context"
	"time"

	"google.golang.org/grpc/peer"

	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/kserve"
	"github.com/shoal-serving/shoal/internal/kserve/kservepb"
	"github.com/shoal-serving/shoal/tensor"
)

// answer runs a model once. in stays the caller's.
func (s *service) answer(ctx context.Context, in *request) (any, error) {
	resp := responses.Get().(*infer.Response)
	if err := s.infer(ctx, in, clientOf(ctx), resp); err != nil {
		responses.Put(resp)
		return nil, err
	}
	return &answer{model: resp.Model, version: resp.Version, id: in.GetId(), response: resp}, nil
}

// infer runs a model once, and fills in resp if the error is nil.
func (s *service) infer(ctx context.Context, in *request, client uint64, resp *infer.Response) error {
	req, err := decode(&in.ModelInferRequest, &s.opts.Limits)
	if err != nil {
		return err
	}
	req.Memory, req.Client = in.memory, client
	return s.backend.Infer(punctual(ctx), req, resp)
}

// headStart is how long before its deadline a call is answered, or a tenth of the
// time that is left, if that is less. At the deadline itself grpc resets the stream,
// and the client may see that first: its call was cancelled then, and not late.
const headStart = time.Millisecond

// punctual returns a context whose deadline is soon enough for the answer to arrive.
func punctual(ctx context.Context) context.Context {
	at, ok := ctx.Deadline()
	if !ok {
		return ctx
	}
	left := time.Until(at)
	return &early{ctx, at.Add(-min(headStart, left/10))}
}

// early is a context that says it ends sooner than it does. Whoever answers goes by
// that, and it needs no timer.
type early struct {
	context.Context //nolint:containedctx // it is one

	at time.Time
}

func (e *early) Deadline() (time.Time, bool) { return e.at, true }

func clientOf(ctx context.Context) uint64 {
	if p, ok := peer.FromContext(ctx); ok {
		return kserve.ClientAt(p.Addr)
	}
	return 0
}

// decode makes a request of a message that was read by the codec. Its inputs are
// views of the message, and of the memory that the message's raw contents are in.
func decode(in *kservepb.ModelInferRequest, limits *kserve.Limits) (*infer.Request, error) {
	req := &infer.Request{Model: in.GetModelName(), Version: in.GetModelVersion(), ID: in.GetId()}
	if err := checkVersion(req.Version); err != nil {
		return nil, err
	}
	if err := decodeParameters(req, in.GetParameters()); err != nil {
		return nil, err
	}
	if err := decodeInputs(req, in, limits); err != nil {
		return nil, err
	}
	if err := decodeOutputs(req, in.GetOutputs()); err != nil {
		return nil, err
	}
	return req, nil
}

// decodeParameters reads what is known here. The other parameters are custom
// ones, for models that look at them.
func decodeParameters(req *infer.Request, parameters map[string]*kservepb.InferParameter) error {
	if p, ok := parameters["priority"]; ok {
		n, err := natural("priority", p)
		if err != nil {
			return err
		}
		req.Priority = n
	}
	if p, ok := parameters["timeout"]; ok {
		n, err := natural("timeout", p)
		if err != nil {
			return err
		}
		req.Timeout = kserve.Microseconds(n)
	}
	// Every answer here says that it is the final one, so that none follows which
	// says only that.
	if p, ok := parameters["triton_enable_empty_final_response"]; ok {
		if _, ok := p.GetParameterChoice().(*kservepb.InferParameter_BoolParam); !ok {
			return mistyped("triton_enable_empty_final_response", "bool_param")
		}
	}
	return nil
}

func natural(name string, p *kservepb.InferParameter) (uint64, error) {
	switch v := p.GetParameterChoice().(type) {
	case *kservepb.InferParameter_Uint64Param:
		return v.Uint64Param, nil
	case *kservepb.InferParameter_Int64Param:
		if v.Int64Param < 0 {
			return 0, infer.Errorf(infer.Invalid, "invalid value for '%s', expected value >= 0.", name)
		}
		return uint64(v.Int64Param), nil
	}
	return 0, mistyped(name, "int64_param")
}

func decodeInputs(req *infer.Request, in *kservepb.ModelInferRequest, limits *kserve.Limits) error {
	req.Inputs = make([]tensor.Tensor, 0, len(in.GetInputs()))
	for i, input := range in.GetInputs() {
		if p, ok := input.GetParameters()["shared_memory_region"]; ok {
			return kserve.NoRegion(p.GetStringParam())
		}
		t := tensor.Tensor{Name: input.GetName(), Shape: input.GetShape()}
		t.Type, _ = tensor.ParseType(input.GetDatatype()) // one that there is not matches no model's
		var err error
		if t.Data, err = data(in, i, t.Type); err != nil {
			return err
		}
		if err := limits.CheckStrings(&t); err != nil {
			return err
		}
		req.Inputs = append(req.Inputs, t)
	}
	return nil
}

// data returns the data of an input. More raw contents than inputs are let
// pass, as in Triton.
func data(in *kservepb.ModelInferRequest, i int, t tensor.Type) ([]byte, error) {
	input, raw := in.GetInputs()[i], in.GetRawInputContents()
	switch {
	case len(raw) > 0 && input.GetContents() != nil:
		return nil, infer.Errorf(infer.Invalid, "contents field must not be specified when using raw_input_contents for '%s' for model '%s'",
			input.GetName(), in.GetModelName())
	case i < len(raw):
		return raw[i], nil
	case input.GetContents() == nil:
		return nil, infer.Errorf(infer.Invalid, "unable to find data for input tensor '%s' for model '%s' in request.",
			input.GetName(), in.GetModelName())
	}
	if got := mismatch(input.GetContents(), t); got != tensor.Invalid {
		return nil, infer.Errorf(infer.Invalid, "unexpected explicit tensor data for input tensor '%s' for model '%s' of type '%v', expected datatype '%s'",
			input.GetName(), in.GetModelName(), got, input.GetDatatype())
	}
	b, ok := typed(input.GetContents(), t)
	if !ok {
		return nil, infer.Errorf(infer.Invalid, "a number of input tensor '%s' for model '%s' does not fit datatype '%v'",
			input.GetName(), in.GetModelName(), t)
	}
	return b, nil
}

func decodeOutputs(req *infer.Request, outputs []*kservepb.ModelInferRequest_InferRequestedOutputTensor) error {
	for _, o := range outputs {
		if p, ok := o.GetParameters()["shared_memory_region"]; ok {
			return kserve.NoRegion(p.GetStringParam())
		}
		var classes uint64
		if p, ok := o.GetParameters()["classification"]; ok {
			var err error
			if classes, err = natural("classification", p); err != nil {
				return err
			}
		}
		req.Outputs = append(req.Outputs, o.GetName())
		req.Classes = append(req.Classes, classes)
	}
	return nil
}
