// Package simulated is an engine that only takes time. A model that names it as
// its backend behaves like a device whose speed is written in the model's
// parameters, so that batching can be tried, measured and shown without any
// hardware or weights.
//
// Outputs carry no meaning. Each row of an output repeats the bytes of the same
// row of the first input, so that a client can tell its own rows from another's.
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

// Name is the backend that a model's configuration asks for, and what is shown as
// its platform, so that nobody takes it for a real one.
const Name = "simulated"

// Engine implements [engine.Engine].
type Engine struct {
	// Pacer wakes batches at the exact time.
	Pacer *pacer.Pacer
}

var _ engine.Engine = (*Engine)(nil)

// Load implements [engine.Engine]. The speed is read from the model's
// parameters; see [ParseSpeed].
func (e *Engine) Load(_ context.Context, src engine.Source) (engine.Model, error) {
	speed, err := ParseSpeed(src.Config.Parameters)
	if err != nil {
		return nil, err
	}
	if src.Config.Incomplete() {
		return nil, src.Config.Wrong("input", "no inputs or no outputs", "both, because a simulated model has no file that says them")
	}
	if src.Config.Ragged() != nil {
		return nil, src.Config.Wrong("input", "allow_ragged_batch, batch_input or batch_output", "none, because a simulated model knows requests only by their rows")
	}
	for _, spec := range src.Config.Outputs {
		if spec.Type == tensor.Bytes {
			return nil, fmt.Errorf("output %s: a simulated model has no outputs of type BYTES", spec.Name)
		}
	}
	m := &model{cfg: src.Config, curve: speed.Curve, drift: speed.Drift, pacer: e.Pacer, began: time.Now()}
	m.device.Slowdown = speed.Slowdown
	return m, nil
}

// A model is one simulated device. All its instances run on it, and slow each
// other down.
type model struct {
	cfg   *modelconfig.Config
	curve device.Curve
	drift []device.Change
	pacer *pacer.Pacer
	began time.Time

	mu        sync.Mutex // guards the following
	device    device.Device
	instances int // how many there ever were
	busy      []*instance
}

// Instance implements [engine.Model].
func (m *model) Instance(context.Context) (engine.Instance, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.instances++
	i := &instance{model: m, number: m.instances, poked: make(chan struct{}, 1)}
	i.alarm = m.pacer.Alarm(i.poke)
	return i, nil
}

// Close implements [engine.Model].
func (m *model) Close() error { return nil }

func (m *model) now() device.Time { return time.Since(m.began) }

// An instance runs one batch at a time, and waits until the device would have
// computed it.
type instance struct {
	model  *model
	number int
	alarm  *pacer.Alarm
	poked  chan struct{} // size 1: time to look at the device again
	shape  []int64

	// late is how late alarms have been, smoothed. They are set so much earlier,
	// and the rest is waited for without sleeping.
	late time.Duration
}

// Run implements [engine.Instance].
func (i *instance) Run(ctx context.Context, in []tensor.Tensor, out *engine.Outputs) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	rows := 1
	if i.model.cfg.MaxBatchSize > 0 {
		rows = in[0].Rows()
	}
	i.start(rows)
	// What has to be done for real is done while the device computes.
	err := i.repeat(in[0].Data, rows, out)
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

func (i *instance) start(rows int) {
	m := i.model
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now()
	m.device.Start(now, i.number, time.Duration(device.TimesAt(m.drift, now)*float64(m.curve.Takes(rows))))
	m.busy = append(m.busy, i)
}

// end takes the batch off the device. The others may be done sooner now.
func (i *instance) end() {
	m := i.model
	m.mu.Lock()
	defer m.mu.Unlock()
	// One that has ended did so at its time, however late that was noticed.
	m.device.End(min(m.now(), m.device.EndOf(i.number)), i.number)
	m.busy = slices.DeleteFunc(m.busy, func(other *instance) bool { return other == i })
	for _, other := range m.busy {
		other.poke()
	}
}

// poke makes wait look at the device again.
func (i *instance) poke() {
	select {
	case i.poked <- struct{}{}:
	default: // it will look anyway
	}
}

// wait returns when the device has computed the batch, or ctx has ended.
func (i *instance) wait(ctx context.Context) error {
	defer i.alarm.Stop()
	for {
		end := i.endOf()
		left := end - i.model.now()
		switch {
		case left <= 0:
			return nil
		case left <= i.late:
			// Too short to sleep. Somebody else may run meanwhile, and may have
			// changed when this ends.
			runtime.Gosched()
			continue
		}
		wake := end - i.late
		i.alarm.Set(i.model.began.Add(wake))
		select {
		case <-i.poked:
			i.learn(i.model.now() - wake)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// maxLate bounds how long an instance waits without sleeping.
const maxLate = 200 * time.Microsecond

// learn takes in how late an alarm was. One that has not gone off yet, because
// something else woke the instance, says nothing.
func (i *instance) learn(late time.Duration) {
	if late >= 0 {
		i.late = min(maxLate, i.late+(2*late-i.late)/8)
	}
}

func (i *instance) endOf() device.Time {
	i.model.mu.Lock()
	defer i.model.mu.Unlock()
	return i.model.device.EndOf(i.number)
}

// repeat fills the outputs with the rows of the first input, over and over.
func (i *instance) repeat(data []byte, rows int, out *engine.Outputs) error {
	total := 0
	i.shape = i.shape[:0]
	out.Tensors = out.Tensors[:0]
	for _, spec := range i.model.cfg.Outputs {
		from := len(i.shape)
		if i.model.cfg.MaxBatchSize > 0 {
			i.shape = append(i.shape, int64(rows))
		}
		for _, d := range spec.RowDims() {
			i.shape = append(i.shape, max(d, 1)) // a dimension that may have any size has size 1
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
		fillRows(x.Data, data, rows)
	}
	return nil
}

func fillRows(dst, src []byte, rows int) {
	for row := range rows {
		to := dst[row*len(dst)/rows : (row+1)*len(dst)/rows]
		from := src[row*len(src)/rows : (row+1)*len(src)/rows]
		if len(from) == 0 {
			clear(to)
			continue
		}
		for n := copy(to, from); n < len(to); {
			n += copy(to[n:], to[:n])
		}
	}
}

// Close implements [engine.Instance].
func (i *instance) Close() error { return nil }
