// Package simulated is an engine that takes time and computes nothing. A model with this
// backend behaves like a device whose speed is set in the model's parameters, so that
// batching can be tried, measured and demonstrated without hardware or weights.
//
// Outputs carry no meaning. Each row of an output repeats the bytes of the same row of the
// first input, so that a client can verify that it got its own rows. They are zero if the request
// omits that input.
package simulated

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/shoal-serving/shoal/internal/buf"
	"github.com/shoal-serving/shoal/internal/device"
	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/modelconfig"
	"github.com/shoal-serving/shoal/internal/pacer"
	"github.com/shoal-serving/shoal/tensor"
)

// Name is the name of the backend in a model's configuration. It is also reported as the
// platform, so that a simulated model is not mistaken for a real one.
const Name = "simulated"

// Engine implements [engine.Engine].
type Engine struct {
	// Pacer wakes batches on time. It is required.
	Pacer *pacer.Pacer

	mu      sync.Mutex           // guards the following
	devices map[string]*hardware // that models share, by name
}

var (
	_ engine.Engine       = (*Engine)(nil)
	_ engine.DeviceSharer = (*Engine)(nil)
)

// SharedDevice implements [engine.DeviceSharer]: models with the same parameter device share
// one.
func (e *Engine) SharedDevice(cfg *modelconfig.Config) string { return cfg.Parameters["device"] }

// Load implements [engine.Engine]. It reads the speed from the model's parameters; see
// [ParseSpeed].
func (e *Engine) Load(ctx context.Context, src engine.Source) (engine.Model, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	speed, err := ParseSpeed(src.Config.Parameters)
	if err != nil {
		return nil, err
	}
	if src.Config.Incomplete() {
		return nil, src.Config.Wrong("input", "no inputs or no outputs", "both, because a simulated model has no file that defines them")
	}
	if src.Config.Ragged() != nil {
		return nil, src.Config.Invalid("input", "simulated models do not support ragged batches; remove allow_ragged_batch, batch_input and batch_output")
	}
	if err := src.Config.CompletePadding(); err != nil {
		return nil, err
	}
	for _, spec := range src.Config.Outputs {
		if spec.Type == tensor.Bytes {
			return nil, fmt.Errorf("output %s: a simulated model has no outputs of type BYTES", spec.Name)
		}
	}
	m := &model{cfg: src.Config, curve: speed.Curve, perElement: speed.PerElement, drift: speed.Drift, pacer: e.Pacer, hardware: e.hardware(speed)}
	m.loaded = m.now()
	return m, nil
}

// hardware returns the device of a model with the given speed: one of its own, or one that it
// shares. A shared device stays for models that are loaded later.
func (e *Engine) hardware(speed Speed) *hardware {
	if speed.Device == "" {
		return &hardware{began: time.Now(), device: device.Device{Slowdown: speed.Slowdown}}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	h := e.devices[speed.Device]
	if h == nil {
		h = &hardware{began: time.Now(), device: device.Device{Slowdown: evenly}}
		if e.devices == nil {
			e.devices = map[string]*hardware{}
		}
		e.devices[speed.Device] = h
	}
	return h
}

// evenly is the slowdown of a shared device: batches that run at once share its time. Models
// take turns, so only those with an explicit number of instances ever do.
var evenly = func() (factors []float64) {
	for n := range 64 {
		factors = append(factors, float64(n+1))
	}
	return factors
}()

// hardware is one simulated device. All instances on it slow each other down.
type hardware struct {
	began time.Time

	mu        sync.Mutex // guards the following
	device    device.Device
	instances int // created so far
	busy      []*instance
}

// A model is a simulated model on its device.
type model struct {
	cfg        *modelconfig.Config
	curve      device.Curve
	drift      []device.Change
	perElement time.Duration
	pacer      *pacer.Pacer
	loaded     device.Time // when the model was loaded, on the clock of its device
	*hardware
}

// Instance implements [engine.Model].
func (m *model) Instance(context.Context) (engine.Instance, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.instances++
	i := &instance{model: m, number: m.instances, wakeups: make(chan struct{}, 1)}
	i.alarm = m.pacer.Alarm(i.wake)
	return i, nil
}

// Close implements [engine.Model].
func (m *model) Close() error { return nil }

func (h *hardware) now() device.Time { return time.Since(h.began) }

// An instance runs one batch at a time: it waits until the simulated device has computed
// the batch.
type instance struct {
	model   *model
	number  int
	alarm   *pacer.Alarm
	wakeups chan struct{} // size 1: the alarm went off, or the end of the batch has changed
	shape   []int64
	omitted tensor.Tensor // in place of a first input that is optional and not given; empty

	// alarmLag is a moving estimate of how late alarms are. Alarms are set earlier by
	// this much, and the instance spins for the rest of the time.
	alarmLag time.Duration
}

// Run implements [engine.Instance].
func (i *instance) Run(ctx context.Context, in []tensor.Tensor, out *engine.Outputs) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	rows, elements, first := 1, int64(0), &i.omitted
	if len(in) > 0 && in[0].Name == i.model.cfg.Inputs[0].Name {
		first = &in[0]
		elements, _ = tensor.Elements(first.Shape) // the request was checked
	}
	if i.model.cfg.MaxBatchSize > 0 {
		rows = first.Rows() // models with a batch dimension get all their inputs
	}
	i.start(rows, elements)
	// Fill the outputs while the device computes, so that it takes no extra time.
	err := i.fillOutputs(first, rows, out)
	if err == nil {
		err = i.wait(ctx)
	}
	i.end()
	if err != nil {
		out.Memory.Release()
		out.Memory = nil
	}
	return err
}

