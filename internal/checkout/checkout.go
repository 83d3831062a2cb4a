// Package checkout finds files of the repository for tests of any package. Tests run in the
// directory of their package; where the source was compiled, a build with -trimpath does not say.
package checkout

import (
	"os"
	"path/filepath"
)

// File returns the path of a file by its path in the repository.
func File(path ...string) string {
	dir, err := os.Getwd()
	for err == nil {
		if _, missing := os.Stat(filepath.Join(dir, "go.mod")); missing == nil || dir == filepath.Dir(dir) {
			break
		}
		dir = filepath.Dir(dir)
	}
	return filepath.Join(append([]string{dir}, path...)...)
}
