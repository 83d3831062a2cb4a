package python

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/memfd"
	"github.com/shoal-serving/shoal/tensor"
)

// maxErrands is how many requests a worker may have under way at once.
const maxErrands = 1024

// An errand is a request that a model makes of another model, or of itself, or what
// it wants loaded or unloaded. It ends
// when it is answered, or when the worker dies or wants no answer any more, or when
// everybody has left whose requests the worker ran when it began.
type errand struct {
	w      *worker
	line   *net.UnixConn
	cancel context.CancelFunc
}

// errandOf begins what a frame asks for. It takes the descriptors over.
func (w *worker) errandOf(f frame, fds []int) error {
	defer func() { memfd.CloseAll(fds) }()
	if len(fds) != 2 {
		return fmt.Errorf("a call with %d descriptors, expected 2", len(fds))
	}
	p, err := readParcel(fds[1], f.a, f.b)
	if err != nil {
		return err
	}
	line, err := lineOf(fds[0])
	fds = fds[1:]
	if err != nil {
		p.release()
		return err
	}
	ctx, cancel := context.WithCancel(w.living)
	e := &errand{w: w, line: line, cancel: cancel}
	run := w.run.Load()
	if run != nil {
		run.add(e)
	}
	w.over.Go(func() {
		defer cancel()
		if w.errands.Add(1) > maxErrands {
			e.fail(infer.Errorf(infer.Overloaded, "found more than %d calls at once, expected no more", maxErrands), p.Model, false)
		} else {
			e.do(ctx, p)
		}
		w.errands.Add(-1)
		p.release()
		if run != nil {
			run.remove(e)
		}
		_ = line.Close() // which ends the watch
	})
	w.over.Go(func() { e.watch() })
	return nil
}

// watch ends the errand when the worker closes its end.
func (e *errand) watch() {
	var b [1]byte
	_, _ = e.line.Read(b[:]) // a worker has nothing to say here
	e.cancel()
}

// do asks whoever answers calls of models.
func (e *errand) do(ctx context.Context, p *parcel) {
	caller := e.w.model.engine.opts.Caller
	switch {
	case caller == nil:
		e.fail(infer.Errorf(infer.Unavailable, "nothing here answers calls of models"), p.Model, false)
	case p.Do == "load":
		files := make(map[string][]byte, len(p.data))
		for i := range p.data {
			files[p.data[i].Name] = bytes.Clone(p.data[i].Data) // which are kept for longer than the parcel
		}
		e.done(caller.LoadModel(ctx, p.Model, p.Config, files))
	case p.Do == "unload":
		e.done(caller.UnloadModel(ctx, p.Model))
	default:
		e.infer(ctx, caller, p)
	}
}

// done replies to what has no outputs.
func (e *errand) done(err error) {
	p := &parcel{}
	if err != nil {
		p.Failed, p.Code, p.Text = true, internalCode, err.Error()
	}
	_ = e.send(p, nil, lastOne) // it fits
}

func (e *errand) infer(ctx context.Context, caller engine.Caller, p *parcel) {
	parameters, err := decodeParameters(p.Parameters)
	if err != nil {
		e.fail(err, p.Model, false)
		return
	}
	req := &infer.Request{
		Model: p.Model, ID: p.ID, Inputs: p.data, Outputs: p.Outputs, Memory: p.memory, Many: p.Many,
		Priority: p.Priority, Timeout: time.Duration(min(p.Timeout, maxTimeout)) * time.Microsecond,
		Parameters: parameters, Correlation: p.Correlation, CorrelationName: p.CorrelationName, Flags: p.Flags & (infer.SequenceStart | infer.SequenceEnd),
	}
	if p.Version > 0 {
		req.Version = strconv.FormatInt(p.Version, 10)
	}
	var resp infer.Response
	if err := caller.Call(ctx, req, &resp); err != nil {
		e.fail(err, p.Model, !resp.Times.Taken.IsZero())
		return
	}
	if resp.More == nil {
		e.reply(&resp, lastOne)
		resp.Release()
		return
	}
	e.pass(ctx, resp.More, p.Model)
}

// maxTimeout is the longest in microseconds that a duration can say.
const maxTimeout = uint64(1<<63-1) / 1000

// pass replies with one response after the other.
func (e *errand) pass(ctx context.Context, more infer.More, model string) {
	defer more.Close()
	for ctx.Err() == nil {
		var resp infer.Response
		err := more.Next(ctx, &resp)
		var flags uint16
		if resp.Last {
			flags = lastOne
		}
		if err != nil {
			_ = e.send(&parcel{Failed: true, Code: internalCode, Text: texted(err, model, true)}, nil, flags)
		} else {
			e.reply(&resp, flags)
			resp.Release()
		}
		if resp.Last {
			return
		}
	}
}

func (e *errand) reply(resp *infer.Response, flags uint16) {
	p := &parcel{}
	if len(resp.Parameters) > 0 {
		p.Parameters = encodeParameters(resp.Parameters)
	}
	// Names and types were checked. What does not fit into memory is an error like any.
	if err := e.send(p, resp.Outputs, flags); err != nil {
		e.fail(err, resp.Model, true)
	}
}

func (e *errand) fail(err error, model string, ran bool) {
	_ = e.send(&parcel{Failed: true, Code: internalCode, Text: texted(err, model, ran)}, nil, lastOne)
}

// send passes a parcel to the worker. That the worker is gone is no error: nobody is
// there to be told.
func (e *errand) send(p *parcel, outputs []tensor.Tensor, flags uint16) error {
	fd, document, size, err := p.pack(outputs)
	if err != nil {
		return err
	}
	f := frame{kind: kindReply, flags: flags, a: uint64(document), b: uint64(size)}
	_ = memfd.Pass(e.line, f.append(nil), fd)
	return nil
}

// internalCode is Triton's: a model is told it whatever the reason, as in Triton.
const internalCode = 1

// texted says in Triton's words why a call failed. Those of a model that ran are its
// own.
func texted(err error, model string, ran bool) string {
	if ran {
		return err.Error()
	}
	why := err.Error()
	switch code := infer.CodeOf(err); {
	case errors.Is(err, infer.ErrMany):
		why = fmt.Sprintf("Model %s is using the decoupled. The current BLS request call doesn't support models using the decoupled transaction policy. "+
			"Please use 'decoupled=True' argument to the 'exec' or 'async_exec' calls for decoupled models.'", model)
	case code == infer.NotFound || code == infer.Unavailable:
		why = fmt.Sprintf("Failed for execute the inference request. Model '%s' is not ready.", model)
	}
	return fmt.Sprintf("Model %s - Error when running inference: %s", model, why)
}