func (i *instance) start(rows int, elements int64) {
	m := i.model
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now()
	m.device.Start(now, i.number, time.Duration(device.TimesAt(m.drift, now-m.loaded)*float64(m.curve.Takes(rows)+time.Duration(elements)*m.perElement)))
	m.busy = append(m.busy, i)
}

// end removes the batch from the device, and wakes the other instances, whose batches may
// now end sooner.
func (i *instance) end() {
	m := i.model
	m.mu.Lock()
	defer m.mu.Unlock()
	// A batch that is complete ended at its exact time, however late this is called.
	m.device.End(min(m.now(), m.device.EndOf(i.number)), i.number)
	m.busy = slices.DeleteFunc(m.busy, func(other *instance) bool { return other == i })
	for _, other := range m.busy {
		other.wake()
	}
}

// wake makes wait check the device again.
func (i *instance) wake() {
	select {
	case i.wakeups <- struct{}{}:
	default: // a wakeup is already pending
	}
}

// wait returns when the device has computed the batch, or when ctx has ended.
func (i *instance) wait(ctx context.Context) error {
	defer i.alarm.Stop()
	for {
		end := i.endTime()
		left := end - i.model.now()
		switch {
		case left <= 0:
			return nil
		case left <= i.alarmLag:
			// Too short to sleep. Another goroutine may change the end of this batch
			// meanwhile, so check again.
			runtime.Gosched()
			continue
		}
		wake := end - i.alarmLag
		i.alarm.Set(i.model.began.Add(wake))
		select {
		case <-i.wakeups:
			i.observeLag(i.model.now() - wake)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// maxSpin bounds how long an instance spins.
const maxSpin = 200 * time.Microsecond

// observeLag updates alarmLag with one sample. A negative sample means that something other
// than the alarm woke the instance, and is ignored.
func (i *instance) observeLag(lag time.Duration) {
	if lag >= 0 {
		i.alarmLag = min(maxSpin, i.alarmLag+(2*lag-i.alarmLag)/8)
	}
}

func (i *instance) endTime() device.Time {
	i.model.mu.Lock()
	defer i.model.mu.Unlock()
	return i.model.device.EndOf(i.number)
}

// fillOutputs allocates the outputs, and fills each row with repetitions of the same row of
// the first input.
func (i *instance) fillOutputs(in *tensor.Tensor, rows int, out *engine.Outputs) error {
	total, variable := 0, i.variableSize(in)
	i.shape = i.shape[:0]
	out.Tensors = out.Tensors[:0]
	for _, spec := range i.model.cfg.Outputs {
		from := len(i.shape)
		if i.model.cfg.MaxBatchSize > 0 {
			i.shape = append(i.shape, int64(rows))
		}
		for _, d := range spec.RowDims() {
			if d == -1 {
				d = variable
			}
			i.shape = append(i.shape, d)
		}
		x := tensor.Tensor{Name: spec.Name, Type: spec.Type, Shape: i.shape[from:len(i.shape):len(i.shape)]}
		size, err := tensor.ByteSize(x.Type, x.Shape)
		if err != nil {
			return fmt.Errorf("output %s: %w", x.Name, err)
		}
		total += int(size)
		out.Tensors = append(out.Tensors, x)
	}
	out.Memory = buf.Get(total)
	rest := out.Memory.B
	for k := range out.Tensors {
		x := &out.Tensors[k]
		size, _ := tensor.ByteSize(x.Type, x.Shape)
		x.Data, rest = rest[:size:size], rest[size:]
		repeatRows(x.Data, in.Data, rows)
	}
	return nil
}

// variableSize returns the size of variable dimensions of outputs: that of the first variable
// dimension of the first input, or 1 if it has none.
func (i *instance) variableSize(in *tensor.Tensor) int64 {
	dims := i.model.cfg.Inputs[0].RowDims()
	if at := slices.Index(dims, -1); at >= 0 && len(in.Shape) >= len(dims) {
		return in.Shape[len(in.Shape)-len(dims)+at]
	}
	return 1
}

// maxCopy is how much is copied at once. Go cannot interrupt a copy, not even to collect garbage,
// for which all other goroutines would wait.
const maxCopy = 1 << 20

// repeatRows fills each row of dst with repetitions of the same row of src.
func repeatRows(dst, src []byte, rows int) {
	for row := range rows {
		to := dst[row*len(dst)/rows : (row+1)*len(dst)/rows]
		from := src[row*len(src)/rows : (row+1)*len(src)/rows]
		if len(from) == 0 {
			clear(to)
			continue
		}
		for n := 0; n < len(to); {
			next := from[min(n, len(from)):]
			if len(next) == 0 {
				next = to[n%len(from) : n] // twice as much each time
			}
			n += copy(to[n:min(n+maxCopy, len(to))], next)
		}
	}
}

// Close implements [engine.Instance].
func (i *instance) Close() error { return nil }
