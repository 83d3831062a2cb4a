package pacer

import (
	"encoding/binary"
	"log/slog"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// fdClock is a clock that waits on a timerfd through the runtime's poller.
type fdClock struct {
	fd   int // for setting the timer; file owns it
	file *os.File
}

func newClock() clock {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		slog.Warn("no timerfd: short waits will be up to a millisecond late", "err", err)
		return newTimerClock()
	}
	return &fdClock{fd: fd, file: os.NewFile(uintptr(fd), "timerfd")}
}

func (c *fdClock) set(t time.Time) {
	// Zero would disarm the timer, so a time in the past becomes one nanosecond from now.
	wait := max(1, time.Until(t))
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(wait))}
	if err := unix.TimerfdSettime(c.fd, 0, &spec, nil); err != nil {
		panic("pacer: the kernel refused a timer: " + err.Error())
	}
}

func (c *fdClock) wait() bool {
	var expirations [8]byte
	if _, err := c.file.Read(expirations[:]); err != nil {
		return false // closed
	}
	return binary.NativeEndian.Uint64(expirations[:]) > 0
}

func (c *fdClock) close() {
	_ = c.file.Close() // fails only if it is already closed
}
