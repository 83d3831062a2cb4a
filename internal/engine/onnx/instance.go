package onnx

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/engine/onnx/onnxruntime"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/modelconfig"
	"github.com/shoal-serving/shoal/tensor"
)

// A model is one session, which all its instances run, or two.
type model struct {
	cfg             *modelconfig.Config
	shared          *session // of batches that share the device with others
	exclusive       *session // of exclusive batches; nil if they run as all others do
	call            onnxruntime.CallOptions
	inputs, outputs []bool // which of them are scalars for the model
	nice            int
}

// A session is a loaded file, with threads of its own if a batch has several.
type session struct {
	*onnxruntime.Session
	largest peak // of the batches that used its memory
}

// scalars says which of the configuration's tensors have a dimension of size 1
// there that the model does not have.
func (m *model) scalars(tensors []modelconfig.Tensor, ports []onnxruntime.Port) []bool {
	var all []bool
	for _, t := range tensors {
		at := slices.IndexFunc(ports, func(p onnxruntime.Port) bool { return p.Name == t.Name })
		p := ports[at]                                              // it is there: the configuration was checked
		one := slices.Equal(t.Dims, []int64{1}) && t.Reshape == nil // otherwise the shape is the model's already
		all = append(all, one && m.cfg.Scalar(modelconfig.Port{Dims: p.Dims, AnyShape: p.AnyShape}))
	}
	return all
}

// Instance implements [engine.Model].
func (m *model) Instance(context.Context) (engine.Instance, error) {
	i := &instance{model: m, thread: thread{nice: m.nice}}
	for _, s := range []*session{m.shared, m.exclusive} {
		if s == nil {
			continue
		}
		c, err := s.NewCall(m.inputNames(), names(m.cfg.Outputs), m.call)
		if err != nil {
			return nil, errors.Join(coded(err), i.Close())
		}
		i.calls = append(i.calls, call{c, s})
	}
	return i, nil
}

// inputNames returns the inputs as Run gets them: those of requests, then those of
// the batch.
func (m *model) inputNames() []string {
	all := names(m.cfg.Inputs)
	for _, b := range m.cfg.BatchInputs {
		all = append(all, b.Name)
	}
	return all
}

func names(tensors []modelconfig.Tensor) []string {
	var all []string
	for _, t := range tensors {
		all = append(all, t.Name)
	}
	return all
}

// Close implements [engine.Model].
func (m *model) Close() error {
	m.shared.Close()
	if m.exclusive != nil {
		m.exclusive.Close()
	}
	return nil
}

// An instance is the right to run one batch at a time.
type instance struct {
	model  *model
	calls  []call // of the shared session, and of the exclusive one if there is one
	thread thread
	in     []tensor.Tensor // the batch as the model wants it
	shapes []int64         // of outputs that the model has no dimensions for

	mu      sync.Mutex // guards the following
	watched int        // how many contexts have been watched
	stopped bool       // the one that is watched has ended, and the call been told so

	// A context that comes again, as that of the scheduler does for each batch, is
	// watched once, which saves its allocations; its channel tells it from others.
	done    <-chan struct{}
	unwatch func() bool
}

// A call is what runs batches in a session.
type call struct {
	*onnxruntime.Call
	session *session
}

// Run implements [engine.Instance].
func (i *instance) Run(ctx context.Context, in []tensor.Tensor, out *engine.Outputs) error {
	return i.run(ctx, &i.calls[0], in, out)
}

// RunExclusive implements [engine.ExclusiveRunner].
func (i *instance) RunExclusive(ctx context.Context, in []tensor.Tensor, out *engine.Outputs) error {
	return i.run(ctx, &i.calls[len(i.calls)-1], in, out)
}

func (i *instance) run(ctx context.Context, c *call, in []tensor.Tensor, out *engine.Outputs) error {
	done := ctx.Done() // before Err: contexts that have ended may share a channel
	if err := ctx.Err(); err != nil {
		return err
	}
	i.watch(ctx, done)
	if i.model.call.CanShrink && c.session.largest.passed(size(in)) {
		c.Shrink()
	}
	in = i.arrange(in)
	i.thread.lower()
	tensors, memory, err := c.Run(in, out.Tensors[:0])
	i.thread.raise()
	clear(i.in) // they are the caller's
	if err != nil {
		if ended := ctx.Err(); ended != nil {
			return ended
		}
		return coded(err)
	}
	if err := i.complete(tensors); err != nil {
		memory.Release()
		return err
	}
	out.Tensors, out.Memory = tensors, memory
	return nil
}

// arrange takes the dimensions of size 1 away that the model does not have.
func (i *instance) arrange(in []tensor.Tensor) []tensor.Tensor {
	i.in = append(i.in[:0], in...)
	for k, scalar := range i.model.inputs {
		if shape := i.in[k].Shape; scalar && len(shape) > 0 {
			i.in[k].Shape = shape[:len(shape)-1]
		}
	}
	return i.in
}

// complete makes the outputs of the model those of the configuration.
func (i *instance) complete(out []tensor.Tensor) error {
	i.shapes = i.shapes[:0]
	for k := range out {
		t, want := &out[k], &i.model.cfg.Outputs[k]
		if t.Type != want.Type {
			return infer.Errorf(infer.Internal, "output %s of the model has type %v, expected %v", t.Name, t.Type, want.Type)
		}
		if i.model.outputs[k] && len(t.Shape) < 2 {
			from := len(i.shapes)
			i.shapes = append(append(i.shapes, t.Shape...), 1)
			t.Shape = i.shapes[from:len(i.shapes):len(i.shapes)]
		}
	}
	return nil
}

// watch terminates the call when ctx ends, whose channel is done. The end of any other
// context has no effect on it.
func (i *instance) watch(ctx context.Context, done <-chan struct{}) {
	if done == i.done {
		return
	}
	i.forget()
	if done == nil {
		return
	}
	i.mu.Lock()
	number := i.watched
	i.mu.Unlock()
	i.done = done
	i.unwatch = context.AfterFunc(ctx, func() {
		i.mu.Lock()
		defer i.mu.Unlock()
		if number == i.watched {
			i.stopped = true
			i.terminate(true)
		}
	})
}

// forget ends the watch of a context. If it has ended, the next run may start all
// the same.
func (i *instance) forget() {
	if i.unwatch != nil {
		i.unwatch()
	}
	i.done, i.unwatch = nil, nil
	i.mu.Lock()
	defer i.mu.Unlock()
	i.watched++ // one that is ending just now comes too late
	if i.stopped {
		i.stopped = false
		i.terminate(false)
	}
}

func (i *instance) terminate(on bool) {
	for _, c := range i.calls {
		c.Terminate(on)
	}
}

// Close implements [engine.Instance].
func (i *instance) Close() error {
	i.forget()
	for _, c := range i.calls {
		c.Close()
	}
	return nil
}
