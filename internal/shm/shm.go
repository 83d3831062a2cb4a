// Package shm reads and writes POSIX shared memory objects that other processes created.
//
// It does not map them. The other process can truncate its object at any time, and a
// mapping faults beyond the end of its object, which would kill this process with SIGBUS.
// A read or a write returns an error instead, and costs one copy.
package shm

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

var (
	// ErrName is returned for a name that no shared memory object can have.
	ErrName = errors.New("invalid name of a shared memory object")
	// ErrKind is returned for something that is not shared memory, such as a pipe.
	ErrKind = errors.New("not a shared memory object")
	// ErrTruncated is returned for a read or a write beyond the end of an object.
	ErrTruncated = errors.New("the shared memory object was truncated")
)

// maxName is the length of the longest name, without its slash.
const maxName = 255

// FileName returns the name of the file that holds the object of the given name, in the
// directory of shared memory. A name is one component of a path, with or without a slash
// before it. The names of semaphores, which are in the same directory, are invalid.
func FileName(name string) (string, error) {
	file := strings.TrimPrefix(name, "/")
	switch {
	case file == "" || file == "." || file == ".." || len(file) > maxName,
		strings.ContainsAny(file, "/\x00"),
		strings.HasPrefix(file, "sem."):
		return "", ErrName
	}
	return file, nil
}

// An Object is an open shared memory object. Its methods may be called concurrently.
type Object struct{ file *os.File }

// Open opens an existing object to read and write it. The caller closes it.
func Open(name string) (*Object, error) {
	file, err := FileName(name)
	if err != nil {
		return nil, err
	}
	return open(file)
}

// Size returns the size of the object, which its creator can change at any time.
func (o *Object) Size() (int64, error) {
	info, err := o.file.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// Read fills p with the object's data at offset.
func (o *Object) Read(p []byte, offset int64) error {
	switch n, err := o.file.ReadAt(p, offset); {
	case n == len(p):
		return nil
	case errors.Is(err, io.EOF):
		return ErrTruncated
	default:
		return fmt.Errorf("read shared memory: %w", err)
	}
}

// Write writes p to the object at offset. It does not extend an object that was truncated
// before the call. One that is truncated during the call may have its old size afterwards.
func (o *Object) Write(p []byte, offset int64) error {
	size, err := o.Size()
	switch {
	case err != nil:
		return err
	case offset > size || int64(len(p)) > size-offset:
		return ErrTruncated
	}
	if _, err := o.file.WriteAt(p, offset); err != nil {
		return fmt.Errorf("write shared memory: %w", err)
	}
	return nil
}

// Close closes the object. It must not be called twice.
func (o *Object) Close() error { return o.file.Close() }
