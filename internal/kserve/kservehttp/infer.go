package kservehttp

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"sync"

	"github.com/shoal-serving/shoal/internal/budget"
	"github.com/shoal-serving/shoal/internal/buf"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/kserve"
	"github.com/shoal-serving/shoal/internal/panics"
	"github.com/shoal-serving/shoal/internal/trace"
	"github.com/shoal-serving/shoal/tensor"
)

// infer runs a model. If the client disconnects, the context of r is cancelled, and with
// it the request.
func (h *handler) infer(w http.ResponseWriter, r *http.Request) error {
	span := h.beginTrace(r)
	err := h.run(w, r, span.Request())
	kserve.EndTrace(span, err)
	return err
}

// beginTrace returns the span of a request to a model, or nil if it is not traced.
func (h *handler) beginTrace(r *http.Request) *trace.Root {
	model := r.PathValue("model")
	if !h.opts.Tracer.On(model) {
		return nil
	}
	traceparent, tracestate := kserve.TraceHeaders(r.Header)
	return h.opts.Tracer.Begin("http", model, traceparent, tracestate)
}

// run decodes, runs and answers an inference. traced is its trace, or nil.
func (h *handler) run(w http.ResponseWriter, r *http.Request, traced *trace.Request) error {
	charge := h.opts.Budget.OpenModel(r.PathValue("model"))
	defer charge.Close() // when the response has been sent
	req, err := h.decode(w, r, &charge)
	if err != nil {
		return err
	}
	defer req.Memory.Release()
	req.Client, req.Trace = kserve.ClientID(r.RemoteAddr), traced
	if err := h.checkRaw(r.Context(), req); err != nil {
		return err
	}
	shared, err := h.opts.Regions.Attach(&req.Request, &req.Shared)
	if err != nil {
		return err
	}
	defer shared.Release()
	resp := kserve.GetResponse()
	defer kserve.PutResponse(resp)
	if err := kserve.Infer(r.Context(), h.backend, &req.Request, resp, &charge); err != nil {
		if errors.Is(err, infer.ErrDecoupled) {
			return infer.Errorf(infer.Unsupported, "HTTP end point doesn't support models with decoupled transaction policy")
		}
		if e, ok := errors.AsType[*infer.Error](err); ok && e.Mismatch {
			return h.withExample(err, r)
		}
		return err
	}
	defer resp.Release()
	return respond(w, r, req, resp, &charge)
}

// decode reads the body of r and decodes it. charge grows by the memory that the request
// needs. The caller releases the request's memory.
func (h *handler) decode(w http.ResponseWriter, r *http.Request, charge *budget.Charge) (*kserve.Request, error) {
	body, err := h.bodyOf(w, r, charge)
	if err != nil {
		return nil, err
	}
	defer body.Release() // the request has its own reference if it uses the body
	req, err := kserve.DecodeRequest(r.Context(), body, kserve.DecodeOptions{
		Model:      r.PathValue("model"),
		Version:    r.PathValue("version"),
		JSONLength: kserve.FirstValue(r.Header[kserve.JSONLengthHeader]),
		Limits:     h.opts.Limits,
	}, charge)
	if err != nil {
		return nil, h.withExample(err, r)
	}
	h.opts.ForwardHeaders.Forward(&req.Request, r.Header)
	return req, nil
}

// bodyOf reads the body of a request of any format. The caller owns the reference.
func (h *handler) bodyOf(w http.ResponseWriter, r *http.Request, charge *budget.Charge) (*buf.Buf, error) {
	panics.Point("http")
	body, err := h.readBody(w, r, charge)
	if infer.CodeOf(err) == infer.Unsupported { // the Content-Encoding is not supported
		w.Header().Set("Accept-Encoding", "gzip, deflate")
	}
	return body, err
}

// withExample extends an error about a JSON body with an example of a valid body for the
// model of r, or with the fact that the model does not exist. Other errors stay as they
// are, and so do those about bodies with binary data, which libraries write, not people.
func (h *handler) withExample(err error, r *http.Request) error {
	if infer.CodeOf(err) != infer.Invalid || r.Header.Get(kserve.JSONLengthHeader) != "" {
		return err
	}
	m, unknown := h.catalog.Model(r.Context(), r.PathValue("model"), r.PathValue("version"))
	if unknown != nil {
		return invalidBody{err, nil, withHint(kserve.TritonError(unknown, nil))}
	}
	example, hint := kserve.Example(m)
	return invalidBody{err, example, hint}
}

