//go:build !linux

package onnx

// A thread does nothing here: only Linux has a priority for each thread.
type thread struct{ nice int }

func (*thread) lower() {}
func (*thread) raise() {}

func runWithNice(_ int, f func()) { f() }
