package memfd

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

const sealed = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

// New returns memory and its descriptor, which the caller unmaps and closes. It has all
// its pages, so that no write fails later.
func New(size int) ([]byte, int, error) {
	fd, err := unix.MemfdCreate("shoal", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, -1, os.NewSyscallError("memfd_create", err)
	}
	b, err := fill(fd, size)
	if err != nil {
		_ = unix.Close(fd)
		return nil, -1, fmt.Errorf("%d bytes of memory to share: %w", size, err)
	}
	return b, fd, nil
}

func fill(fd, size int) ([]byte, error) {
	if err := unix.Fallocate(fd, 0, 0, int64(size)); err != nil {
		return nil, os.NewSyscallError("fallocate", err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, sealed); err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	return mapped(fd, size)
}

func mapped(fd, size int) ([]byte, error) {
	b, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	return b, os.NewSyscallError("mmap", err)
}

// Map maps memory that another process has made, of which nothing is believed. The
// descriptor stays the caller's, who may close it; the memory is the caller's to unmap.
func Map(fd, size int) ([]byte, error) {
	// Only memory has seals. Of that, only pages of the usual size are always there:
	// one of the large ones that cannot be had ends whoever touches it.
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil || seals&unix.F_SEAL_SHRINK == 0 {
		return nil, errors.New("memory that is not sealed against becoming smaller")
	}
	var system unix.Statfs_t
	if err := unix.Fstatfs(fd, &system); err != nil || system.Type != unix.TMPFS_MAGIC {
		return nil, errors.New("memory that is not of pages of the usual size")
	}
	var about unix.Stat_t
	if err := unix.Fstat(fd, &about); err != nil || size <= 0 || about.Size < int64(size) {
		return nil, fmt.Errorf("memory of %d bytes, said to be of %d", about.Size, size)
	}
	return mapped(fd, size)
}

// Unmap gives memory back, if there is any. Nobody may touch it after.
func Unmap(b []byte) {
	if b != nil {
		_ = unix.Munmap(b) // it was mapped
	}
}

// Descriptors takes those apart that came with a message. They are the caller's.
func Descriptors(control []byte) []int {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return nil
	}
	var all []int
	for i := range messages {
		if fds, err := unix.ParseUnixRights(&messages[i]); err == nil {
			all = append(all, fds...)
		}
	}
	return all
}

func rights(fd int) []byte { return unix.UnixRights(fd) }

func closeOne(fd int) error { return unix.Close(fd) }
