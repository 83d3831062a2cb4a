//go:build !linux

package shm

import "errors"

// open returns an error on this system, whose shared memory objects are not files.
func open(string) (*Object, error) {
	return nil, errors.New("shared memory objects are supported on Linux only")
}
