// Package pacer calls functions at exact times.
//
// The timers of the Go runtime are up to a millisecond late on Linux when the
// process is idle, which is longer than many batches wait. A [Pacer] waits on a
// timerfd instead, which the runtime's poller notices within microseconds. One
// pacer serves a whole process.
package pacer

import (
	"container/heap"
	"context"
	"sync"
	"time"
)

// A Pacer keeps alarms. Its methods may be called concurrently.
type Pacer struct {
	clock clock
	done  chan struct{} // closed when the goroutine that waits has ended

	mu     sync.Mutex // guards the following
	queue  queue
	armed  time.Time // what the clock waits for; zero if nothing
	closed bool
}

// A clock waits for one time at a time.
type clock interface {
	// set makes wait return at t, instead of at the time it was set to before.
	set(t time.Time)
	// wait returns when the time has come, perhaps too early, and false when the
	// clock has been closed.
	wait() bool
	close()
}

// New returns a pacer with the most exact clock of the platform. The caller
// closes it.
func New() *Pacer { return start(newClock()) }

// NewPortable returns a pacer on the runtime's own timers. It is what there is
// where no better clock is known, and it follows the fake time of tests.
func NewPortable() *Pacer { return start(newTimerClock()) }

func start(c clock) *Pacer {
	p := &Pacer{clock: c, done: make(chan struct{})}
	go p.run() // ended by Close, which waits for it
	return p
}

// Close ends the pacer, and returns when no alarm's function runs any more.
// Alarms that are set never go off.
func (p *Pacer) Close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.clock.close()
	<-p.done
}

func (p *Pacer) run() {
	defer close(p.done)
	for p.clock.wait() {
		for a := p.due(time.Now()); a != nil; a = p.due(time.Now()) {
			a.f()
		}
	}
}

// due takes out an alarm whose time has come. If there is none it sets the clock
// for the next one and returns nil.
func (p *Pacer) due(now time.Time) *Alarm {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	if len(p.queue) > 0 && !p.queue[0].at.After(now) {
		return heap.Pop(&p.queue).(*Alarm)
	}
	p.armed = time.Time{}
	p.armLocked()
	return nil
}

// armLocked sets the clock if the first alarm is sooner than what it waits for.
func (p *Pacer) armLocked() {
	if len(p.queue) == 0 || p.closed {
		return
	}
	if at := p.queue[0].at; p.armed.IsZero() || at.Before(p.armed) {
		p.armed = at
		p.clock.set(at)
	}
}

// An Alarm calls its function when its time has come. Its methods may be called
// concurrently.
type Alarm struct {
	p    *Pacer
	f    func()
	at   time.Time
	slot int // place in the queue, from 1; 0 if it is not set
}

// Alarm returns an alarm that is not set. f is called on the pacer's own
// goroutine, so it must be short, and must not wait for anything that waits for
// an alarm.
func (p *Pacer) Alarm(f func()) *Alarm { return &Alarm{p: p, f: f} }

// Set makes the alarm go off at t, instead of at the time it was set to before.
func (a *Alarm) Set(t time.Time) {
	a.p.mu.Lock()
	defer a.p.mu.Unlock()
	a.at = t
	if a.slot == 0 {
		heap.Push(&a.p.queue, a)
	} else {
		heap.Fix(&a.p.queue, a.slot-1)
	}
	a.p.armLocked()
}

// Stop makes the alarm not go off. A call of its function that has begun may
// still be running when Stop returns.
func (a *Alarm) Stop() {
	a.p.mu.Lock()
	defer a.p.mu.Unlock()
	if a.slot > 0 {
		heap.Remove(&a.p.queue, a.slot-1)
	}
}

// Sleep returns at t, or earlier with the context's error if that ends.
func (p *Pacer) Sleep(ctx context.Context, t time.Time) error {
	woken := make(chan struct{}, 1) // size 1, so that the pacer never waits for the sleeper
	a := p.Alarm(func() { woken <- struct{}{} })
	a.Set(t)
	select {
	case <-woken:
		return nil
	case <-ctx.Done():
		a.Stop()
		return ctx.Err()
	}
}

// queue is a heap of alarms, the next one first.
type queue []*Alarm

func (q queue) Len() int           { return len(q) }
func (q queue) Less(i, j int) bool { return q[i].at.Before(q[j].at) }

func (q queue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].slot, q[j].slot = i+1, j+1
}

// Push implements [heap.Interface].
func (q *queue) Push(x any) {
	a := x.(*Alarm)
	*q = append(*q, a)
	a.slot = len(*q)
}

// Pop implements [heap.Interface].
func (q *queue) Pop() any {
	old := *q
	a := old[len(old)-1]
	old[len(old)-1] = nil
	*q = old[:len(old)-1]
	a.slot = 0
	return a
}
