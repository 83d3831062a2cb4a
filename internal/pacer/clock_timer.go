package pacer

import "time"

// timerClock is a clock that waits on a timer of the Go runtime.
type timerClock struct {
	timer *time.Timer
	ended chan struct{}
}

func newTimerClock() clock {
	t := time.NewTimer(0)
	t.Stop()
	return &timerClock{timer: t, ended: make(chan struct{})}
}

func (c *timerClock) set(t time.Time) { c.timer.Reset(time.Until(t)) }

func (c *timerClock) wait() bool {
	select {
	case <-c.timer.C:
		return true
	case <-c.ended:
		return false
	}
}

func (c *timerClock) close() {
	c.timer.Stop()
	close(c.ended)
}
