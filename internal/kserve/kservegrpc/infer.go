package kservegrpc

import (
	"context"
	"errors"
	"slices"
	"time"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/kserve"
	"github.com/shoal-serving/shoal/internal/kserve/kservepb"
	"github.com/shoal-serving/shoal/internal/trace"
	"github.com/shoal-serving/shoal/tensor"
)

// answer runs a model that is not decoupled. in stays the caller's.
func (s *service) answer(ctx context.Context, in *request) (any, error) {
	span := s.beginTrace(ctx, in)
	a, err := s.run(ctx, in, span.Request())
	kserve.EndTrace(span, err)
	return a, err
}

// beginTrace returns the span of a request, or nil if it is not traced.
func (s *service) beginTrace(ctx context.Context, in *request) *trace.Root {
	model := in.GetModelName()
	if !s.opts.Tracer.On(model) {
		return nil
	}
	h := headersOf(ctx)
	return s.opts.Tracer.Begin("grpc", model, h.traceparent, h.tracestate)
}

// run is answer for a request whose trace is of; nil if it is not traced.
func (s *service) run(ctx context.Context, in *request, of *trace.Request) (any, error) {
	resp := kserve.GetResponse()
	if version := headersOf(ctx).version; version != "" && in.GetModelVersion() == "" {
		in.ModelVersion = version
	}
	req, err := in.decode(&s.opts.Limits)
	if err == nil && !in.shared.Empty() {
		in.attached, err = s.opts.Regions.Attach(req, &in.shared)
		defer in.attached.Release()
	}
	if err == nil {
		req.Client, req.Trace = clientOf(ctx), of
		s.forwardHeaders(ctx, req)
		err = kserve.Infer(withEarlyDeadline(ctx), s.backend, req, resp, &in.charge)
	}
	if errors.Is(err, infer.ErrDecoupled) {
		err = infer.Errorf(infer.Unsupported, "ModelInfer RPC doesn't support models with decoupled transaction policy")
	}
	if err != nil {
		kserve.PutResponse(resp)
		return nil, err
	}
	a := &answer{model: resp.Model, version: resp.Version, id: in.GetId(), response: resp}
	if a.charge(&in.charge); a.loans != nil {
		uncompressed(ctx)
	}
	return a, nil
}

// forwardHeaders adds the metadata of a call to the parameters of a request, if the options
// ask for it.
func (s *service) forwardHeaders(ctx context.Context, req *infer.Request) {
	if s.opts.ForwardHeaders == nil {
		return // without a copy of the metadata
	}
	headers, _ := metadata.FromIncomingContext(ctx)
	s.opts.ForwardHeaders.Forward(req, headers)
}

// deadlineMargin is how long before its deadline a call is answered, or a tenth of the
// remaining time, if that is less. At the deadline itself grpc resets the stream, and a
// client that sees this first gets CANCELLED instead of DEADLINE_EXCEEDED.
const deadlineMargin = time.Millisecond

// withEarlyDeadline returns a context whose deadline leaves time for the response to
// arrive.
func withEarlyDeadline(ctx context.Context) context.Context {
	at, ok := ctx.Deadline()
	if !ok {
		return ctx
	}
	left := time.Until(at)
	return &earlyDeadline{ctx, at.Add(-min(deadlineMargin, left/10))}
}

// An earlyDeadline is a context that reports an earlier deadline than it has. The
// scheduler enforces the reported one, so no timer is needed.
type earlyDeadline struct {
	context.Context //nolint:containedctx // it is one

	at time.Time
}

func (e *earlyDeadline) Deadline() (time.Time, bool) { return e.at, true }

func clientOf(ctx context.Context) uint64 {
	if p, ok := peer.FromContext(ctx); ok {
		return kserve.ClientIDOfAddr(p.Addr)
	}
	return 0
}

// decode converts a message that the codec has read to an [infer.Request], which is part
// of r. Its inputs are views of the message and of the memory of its raw contents.
func (r *request) decode(limits *kserve.Limits) (*infer.Request, error) {
	req := &r.asked
	*req = infer.Request{}
	req.Model, req.Version, req.ID, req.Inputs, req.Memory = r.ModelName, r.ModelVersion, r.Id, r.room.tensors[:0], r.memory
	if err := checkVersion(req.Version); err != nil {
		return nil, err
	}
	if err := decodeParameters(req, r.GetParameters()); err != nil {
		return nil, err
	}
	r.shared = kserve.SharedTensors{}
	if err := decodeInputs(req, &r.ModelInferRequest, &r.shared, limits); err != nil {
		return nil, err
	}
	if err := decodeOutputs(req, r.GetOutputs(), &r.shared); err != nil {
		return nil, err
	}
	return req, nil
}

// emptyFinal is a parameter of stream requests: whether a final response is sent even if
// it has no outputs.
const emptyFinal = "triton_enable_empty_final_response"

func decodeParameters(req *infer.Request, parameters map[string]*kservepb.InferParameter) error {
	if len(parameters) == 0 {
		return nil // most have none
	}
	for name, p := range parameters {
		err := kserve.SetParameter(req, name, func(kind kserve.ParameterKind) (any, error) { return parameterValue(kind, name, p) })
		if err != nil {
			return err
		}
	}
	return nil
}

