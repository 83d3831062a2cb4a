//go:build !linux

package pacer

func newClock() clock { return newTimerClock() }
