package memfd

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

const sealed = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

// New returns memory and its descriptor, which the caller unmaps and closes. All pages are
// allocated, so that no write fails later.
func New(size int) ([]byte, int, error) {
	fd, err := unix.MemfdCreate("shoal", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, -1, os.NewSyscallError("memfd_create", err)
	}
	b, err := allocate(fd, size)
	if err != nil {
		_ = unix.Close(fd)
		return nil, -1, fmt.Errorf("%d bytes of memory to share: %w", size, err)
	}
	return b, fd, nil
}

func allocate(fd, size int) ([]byte, error) {
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

// Map maps memory that another, untrusted process created. The caller keeps the
// descriptor, which it may close, and unmaps the memory.
func Map(fd, size int) ([]byte, error) {
	// Only memfds have seals. Of these, only the ones with pages of the normal size are safe:
	// touching a huge page that cannot be allocated kills the process.
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil || seals&unix.F_SEAL_SHRINK == 0 {
		return nil, errors.New("memory that is not sealed against shrinking")
	}
	var system unix.Statfs_t
	if err := unix.Fstatfs(fd, &system); err != nil || system.Type != unix.TMPFS_MAGIC {
		return nil, errors.New("memory with huge pages, expected pages of the normal size")
	}
	var about unix.Stat_t
	if err := unix.Fstat(fd, &about); err != nil || size <= 0 || about.Size < int64(size) {
		return nil, fmt.Errorf("memory of %d bytes, announced as %d", about.Size, size)
	}
	return mapped(fd, size)
}

// Unmap unmaps memory. b may be nil, and must not be used afterwards.
func Unmap(b []byte) {
	if b != nil {
		_ = unix.Munmap(b) // it was mapped
	}
}

// Descriptors returns the descriptors that were received with a message. The caller owns
// them.
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