func parameterValue(kind kserve.ParameterKind, name string, p *kservepb.InferParameter) (any, error) {
	switch {
	case kind == kserve.BoolParameter || name == emptyFinal:
		return boolean(name, p)
	case kind == kserve.UintParameter:
		return natural(name, p)
	case kind == kserve.SequenceParameter:
		return sequence(name, p)
	case kind == kserve.ReservedParameter:
		return nil, infer.Errorf(infer.Invalid, "parameter keys starting with 'triton_' are reserved for Triton usage. "+
			"Only the following keys starting with 'triton_' are allowed: %s", emptyFinal)
	}
	return p.Value(), nil
}

func sequence(name string, p *kservepb.InferParameter) (any, error) {
	switch v := p.Value().(type) {
	case int64:
		return uint64(v), nil
	case uint64, string:
		return v, nil
	}
	return nil, mistyped(name, "int64_param or string_param")
}

func boolean(name string, p *kservepb.InferParameter) (bool, error) {
	if v, ok := p.Value().(bool); ok {
		return v, nil
	}
	return false, mistyped(name, "bool_param")
}

func natural(name string, p *kservepb.InferParameter) (uint64, error) {
	switch v := p.Value().(type) {
	case uint64:
		return v, nil
	case int64:
		if v < 0 {
			return 0, infer.Errorf(infer.Invalid, "invalid value for '%s', expected value >= 0.", name)
		}
		return uint64(v), nil
	}
	return 0, mistyped(name, "int64_param")
}

func decodeInputs(req *infer.Request, in *kservepb.ModelInferRequest, shared *kserve.SharedTensors, limits *kserve.Limits) error {
	req.Inputs = slices.Grow(req.Inputs, len(in.GetInputs()))
	raw := in.GetRawInputContents()
	for i, input := range in.GetInputs() {
		t := tensor.Tensor{Name: input.GetName(), Shape: input.GetShape()}
		t.Type, _ = tensor.ParseType(input.GetDatatype()) // an unknown type matches no model's
		at, isShared, err := regionSlice(input)
		switch {
		case err != nil:
			return err
		case isShared && input.GetContents() != nil:
			return infer.Errorf(infer.Invalid, "unexpected 'content' provided when using shared memory for input tensor '%s' for model '%s'",
				input.GetName(), in.GetModelName())
		case isShared:
			shared.AddInput(i, at)
			req.Inputs = append(req.Inputs, t)
			continue
		}
		if t.Data, err = data(in, i, t.Type, raw); err != nil {
			return err
		}
		if len(raw) > 0 { // inputs in shared memory have none
			raw = raw[1:]
		}
		if err := limits.CheckStrings(&t); err != nil {
			return err
		}
		req.Inputs = append(req.Inputs, t)
	}
	return nil
}

// data returns the data of an input; raw are the raw contents that no earlier input has. As
// in Triton, it is not an error if there are more raw contents than inputs.
func data(in *kservepb.ModelInferRequest, i int, t tensor.Type, raw [][]byte) ([]byte, error) {
	input := in.GetInputs()[i]
	switch {
	case len(in.GetRawInputContents()) > 0 && input.GetContents() != nil:
		return nil, infer.Errorf(infer.Invalid, "contents field must not be specified when using raw_input_contents for '%s' for model '%s'",
			input.GetName(), in.GetModelName())
	case len(raw) > 0:
		return raw[0], nil
	case input.GetContents() == nil:
		return nil, infer.Errorf(infer.Invalid, "unable to find data for input tensor '%s' for model '%s' in request.",
			input.GetName(), in.GetModelName())
	}
	if got := mismatch(input.GetContents(), t); got != tensor.Invalid {
		return nil, infer.Errorf(infer.Invalid, "unexpected explicit tensor data for input tensor '%s' for model '%s' of type '%v', expected datatype '%s'",
			input.GetName(), in.GetModelName(), got, input.GetDatatype())
	}
	b, ok := tensorData(input.GetContents(), t)
	if !ok {
		return nil, infer.Errorf(infer.Invalid, "a number of input tensor '%s' for model '%s' does not fit datatype '%v'",
			input.GetName(), in.GetModelName(), t)
	}
	return b, nil
}

func decodeOutputs(req *infer.Request, outputs []*kservepb.ModelInferRequest_InferRequestedOutputTensor, shared *kserve.SharedTensors) error {
	var asked kserve.Classes
	for _, o := range outputs {
		at, isShared, err := regionSlice(o)
		if err != nil {
			return err
		}
		var classes uint64
		if p, ok := o.GetParameters()["classification"]; ok {
			if classes, err = natural("classification", p); err != nil {
				return err
			}
		}
		if isShared {
			if classes > 0 {
				return infer.Errorf(infer.Invalid, "output can't set both 'shared_memory_region' and 'classification'")
			}
			shared.AddOutput(o.GetName(), at)
		}
		asked.AddOutput(req, o.GetName(), classes)
	}
	return nil
}
