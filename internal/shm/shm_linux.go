package shm

import (
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// dir is where Linux has POSIX shared memory objects.
const dir = "/dev/shm"

// open opens a file in dir. It does not follow a symbolic link, which could lead out of dir,
// and does not wait for the other end of a pipe.
func open(name string) (*Object, error) {
	path := filepath.Join(dir, name)
	file, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = ErrKind
	}
	if err != nil {
		_ = file.Close() // nothing was written
		return nil, err
	}
	return &Object{file}, nil
}