// withHint returns the text of an error with its hint.
func withHint(err error) string {
	if e, ok := errors.AsType[*infer.Error](err); ok && e.Hint != "" {
		return err.Error() + "; " + e.Hint
	}
	return err.Error()
}

// checkRaw checks the size of a raw body, which is the data of the only input, without
// JSON. If that input is of type BYTES, the body is a single element, and the limit of an
// element applies. Only the model's metadata says which type the input has.
func (h *handler) checkRaw(ctx context.Context, req *kserve.Request) error {
	if len(req.Inputs) != 1 || req.Inputs[0].Type != tensor.Invalid {
		return nil // not a raw body
	}
	over := h.opts.Limits.CheckString(int64(len(req.Inputs[0].Data)))
	if over == nil {
		return nil
	}
	m, err := h.catalog.Model(ctx, req.Model, req.Version)
	if err == nil && len(m.Inputs) == 1 && m.Inputs[0].Type == tensor.Bytes {
		return over
	}
	return err
}

// jsonBuffers pools memory for the JSON part of responses.
var jsonBuffers = sync.Pool{New: func() any { return new([]byte) }}

// maxJSONBuffer is the largest buffer that is returned to the pool.
const maxJSONBuffer = 1 << 20

// Header values, allocated once. They must not be modified.
var (
	jsonType   = []string{"application/json"}
	binaryType = []string{"application/octet-stream"}
)

// smallDocument is the size of an inference's JSON up to which it is charged afterwards, and of other
// answers up to which they are not charged.
const smallDocument = 64 << 10

// chargeDocument adds to charge what the JSON of a response will probably take besides the given
// room, and returns that. Small documents are charged afterwards only, by recharge.
func chargeDocument(req *kserve.Request, resp *infer.Response, room int, charge *budget.Charge) (int64, error) {
	expected := req.JSONSize(resp) - int64(room)
	if expected <= smallDocument {
		return 0, nil
	}
	if !charge.Grow(expected) {
		return 0, kserve.ResponseOverBudget(&req.Request)
	}
	return expected, nil
}

// recharge replaces expected bytes of charge with those that a document takes, and reports whether
// they fit. If not, the charge is unchanged.
func recharge(charge *budget.Charge, expected, size int64) bool {
	if size < expected {
		charge.Shrink(expected - size)
		return true
	}
	return charge.Grow(size - expected)
}

// respond sends a response. charge has its outputs, and grows by the rest.
func respond(w http.ResponseWriter, r *http.Request, req *kserve.Request, resp *infer.Response, charge *budget.Charge) error {
	expected, err := chargeDocument(req, resp, 0, charge)
	if err != nil {
		return err
	}
	memory := jsonBuffers.Get().(*[]byte)
	defer jsonBuffers.Put(memory)
	doc, err := req.AppendResponse(r.Context(), (*memory)[:0], resp)
	if err != nil {
		return err
	}
	if cap(doc) <= maxJSONBuffer {
		*memory = doc
	}
	size, binary := len(doc), false
	for data := range req.Binary(resp) {
		size += len(data)
		binary = true
	}
	if !recharge(charge, expected, int64(len(doc))) {
		return kserve.ResponseOverBudget(&req.Request)
	}
	header := w.Header()
	header["Content-Type"] = jsonType
	if binary {
		header["Content-Type"] = binaryType
		header[kserve.JSONLengthHeader] = []string{strconv.Itoa(len(doc))}
	}
	conn := connOf(r)
	if conn.Closing() {
		header.Set("Connection", "close")
	}
	answer := func(w io.Writer) error { return write(w, doc, req, resp) }
	if encoding := responseEncoding(r.Header["Accept-Encoding"]); encoding != "" {
		if p := compress(encoding, size, charge, answer); p != nil {
			defer p.release()
			header.Set("Content-Encoding", encoding)
			size = len(p.bytes())
			answer = func(w io.Writer) error { _, err := w.Write(p.bytes()); return err }
		}
	}
	header["Content-Length"] = []string{strconv.Itoa(size)}
	conn.writeOnce(w, size, answer)
	return nil
}

func write(w io.Writer, doc []byte, req *kserve.Request, resp *infer.Response) error {
	_, err := w.Write(doc)
	for data := range req.Binary(resp) {
		if err == nil {
			_, err = w.Write(data)
		}
	}
	return err
}
