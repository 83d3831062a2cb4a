package kservehttp

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/shoal-serving/shoal/internal/access"
	"github.com/shoal-serving/shoal/internal/budget"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/kserve"
	"github.com/shoal-serving/shoal/internal/trace"
)

// A generation yields the responses to one request of the generate extension: those of a
// decoupled model, or the only one of any other. If the client disconnects, the context of
// its request is cancelled, and with it the generation.
type generation struct {
	req    *kserve.Request
	charge *budget.Charge       // has the responses that next encodes, besides what it returns
	sent   int64                // part of charge that is for the body and the inputs
	stream infer.ResponseStream // nil unless the model is decoupled and may send more
	only   *infer.Response      // the response of a model that is not decoupled; nil if it failed, or was returned
	err    error                // the error of a model that is not decoupled; nil if it was returned
	over   bool
}

// errNoMore is returned after the last response.
var errNoMore = errors.New("no more responses")

// openGeneration decodes a request and runs it. An error that it returns was found before
// the model ran. The caller must close the generation. The trace of the request is of, nil if it
// is not traced.
func (h *handler) openGeneration(w http.ResponseWriter, r *http.Request, charge *budget.Charge, of *trace.Request) (*generation, error) {
	if err := h.catalog.Authorize(r.Context(), access.Run, r.PathValue("model")); err != nil {
		return nil, err // before the body is read
	}
	model, err := h.catalog.Model(r.Context(), r.PathValue("model"), r.PathValue("version"))
	if err != nil {
		return nil, err
	}
	body, err := h.bodyOf(w, r, charge)
	if err != nil {
		return nil, err
	}
	defer body.Release() // the request has its own reference if it uses the body
	req, err := kserve.DecodeGenerate(r.Context(), body, model.Inputs, kserve.DecodeOptions{
		Model: r.PathValue("model"), Version: r.PathValue("version"), Limits: h.opts.Limits,
	}, charge)
	if err != nil {
		return nil, err
	}
	h.opts.ForwardHeaders.Forward(&req.Request, r.Header)
	defer req.Memory.Release() // the model has its own reference while it reads the inputs
	req.Client, req.Trace = kserve.ClientID(r.RemoteAddr), of
	resp := kserve.GetResponse()
	resp.Times = infer.Timeline{} // the response is pooled
	g := &generation{req: req, charge: charge, sent: charge.Bytes()}
	err = kserve.Infer(r.Context(), h.backend, &req.Request, resp, charge)
	switch {
	case err == nil && resp.Stream == nil:
		g.only = resp
		return g, nil
	case err == nil:
		g.stream = resp.Stream
	case resp.Times.Taken.IsZero(): // no instance ran it
		kserve.PutResponse(resp)
		return nil, err
	default:
		g.err = err
	}
	kserve.PutResponse(resp)
	return g, nil
}

// next appends the next response to dst as JSON, and charges the memory that dst grows by. If the
// model sent an error in its place, next returns that. After the last response it returns errNoMore.
func (g *generation) next(ctx context.Context, dst []byte) ([]byte, error) {
	if g.over {
		return nil, errNoMore
	}
	if g.stream == nil {
		g.over = true
		if g.err != nil {
			return nil, g.err
		}
		defer g.releaseOnly()
		return g.encode(ctx, dst, g.only)
	}
	resp := kserve.GetResponse()
	err := kserve.TritonError(g.stream.Next(ctx, resp), &g.req.Request)
	g.over = resp.Last || ctx.Err() != nil
	if err == nil && resp.Empty {
		err = errNoMore
	}
	if err == nil {
		err = kserve.Settle(&g.req.Request, resp, g.charge)
	}
	if err != nil {
		kserve.PutResponse(resp)
		return nil, err
	}
	defer g.release(resp)
	return g.encode(ctx, dst, resp)
}

// encode appends a response to dst as JSON.
func (g *generation) encode(ctx context.Context, dst []byte, resp *infer.Response) ([]byte, error) {
	expected, err := chargeDocument(g.req, resp, cap(dst)-len(dst), g.charge)
	if err != nil {
		return nil, err
	}
	doc, err := g.req.AppendGenerated(ctx, dst, resp)
	if err != nil {
		g.charge.Shrink(expected)
		return nil, err
	}
	if !recharge(g.charge, expected, int64(cap(doc)-cap(dst))) {
		g.charge.Shrink(expected)
		return nil, kserve.ResponseOverBudget(&g.req.Request)
	}
	return doc, nil
}

