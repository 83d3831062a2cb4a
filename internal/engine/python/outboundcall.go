package python

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/shoal-serving/shoal/internal/access"
	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/memfd"
	"github.com/shoal-serving/shoal/internal/panics"
	"github.com/shoal-serving/shoal/tensor"
)

// maxOutboundCalls is how many calls a worker may have in flight.
const maxOutboundCalls = 1024

// An outboundCall is an inference request that a model sends to another model or to
// itself, or its request to load or unload one. It ends when the response is sent, when
// the worker dies or closes its end, or when all clients have left whose requests the
// worker was running when the call began.
type outboundCall struct {
	w      *worker
	conn   *net.UnixConn
	cancel context.CancelFunc
}

// startOutboundCall starts the call in a CALL frame. It takes ownership of fds.
func (w *worker) startOutboundCall(f frame, fds []int) error {
	defer func() { memfd.CloseAll(fds) }()
	if len(fds) != 2 {
		return fmt.Errorf("a call with %d descriptors, expected 2", len(fds))
	}
	p, err := readPayload(fds[1], f.a, f.b)
	if err != nil {
		return err
	}
	conn, err := connFromFD(fds[0])
	fds = fds[1:]
	if err != nil {
		p.release()
		return err
	}
	ctx, cancel := context.WithCancel(w.ctx)
	e := &outboundCall{w: w, conn: conn, cancel: cancel}
	batch, caller := w.batch.Load(), access.Self
	if batch != nil {
		caller = batch.add(e)
	}
	ctx = access.WithCaller(ctx, caller)
	w.goroutines.Go(func() {
		defer cancel()
		if w.outbound.Add(1) > maxOutboundCalls {
			e.fail(infer.Errorf(infer.Overloaded, "found more than %d concurrent calls, which is the limit", maxOutboundCalls), p.Model, false)
		} else {
			e.runSafely(ctx, p)
		}
		w.outbound.Add(-1)
		p.release()
		if batch != nil {
			batch.remove(e)
		}
		_ = conn.Close() // which ends watchClose
	})
	w.goroutines.Go(func() { e.watchClose() })
	return nil
}

// watchClose cancels the call when the worker closes its end.
func (e *outboundCall) watchClose() {
	var b [1]byte
	_, _ = e.conn.Read(b[:]) // workers send nothing over this connection
	e.cancel()
}

// runSafely calls run. After a panic the worker is killed: it waits for a response.
func (e *outboundCall) runSafely(ctx context.Context, p *payload) {
	defer func() { e.w.panicked("call of a Python model", recover()) }()
	panics.Point("python call")
	e.run(ctx, p)
}

// run passes the call to the engine's Caller and sends the response.
func (e *outboundCall) run(ctx context.Context, p *payload) {
	caller := e.w.model.engine.opts.Caller
	switch {
	case caller == nil:
		e.fail(infer.Errorf(infer.Unavailable, "this server does not serve calls of models to other models"), p.Model, false)
	case p.Do == "load":
		files := make(map[string][]byte, len(p.data))
		for i := range p.data {
			files[p.data[i].Name] = bytes.Clone(p.data[i].Data) // the files outlive the payload
		}
		e.replyEmpty(caller.LoadModel(ctx, p.Model, p.Config, files))
	case p.Do == "unload":
		e.replyEmpty(caller.UnloadModel(ctx, p.Model))
	default:
		e.infer(ctx, caller, p)
	}
}

// replyEmpty sends a response without outputs.
func (e *outboundCall) replyEmpty(err error) {
	p := &payload{}
	if err != nil {
		p.Failed, p.Code, p.Text = true, internalCode, err.Error()
	}
	_ = e.send(p, nil, lastResponse) // a payload without tensors always fits
}

