package ensemble

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shoal-serving/shoal/internal/access"
	"github.com/shoal-serving/shoal/internal/buf"
	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/panics"
	"github.com/shoal-serving/shoal/tensor"
)

// run runs the graph for one request, and appends the outputs to out.
func (m *model) run(ctx context.Context, req *infer.Request, out *engine.Outputs) error {
	ctx = access.WithCaller(ctx, req.Caller) // the steps have the caller's rights, and its deadline
	ctx, cancel := withDeadline(ctx, req.Deadline)
	defer cancel()
	r := &run{
		model: m, cancel: cancel, req: req, began: time.Now(), needed: m.graph.needed(req.Outputs),
		values: make([]value, m.graph.tensors), started: make([]bool, len(m.graph.steps)), times: make([]stepTimes, len(m.graph.steps)),
	}
	defer r.release()
	if r.pinned = req.Pinned; r.pinned == nil { // a step of another ensemble uses the versions of that one
		var unpin func()
		r.pinned, unpin = m.engine.Members.Pin(r.members())
		defer unpin()
	}
	r.countOrdered()
	for i, name := range m.graph.inputs {
		v := &r.values[i]
		v.made = true
		if k := slices.IndexFunc(req.Inputs, func(t tensor.Tensor) bool { return t.Name == name }); k >= 0 {
			v.tensor, v.memory, v.given = req.Inputs[k], req.Memory, true
		}
	}
	r.follow(ctx, r.ready())
	r.steps.Wait()
	if r.err != nil {
		return r.err
	}
	m.tally.add(r)
	r.collect(out)
	return nil
}

// withDeadline is [context.WithDeadline], except that zero means none.
func withDeadline(ctx context.Context, at time.Time) (context.Context, context.CancelFunc) {
	if at.IsZero() {
		return context.WithCancel(ctx)
	}
	return context.WithDeadline(ctx, at)
}

// A run is the run of a graph for one request.
type run struct {
	*model
	cancel context.CancelFunc // ends the context of the steps
	req    *infer.Request
	began  time.Time
	needed []bool // by step
	pinned any    // the versions of the members, see Members.Pin

	steps    sync.WaitGroup // goroutines of steps
	unqueued atomic.Int64   // steps of members with sequences that have no place in their order yet

	mu        sync.Mutex  // guards the following until the steps have ended
	started   []bool      // by step
	times     []stepTimes // by step; zero if it did not run
	values    []value     // by tensor
	responses []*infer.Response
	err       error // of the step that failed first
}

// A value is a tensor of the graph in a run.
type value struct {
	tensor tensor.Tensor
	memory *buf.Buf // holds its data; the reference belongs to the request or to a response
	made   bool     // the step that makes it has run; always true for inputs
	given  bool     // it exists: an optional input may be missing, and a model may omit an output
}

// members returns the models of the steps that run.
func (r *run) members() (all []infer.ModelVersion) {
	for i := range r.graph.steps {
		if r.needed[i] {
			all = append(all, infer.ModelVersion{Model: r.graph.steps[i].model, Version: r.graph.steps[i].version})
		}
	}
	return all
}

// countOrdered counts the steps that must have their place in the order of requests before the
// next request of the client may follow.
func (r *run) countOrdered() {
	for i := range r.graph.steps {
		if r.needed[i] && r.graph.steps[i].ordered {
			r.unqueued.Add(1)
		}
	}
	if r.req.Queued != nil && r.unqueued.Load() == 0 {
		r.req.Queued()
	}
}

// queued notes that a step has its place.
func (r *run) queued() {
	if r.unqueued.Add(-1) == 0 {
		r.req.Queued()
	}
}

// ready returns the steps that can start, and marks them as started.
func (r *run) ready() (all []int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.graph.steps {
		waits := slices.ContainsFunc(r.graph.steps[i].inputs, func(p port) bool { return !r.values[p.tensor].made })
		if r.needed[i] && !r.started[i] && !waits {
			r.started[i] = true
			all = append(all, i)
		}
	}
	return all
}

// follow runs steps and those that become ready with them. The first one runs on this
// goroutine: most graphs are chains.
func (r *run) follow(ctx context.Context, ready []int) {
	for len(ready) > 0 {
		for _, s := range ready[1:] {
			r.steps.Go(func() { r.follow(ctx, []int{s}) })
		}
		if !r.runStep(ctx, ready[0]) {
			return
		}
		ready = r.ready()
	}
}

