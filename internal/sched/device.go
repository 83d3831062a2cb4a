package sched

import (
	"sync"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
)

// A Device is hardware that several models share. It decides whose turn it is, and which
// batches run on it exclusively. Its methods may be called concurrently.
type Device struct {
	active activeBatches
	epoch  time.Time // of the arbiter's clock

	mu      sync.Mutex // guards the following
	arbiter batching.Arbiter
}

// NewDevice returns a device on which models that take turns run at most slots batches at
// once.
func NewDevice(slots int) *Device {
	return &Device{epoch: time.Now(), arbiter: batching.Arbiter{Slots: slots}}
}

// ask requests a turn for requests of which the first is due at a time on the scheduler's clock;
// zero if the model has no objective.
func (d *Device) ask(s *Scheduler, due batching.Time) {
	if due != 0 {
		due = max(1, s.at(due).Sub(d.epoch))
	}
	d.notify(func() []*batching.Share {
		s.share.Due = due
		return d.arbiter.Ask(time.Since(d.epoch), &s.share, nil)
	})
}

func (d *Device) yield(s *Scheduler, ran time.Duration) {
	d.notify(func() []*batching.Share { return d.arbiter.Yield(time.Since(d.epoch), &s.share, ran, nil) })
}

func (d *Device) ended(s *Scheduler) {
	d.notify(func() []*batching.Share { return d.arbiter.Ended(time.Since(d.epoch), &s.share, nil) })
}

func (d *Device) began(s *Scheduler) {
	d.notify(func() []*batching.Share { d.arbiter.Began(&s.share); return nil })
}

func (d *Device) forget(s *Scheduler) {
	d.notify(func() []*batching.Share { d.arbiter.Forget(&s.share); return nil })
}

// notify calls report, which reports an event to the arbiter, and then steps the
// schedulers that were granted a turn. The caller must hold no lock, because stepping a
// scheduler takes its lock.
func (d *Device) notify(report func() (granted []*batching.Share)) {
	d.mu.Lock()
	granted := report()
	d.mu.Unlock()
	for _, share := range granted {
		share.Owner.(*Scheduler).step(batching.Event{Kind: batching.Turn}, nil)
	}
}
