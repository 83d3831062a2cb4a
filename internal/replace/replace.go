// Package replace writes files that readers see as a whole, or not at all.
package replace

import (
	"errors"
	"os"
	"path/filepath"
)

// File writes content to a new file, which then gets the name path, with mode 0600. A process that
// is killed meanwhile leaves the old file as it was. The new file is made in dir, which must be of
// the same file system; "" means the directory of path.
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
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
