//go:build !linux

package memfd

import "errors"

var errNotHere = errors.New("memory that is passed by its descriptor is there on Linux only")

// New returns an error here.
func New(int) ([]byte, int, error) { return nil, -1, errNotHere }

// Map returns an error here.
func Map(_, _ int) ([]byte, error) { return nil, errNotHere }

// Unmap does nothing here.
func Unmap([]byte) {}

// Descriptors returns none here.
func Descriptors([]byte) []int { return nil }

func rights(int) []byte { return nil }

func closeOne(int) error { return errNotHere }
