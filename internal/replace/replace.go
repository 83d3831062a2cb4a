// Package replace writes files that readers see as a whole, or not at all.
package replace

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// File writes content to a new file, which then gets the name path. It has the mode of the old file,
// and its owner and group where this process may give them, or mode 0600 if there is no old one. A
// process that is killed meanwhile leaves the old file as it was. The new file is made in dir, which
// must be of the same file system; "" means the directory of path.
func File(path string, content []byte, dir string) (err error) {
	if dir == "" {
		dir = filepath.Dir(path)
	}
	f, err := os.CreateTemp(dir, filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name()) // err has the reason
		}
	}()
	_, err = f.Write(content)
	if err = errors.Join(err, likeOld(f, path), f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// likeOld lets those read f that can read the file at path. What a group may do is for that group only.
func likeOld(f *os.File, path string) error {
	old, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	mode := old.Mode().Perm()
	if !Own(f, old) {
		mode &^= 0o070
	}
	return f.Chmod(mode)
}

// Own gives f the owner and the group of another file where this process may do that, and reports
// whether the group is the same now.
func Own(f *os.File, other fs.FileInfo) bool {
	as, ok := other.Sys().(*syscall.Stat_t)
	if !ok {
		return false
	}
	same := f.Chown(-1, int(as.Gid)) == nil
	_ = f.Chown(int(as.Uid), -1) // mostly only root may
	return same
}
