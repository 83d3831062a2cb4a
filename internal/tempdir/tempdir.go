// Package tempdir makes directories for files that one process needs for a while. A process that is
// killed leaves its own behind, and a server that is killed again and again would fill the disk. So
// [New] removes those that are not in use any more.
package tempdir

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
)

// A Dir is a directory that only this user can read. Its lock, which ends with the process, says
// that it is in use.
type Dir struct {
	path string
	lock *os.File
}

// New makes a directory whose name begins with shoal- and the kind, and removes those of the same
// kind that are not in use. The caller removes it.
func New(kind string) (*Dir, error) {
	prefix := filepath.Join(os.TempDir(), "shoal-"+kind+"-")
	sweep(prefix)
	for {
		path, err := os.MkdirTemp(os.TempDir(), filepath.Base(prefix))
		if err != nil {
			return nil, err
		}
		switch lock, err := lockDir(path, 0); {
		case err == nil:
			return &Dir{path, lock}, nil
		case !errors.Is(err, os.ErrNotExist):
			return nil, errors.Join(err, os.Remove(path))
		}
		// Another process has swept it before it was locked.
	}
}

// Path returns the path of the directory.
func (d *Dir) Path() string { return d.path }

// Remove removes the directory with all that is in it.
func (d *Dir) Remove() error { return errors.Join(os.RemoveAll(d.path), d.lock.Close()) }

// sweep removes the directories that are not in use. What cannot be removed only takes space, and the
// next sweep tries again.
func sweep(prefix string) {
	all, _ := filepath.Glob(prefix + "*") // fails only for a wrong pattern
	for _, path := range all {
		if lock, err := lockDir(path, syscall.LOCK_NB); err == nil {
			_ = (&Dir{path, lock}).Remove()
		}
	}
}

// lockDir locks a directory of this user, and fails with [os.ErrNotExist] if it was removed meanwhile.
func lockDir(path string, flags int) (_ *os.File, err error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close())
		}
	}()
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|flags); err != nil {
		return nil, os.NewSyscallError("flock", err)
	}
	opened, err := f.Stat()
	if err != nil {
		return nil, err
	}
	named, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	if !os.SameFile(opened, named) {
		return nil, os.ErrNotExist
	}
	if s, ok := opened.Sys().(*syscall.Stat_t); ok && int(s.Uid) != os.Geteuid() {
		return nil, os.ErrPermission
	}
	return f, nil
}
