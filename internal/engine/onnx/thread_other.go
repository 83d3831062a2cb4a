//go:build !linux

package onnx

// A thread is left as it is here: only Linux has a priority for each thread.
type thread struct{ nice int }

func (*thread) lower() {}
func (*thread) raise() {}

func lowered(_ int, f func()) { f() }