func (e *outboundCall) infer(ctx context.Context, caller engine.ModelCaller, p *payload) {
	parameters, err := decodeParameters(p.Parameters)
	if err != nil {
		e.fail(err, p.Model, false)
		return
	}
	req := &infer.Request{
		Model: p.Model, ID: p.ID, Inputs: p.data, Outputs: p.Outputs, Memory: p.memory, AcceptStream: p.Many,
		Priority: p.Priority, Timeout: time.Duration(min(p.Timeout, maxTimeout)) * time.Microsecond,
		Parameters: parameters, Correlation: p.Correlation, CorrelationName: p.CorrelationName, Flags: p.Flags & (infer.SequenceStart | infer.SequenceEnd),
	}
	if p.Traceparent != "" {
		req.Trace = e.w.model.engine.opts.Tracer.Continue(p.Traceparent, p.Tracestate)
	}
	if p.Version > 0 {
		req.Version = strconv.FormatInt(p.Version, 10)
	}
	var resp infer.Response
	if err := caller.Call(ctx, req, &resp); err != nil {
		e.fail(err, p.Model, !resp.Times.Taken.IsZero())
		return
	}
	if resp.Stream == nil {
		e.reply(&resp, lastResponse)
		resp.Release()
		return
	}
	e.replyStream(ctx, resp.Stream, p.Model)
}

// maxTimeout is the longest time.Duration in microseconds.
const maxTimeout = uint64(1<<63-1) / 1000

// replyStream sends the responses of a decoupled model one after the other.
func (e *outboundCall) replyStream(ctx context.Context, more infer.ResponseStream, model string) {
	defer more.Close()
	for ctx.Err() == nil {
		var resp infer.Response
		err := more.Next(ctx, &resp)
		var flags uint16
		if resp.Last {
			flags = lastResponse
		}
		if err != nil {
			_ = e.send(&payload{Failed: true, Code: internalCode, Text: tritonMessage(err, model, true)}, nil, flags)
		} else {
			e.reply(&resp, flags)
			resp.Release()
		}
		if resp.Last {
			return
		}
	}
}

func (e *outboundCall) reply(resp *infer.Response, flags uint16) {
	p := &payload{}
	if len(resp.Parameters) > 0 {
		p.Parameters = encodeParameters(resp.Parameters)
	}
	// Names and types were validated already. Running out of memory is reported like any other
	// error.
	if err := e.send(p, resp.Outputs, flags); err != nil {
		e.fail(err, resp.Model, true)
	}
}

func (e *outboundCall) fail(err error, model string, ran bool) {
	_ = e.send(&payload{Failed: true, Code: internalCode, Text: tritonMessage(err, model, ran)}, nil, lastResponse)
}

// send sends a payload to the worker. If that fails, it closes the connection, so that the model
// does not take the next response for this one.
func (e *outboundCall) send(p *payload, outputs []tensor.Tensor, flags uint16) error {
	fd, document, size, err := p.encode(outputs)
	if err != nil {
		return err
	}
	f := frame{kind: kindReply, flags: flags, a: uint64(document), b: uint64(size)}
	if memfd.Pass(e.conn, f.append(nil), fd) != nil {
		_ = e.conn.Close() // most likely the worker has died
	}
	return nil
}

// internalCode is Triton's TRITONSERVER_ERROR_INTERNAL. Models receive it whatever the
// reason, as in Triton.
const internalCode = 1

// tritonMessage returns the message that Triton sends for a call that failed. If the
// called model ran, it is the model's own message.
func tritonMessage(err error, model string, ran bool) string {
	if ran {
		return err.Error()
	}
	why := err.Error()
	switch code := infer.CodeOf(err); {
	case errors.Is(err, infer.ErrDecoupled):
		why = fmt.Sprintf("Model %s is using the decoupled. The current BLS request call doesn't support models using the decoupled transaction policy. "+
			"Please use 'decoupled=True' argument to the 'exec' or 'async_exec' calls for decoupled models.'", model)
	case code == infer.NotFound || code == infer.Unavailable:
		why = fmt.Sprintf("Failed for execute the inference request. Model '%s' is not ready.", model)
	}
	return fmt.Sprintf("Model %s - Error when running inference: %s", model, why)
}