// runStep runs step i, and reports whether it succeeded. If it fails, so does the request,
// and the other steps are cancelled.
func (r *run) runStep(ctx context.Context, i int) (ok bool) {
	s, began := &r.graph.steps[i], time.Now()
	defer func() {
		if cause := recover(); cause != nil {
			panics.Report(r.engine.Log, "step of an ensemble", cause, "ensemble", r.graph.name, "model", s.model)
			r.fail(infer.Errorf(infer.Internal, "internal error in a step; the server's log has the details"))
			ok = false
		}
	}()
	panics.Point("ensemble")
	req, release := r.request(s)
	defer release()
	resp := &infer.Response{}
	if err := r.engine.Members.Call(ctx, req, resp); err != nil {
		r.fail(err)
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.responses = append(r.responses, resp)
	r.times[i] = stepTimes{began: began, ended: time.Now(), queue: resp.Times.Taken.Sub(resp.Times.Queued), compute: resp.Times.RunEnded.Sub(resp.Times.RunStarted)}
	for _, p := range s.outputs {
		v := &r.values[p.tensor]
		v.made = true
		if k := slices.IndexFunc(resp.Outputs, func(t tensor.Tensor) bool { return t.Name == p.name }); k >= 0 {
			v.tensor, v.memory, v.given = resp.Outputs[k], resp.Memory, true
		}
	}
	return true
}

// request returns the request of a step. The caller calls release when the request has
// been answered.
func (r *run) request(s *step) (req *infer.Request, release func()) {
	from := r.req
	req = &infer.Request{
		ID: from.ID, Model: s.model, Version: s.version, Outputs: s.wanted, Client: from.Client, Parameters: from.Parameters,
		Correlation: from.Correlation, CorrelationName: from.CorrelationName, Flags: from.Flags, Priority: from.Priority, Pinned: r.pinned, Trace: from.Trace.Child(),
	}
	if s.ordered && from.Queued != nil {
		req.Queued = r.queued
	}
	if from.Timeout > 0 {
		req.Timeout = max(1, from.Timeout-time.Since(r.began))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	var held []*buf.Buf
	for _, p := range s.inputs {
		v := &r.values[p.tensor]
		if !v.given {
			continue // if the member needs it, it says so
		}
		t := adapt(v.tensor, rankOf(p.rank, s.batched))
		t.Name = p.name
		req.Inputs = append(req.Inputs, t)
		held = append(held, v.memory)
	}
	req.Memory = hold(held)
	return req, req.Memory.Release
}

// fail ends the run with the error of a step, unless one has failed before.
func (r *run) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err == nil {
		in := infer.Errorf(infer.CodeOf(err), "in ensemble '%s', %w", r.graph.name, err)
		if e, ok := errors.AsType[*infer.Error](err); ok {
			in.RetryAfter, in.Hint = e.RetryAfter, e.Hint
		}
		r.err = in
	}
	r.cancel()
}

// collect appends the outputs of the ensemble to out, which gets a reference to their
// memory.
func (r *run) collect(out *engine.Outputs) {
	var held []*buf.Buf
	for _, o := range r.graph.outputs {
		v := &r.values[o.tensor]
		if !v.made || !v.given {
			continue // not asked for, or omitted by the model
		}
		t := adapt(v.tensor, rankOf(o.rank, r.graph.batched))
		t.Name = o.name
		out.Tensors = append(out.Tensors, t)
		held = append(held, v.memory)
	}
	out.Memory = hold(held)
}

// release releases the responses of the steps. Steps that may still read them have
// references of their own.
func (r *run) release() {
	for _, resp := range r.responses {
		resp.Release()
	}
}

// hold returns a buffer that keeps others until its last release; nil if there are none. It
// takes its own references. One buffer is held without another one around it.
func hold(all []*buf.Buf) *buf.Buf {
	var each []*buf.Buf
	for _, b := range all {
		if b != nil && !slices.Contains(each, b) {
			b.Retain()
			each = append(each, b)
		}
	}
	switch len(each) {
	case 0:
		return nil
	case 1:
		return each[0]
	}
	return buf.Wrap(nil, func() {
		for _, b := range each {
			b.Release()
		}
	})
}
