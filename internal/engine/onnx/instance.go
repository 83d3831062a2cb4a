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

// A model has for each of its devices a session that all instances there share, and perhaps
// a second one for exclusive batches.
type model struct {
	cfg             *modelconfig.Config
	devices         []*device // at least one
	call            onnxruntime.CallOptions
	modelInputs     []modelconfig.Tensor // with the controls and states of sequences
	modelOutputs    []modelconfig.Tensor // with the states of sequences
	inputs, outputs []bool               // true for tensors whose rows are scalars in the file; see scalars
	nice            int

	mu sync.Mutex // guards the counts of the devices' instances
}

// A session is a loaded file, with its own threads if it computes batches on several.
type session struct {
	*onnxruntime.Session
	peak batchPeak // largest batch that used its memory
}

// scalars reports for each tensor of the configuration whether it has a dimension of size
// 1 that the model's file does not have.
func (m *model) scalars(tensors []modelconfig.Tensor, ports []onnxruntime.Port) []bool {
	var all []bool
	for _, t := range tensors {
		at := slices.IndexFunc(ports, func(p onnxruntime.Port) bool { return p.Name == t.Name })
		p := ports[at]                                              // found: the configuration was checked
		one := slices.Equal(t.Dims, []int64{1}) && t.Reshape == nil // a reshape already gives the file's shape
		all = append(all, one && m.cfg.Scalar(modelconfig.Port{Dims: p.Dims, AnyShape: p.AnyShape}))
	}
	return all
}

// Instance implements [engine.Model].
func (m *model) Instance(context.Context) (engine.Instance, error) {
	m.mu.Lock()
	d := leastUsed(m.devices)
	d.open++
	m.mu.Unlock()
	i := &instance{model: m, device: d, thread: thread{nice: m.nice}}
	for _, s := range []*session{d.shared, d.exclusive} {
		if s == nil {
			continue
		}
		c, err := s.NewCall(m.inputNames(), names(m.modelOutputs), m.call)
		if err != nil {
			return nil, errors.Join(withCode(err), i.Close())
		}
		i.calls = append(i.calls, call{c, s})
	}
	return i, nil
}

// inputNames returns the names of the inputs in the order in which Run gets them: inputs
// of requests, then batch inputs.
func (m *model) inputNames() []string {
	all := names(m.modelInputs)
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
	var errs []error
	for _, d := range m.devices {
		errs = append(errs, d.Close())
	}
	return errors.Join(errs...)
}

// An instance is the right to run one batch at a time.
type instance struct {
	model  *model
	device *device
	calls  []call // for the shared session and, if there is one, the exclusive session
	thread thread
	in     []tensor.Tensor // the inputs in the file's shapes
	shapes []int64         // backing array for output shapes that convertOutputs extends

	mu      sync.Mutex // guards the following
	watched int        // number of contexts watched so far
	stopped bool       // the watched context has ended, and the calls were terminated

	// The scheduler reuses a context from batch to batch. Such a context is watched only
	// once, which saves allocations. It is recognised by its Done channel.
	done    <-chan struct{}
	unwatch func() bool
}

// A call runs batches in a session.
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
	done := ctx.Done() // before Err, because contexts that have ended may share a channel
	if err := ctx.Err(); err != nil {
		return err
	}
	i.watchContext(ctx, done)
	if i.model.call.CanShrink && c.session.peak.observe(infer.DataSize(in)) {
		c.Shrink()
	}
	in = i.dropUnitDims(in)
	i.thread.lower()
	tensors, memory, err := c.Run(in, out.Tensors[:0])
	i.thread.raise()
	clear(i.in) // do not keep references to the caller's memory
	if err != nil {
		if ended := ctx.Err(); ended != nil {
			return ended
		}
		return withCode(err)
	}
	if err := i.convertOutputs(tensors); err != nil {
		memory.Release()
		return err
	}
	out.Tensors, out.Memory = tensors, memory
	return nil
}

// dropUnitDims returns the inputs without the dimensions of size 1 that the model's file
// does not have.
func (i *instance) dropUnitDims(in []tensor.Tensor) []tensor.Tensor {
	i.in = append(i.in[:0], in...)
	rest := i.in // of which the optional ones may be missing
	for k, scalar := range i.model.inputs {
		if len(rest) == 0 || i.model.modelInputs[k].Optional && rest[0].Name != i.model.modelInputs[k].Name {
			continue
		}
		if shape := rest[0].Shape; scalar && len(shape) > 0 {
			rest[0].Shape = shape[:len(shape)-1]
		}
		rest = rest[1:]
	}
	return i.in
}

// convertOutputs checks the types of the outputs, and adds the dimensions of size 1 that
// the configuration has and the model's file does not.
func (i *instance) convertOutputs(out []tensor.Tensor) error {
	i.shapes = i.shapes[:0]
	for k := range out {
		t, want := &out[k], &i.model.modelOutputs[k]
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

// watchContext terminates the call when ctx ends, whose channel is done. It stops watching
// the previous context.
func (i *instance) watchContext(ctx context.Context, done <-chan struct{}) {
	if done == i.done {
		return
	}
	i.unwatchContext()
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

// unwatchContext stops watching the current context. If that has ended, it makes the calls
// usable again.
func (i *instance) unwatchContext() {
	if i.unwatch != nil {
		i.unwatch()
	}
	i.done, i.unwatch = nil, nil
	i.mu.Lock()
	defer i.mu.Unlock()
	i.watched++ // disables a callback that has started but does not hold the lock yet
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
	i.unwatchContext()
	for _, c := range i.calls {
		c.Close()
	}
	i.model.mu.Lock()
	i.device.open--
	i.model.mu.Unlock()
	return nil
}