// close releases the memory of the responses, and notifies a model that would send more.
func (g *generation) close() {
	if g.stream != nil {
		g.stream.Close()
	}
	g.releaseOnly()
}

// releaseOnly releases the only response of a model that is not decoupled, if there is one.
func (g *generation) releaseOnly() {
	if g.only != nil {
		g.release(g.only)
		g.only = nil
	}
}

// release releases a response, and gives back what was charged for its outputs.
func (g *generation) release(resp *infer.Response) {
	outputs := g.charge.Split(infer.DataSize(resp.Outputs))
	resp.Release()
	kserve.PutResponse(resp)
	outputs.Close()
}

// oneResponse is the error of generate for a model that sends none or several.
const oneResponse = "generate expects model to produce exactly 1 response, use generate stream for model that generates various number of responses"

// generate runs a model, and answers with its only response as JSON. As in Triton, the
// status is that of the first response, even if others follow, which is an error.
func (h *handler) generate(w http.ResponseWriter, r *http.Request) (err error) {
	span := h.beginTrace(r)
	defer func() { kserve.EndTrace(span, err) }()
	charge := h.opts.Budget.OpenModel(r.PathValue("model"))
	defer charge.Close() // when the response has been sent
	g, err := h.openGeneration(w, r, &charge, span.Request())
	if err != nil {
		return err
	}
	defer g.close()
	doc, err := g.next(r.Context(), nil)
	if err != nil && !errors.Is(err, errNoMore) {
		return err
	}
	if _, more := g.next(r.Context(), nil); errors.Is(err, errNoMore) || !errors.Is(more, errNoMore) {
		sendError(w, http.StatusOK, oneResponse)
		return nil
	}
	header, conn := w.Header(), connOf(r)
	if conn.Closing() {
		header.Set("Connection", "close")
	}
	header["Content-Type"] = jsonType
	header["Content-Length"] = []string{strconv.Itoa(len(doc))}
	conn.writeOnce(w, len(doc), func(w io.Writer) error { _, err := w.Write(doc); return err })
	return nil
}

// generateStream runs a model, and answers with its responses as server-sent events while
// the model sends them. The status is that of the first one.
func (h *handler) generateStream(w http.ResponseWriter, r *http.Request) (err error) {
	span := h.beginTrace(r)
	defer func() { kserve.EndTrace(span, err) }()
	charge := h.opts.Budget.OpenModel(r.PathValue("model"))
	defer charge.Close()
	g, err := h.openGeneration(w, r, &charge, span.Request())
	if err != nil {
		return err
	}
	defer g.close()
	charge.Shrink(g.sent) // the body is no longer needed
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	if connOf(r).Closing() {
		w.Header().Set("Connection", "close")
	}
	client := http.NewResponseController(w)
	defer func() { _ = client.SetWriteDeadline(time.Time{}) }() // the next request starts without one
	memory := []byte(eventStart)
	for first := true; ; first = false {
		event, err := g.next(r.Context(), memory[:len(eventStart)])
		switch {
		case errors.Is(err, errNoMore) || r.Context().Err() != nil:
			return nil
		case err != nil:
			event = append([]byte(eventStart), encodeFailure(failure{Error: err.Error()})...)
		default:
			memory = event
		}
		if first && err != nil {
			w.WriteHeader(h.errorStatus(w, err))
		}
		// A client that does not read must not hold the model's responses for ever.
		_ = client.SetWriteDeadline(time.Now().Add(stallTimeout))
		_, _ = w.Write(event)
		_, _ = io.WriteString(w, eventEnd) // to append it could take the memory of the event again
		if client.Flush() != nil {
			return nil // the client has disconnected
		}
	}
}

// A server-sent event is a line with a JSON document, which has no line breaks, and an
// empty line.
const (
	eventStart = "data: "
	eventEnd   = "\n\n"
)
