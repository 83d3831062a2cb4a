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
// parameters; see [Speed].
func (e *Engine) Load(_ context.Context, src engine.Source) (engine.Model, error) {
	speed, err := ParseSpeed(src.Config.Parameters)
	if err != nil {
		return nil, err
	}
	for _, spec := range src.Config.Outputs {
		if spec.Type == tensor.Bytes {
			return nil, fmt.Errorf("output %s: a simulated model has no outputs of type BYTES", spec.Name)
		}
	}
	m := &model{cfg: src.Config, curve: speed.Curve, began: time.Now(), waiting: map[int]chan struct{}{}}
	m.device.Slowdown = speed.Slowdown
	m.alarm = e.Pacer.Alarm(m.wake)
	return m, nil
}

// A model is one simulated device. All its instances run on it, and slow each
// other down.
type model struct {
	cfg   *modelconfig.Config
	curve device.Curve
	began time.Time
	alarm *pacer.Alarm

	mu      sync.Mutex // guards the following
	device  device.Device
	jobs    int                   // how many there ever were
	waiting map[int]chan struct{} // by job; each is told once when its job has ended
}

// Instance implements [engine.Model].
func (m *model) Instance(context.Context) (engine.Instance, error) {
	return &instance{model: m, ended: make(chan struct{}, 1)}, nil
}

// Close implements [engine.Model].
func (m *model) Close() error {
	m.alarm.Stop()
	return nil
}

// wake ends the jobs whose time has come.
func (m *model) wake() {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Since(m.began)
	for id, at := m.device.Next(); at <= now; id, at = m.device.Next() {
		// It ended when it should have, however late the alarm was: lateness must
		// not add up over those that run beside it.
		m.endLocked(at, id)
	}
	m.setAlarmLocked()
}

func (m *model) endLocked(at device.Time, id int) {
	m.device.End(at, id)
	m.waiting[id] <- struct{}{}
	delete(m.waiting, id)
}

func (m *model) setAlarmLocked() {
	if _, at := m.device.Next(); at != device.Never {
		m.alarm.Set(m.began.Add(at))
	}
}

// compute takes the time of a batch.
func (m *model) compute(ctx context.Context, rows int, ended chan struct{}) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	m.mu.Lock()
	m.jobs++
	id := m.jobs
	m.waiting[id] = ended
	m.device.Start(time.Since(m.began), id, m.curve.Takes(rows))
	m.setAlarmLocked()
	m.mu.Unlock()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
	}
	m.mu.Lock()
	if _, ok := m.waiting[id]; ok {
		m.endLocked(time.Since(m.began), id)
		m.setAlarmLocked()
	}
	m.mu.Unlock()
	<-ended
	return ctx.Err()
}

type instance struct {
	model *model
	ended chan struct{} // size 1, so that nobody waits who tells that a job has ended
	shape []int64
}

// Run implements [engine.Instance].
func (i *instance) Run(ctx context.Context, in []tensor.Tensor, out *engine.Outputs) error {
	rows := 1
	if i.model.cfg.MaxBatchSize > 0 {
		rows = in[0].Rows()
	}
	if err := i.model.compute(ctx, rows, i.ended); err != nil {
		return err
	}
	return i.repeat(in[0].Data, rows, out)
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
		for _, d := range spec.Dims {
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
