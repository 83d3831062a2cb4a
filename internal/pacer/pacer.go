// Package pacer calls functions at given times, with microsecond precision.
//
// Timers of the Go runtime are up to a millisecond late on Linux when the process is idle,
// which is longer than many batches wait. A [Pacer] waits on a timerfd instead, which wakes
// the runtime's poller within microseconds. One pacer serves a whole process.
package pacer

import (
	"container/heap"
	"context"
	"sync"
	"time"
)

// A Pacer manages alarms and calls their functions, on one goroutine. Its methods may be
// called concurrently.
type Pacer struct {
	clock clock
	done  chan struct{} // closed when the goroutine has ended

	mu     sync.Mutex // guards the following
	queue  queue
	armed  time.Time // the time that the clock is set to; zero if it is not set
	closed bool
}

// A clock waits for one time at a time.
type clock interface {
	// set makes wait return at t. It replaces the time that was set before.
	set(t time.Time)
	// wait returns true at the time that was set, or perhaps earlier, and false when the
	// clock has been closed.
	wait() bool
	close()
}

// New returns a pacer with the most precise clock of the platform. The caller must close
// it.
func New() *Pacer { return start(newClock()) }

// NewPortable returns a pacer that uses timers of the Go runtime. [New] does so on platforms
// without a better clock. It works with the fake clock of testing/synctest. The caller must
// close it.
func NewPortable() *Pacer { return start(newTimerClock()) }

func start(c clock) *Pacer {
	p := &Pacer{clock: c, done: make(chan struct{})}
	go p.run() // Close ends it and waits for it
	return p
}

// Close stops the pacer and waits for an alarm's function that is running. Alarms that are
// still set never go off.
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

// due removes and returns an alarm that is due. If there is none, it sets the clock for the
// next one and returns nil.
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

// armLocked sets the clock if the first alarm is earlier than the time it is set to.
func (p *Pacer) armLocked() {
	if len(p.queue) == 0 || p.closed {
		return
	}
	if at := p.queue[0].at; p.armed.IsZero() || at.Before(p.armed) {
		p.armed = at
		p.clock.set(at)
	}
}

// An Alarm calls a function at a given time. Its methods may be called concurrently.
type Alarm struct {
	p    *Pacer
	f    func()
	at   time.Time
	slot int // index in the queue plus 1; 0 if the alarm is not set
}

// Alarm returns an alarm that is not set. f is called on the pacer's goroutine, so it must
// return quickly, and must not wait for anything that depends on another alarm.
func (p *Pacer) Alarm(f func()) *Alarm { return &Alarm{p: p, f: f} }

// Set makes the alarm go off at t. It replaces the time that was set before.
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

// Stop unsets the alarm. Its function may still be running when Stop returns.
func (a *Alarm) Stop() {
	a.p.mu.Lock()
	defer a.p.mu.Unlock()
	if a.slot > 0 {
		heap.Remove(&a.p.queue, a.slot-1)
	}
}

// Sleep blocks until t. If ctx ends first, it returns the error of ctx.
func (p *Pacer) Sleep(ctx context.Context, t time.Time) error {
	woken := make(chan struct{}, 1) // size 1, so that the pacer never blocks
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

// queue is a heap of alarms, earliest first.
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
