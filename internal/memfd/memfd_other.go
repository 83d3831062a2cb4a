//go:build !linux

package memfd

import "errors"

var errUnsupported = errors.New("memory shared by descriptor is supported on Linux only")

// New returns an error on this system.
func New(int) ([]byte, int, error) { return nil, -1, errUnsupported }

// Map returns an error on this system.
func Map(_, _ int) ([]byte, error) { return nil, errUnsupported }

// Unmap does nothing on this system.
func Unmap([]byte) {}

// Descriptors returns none on this system.
func Descriptors([]byte) []int { return nil }

func rights(int) []byte { return nil }

func closeOne(int) error { return errUnsupported }
