package sched

import (
	"sync"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
)

// A Device lets the models that share it take turns, and knows which batches have it
// to themselves.
type Device struct {
	active ActiveBatches

	mu      sync.Mutex // guards the following
	arbiter batching.Arbiter
}

// NewDevice returns a device that runs so many batches at once for models that
// take turns.
func NewDevice(slots int) *Device {
	return &Device{arbiter: batching.Arbiter{Slots: slots}}
}

func (d *Device) ask(s *Scheduler) {
	d.mu.Lock()
	granted := d.arbiter.Ask(&s.share, nil)
	d.mu.Unlock()
	passOn(granted)
}

func (d *Device) yield(s *Scheduler, ran time.Duration) {
	d.mu.Lock()
	granted := d.arbiter.Yield(&s.share, ran, nil)
	d.mu.Unlock()
	passOn(granted)
}

func (d *Device) began(s *Scheduler) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.arbiter.Began(&s.share)
}

func (d *Device) ended(s *Scheduler) {
	d.mu.Lock()
	granted := d.arbiter.Ended(&s.share, nil)
	d.mu.Unlock()
	passOn(granted)
}

func (d *Device) forget(s *Scheduler) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.arbiter.Forget(&s.share)
}

// passOn tells the schedulers whose turn it is. The caller holds no lock.
func passOn(granted []*batching.Share) {
	for _, share := range granted {
		s := share.Owner.(*Scheduler)
		var out batching.Actions
		s.step(batching.Event{Kind: batching.Turn}, &out)
	}
}
