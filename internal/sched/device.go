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
func NewDevice(slots int) *Device { return &Device{arbiter: batching.Arbiter{Slots: slots}} }

func (d *Device) ask(s *Scheduler) {
	d.pass(func() []*batching.Share { return d.arbiter.Ask(&s.share, nil) })
}

func (d *Device) yield(s *Scheduler, ran time.Duration) {
	d.pass(func() []*batching.Share { return d.arbiter.Yield(&s.share, ran, nil) })
}

func (d *Device) ended(s *Scheduler) {
	d.pass(func() []*batching.Share { return d.arbiter.Ended(&s.share, nil) })
}

func (d *Device) began(s *Scheduler) {
	d.pass(func() []*batching.Share { d.arbiter.Began(&s.share); return nil })
}

func (d *Device) forget(s *Scheduler) {
	d.pass(func() []*batching.Share { d.arbiter.Forget(&s.share); return nil })
}

// pass tells the arbiter what happened, and then the schedulers whose turn it is. The
// caller holds no lock.
func (d *Device) pass(tell func() (granted []*batching.Share)) {
	d.mu.Lock()
	granted := tell()
	d.mu.Unlock()
	for _, share := range granted {
		share.Owner.(*Scheduler).step(batching.Event{Kind: batching.Turn}, nil)
	}
}
