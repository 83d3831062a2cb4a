package python

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/shoal-serving/shoal/internal/modelconfig"
)

// Parameters of the configuration of a handler of MMS or TorchServe. Package mms sets them.
const (
	HandlerKey    = "handler"   // name of the handler
	HandlerDirKey = "model_dir" // directory of the archive's files
)

// handlerDir returns the directory of a handler's files, or "" if the model is not a
// handler.
func handlerDir(cfg *modelconfig.Config) string {
	if cfg.Parameters[HandlerKey] == "" {
		return ""
	}
	return cfg.Parameters[HandlerDirKey]
}

const (
	maxSnapshotBytes = 32 << 20
	maxSnapshotDepth = 8 // links may lead in circles
)

// A snapshot contains the Python files that a model can import from its own directories, as
// they were when the model was loaded. Every worker of the model imports them from the
// snapshot, so that a worker that is restarted runs the code that was loaded, whatever has
// become of the files. Workers read everything else from disk: data files, extension
// modules and installed packages.
type snapshot struct {
	files   map[string][]byte // by path
	bytes   int               // of all files
	limit   int               // of bytes
	partial bool              // files are missing because of the limit
}

// newSnapshot reads the Python files of dirs.
func newSnapshot(limit int, dirs ...string) *snapshot {
	s := &snapshot{files: map[string][]byte{}, limit: limit}
	for _, dir := range dirs {
		s.add(dir, maxSnapshotDepth)
	}
	return s
}

// add reads the Python files of a directory, and of its subdirectories that contain any.
// Other directories may hold anything, such as an environment or data, and those named by a
// number are versions of the model. A file that cannot be read is left out: the worker
// reports it if it is needed.
func (s *snapshot) add(dir string, depth int) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	var subdirs []string
	found := false
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		_, notNumber := strconv.Atoi(e.Name())
		switch info, err := os.Stat(path); {
		case err != nil || strings.HasPrefix(e.Name(), "."):
		case info.IsDir() && notNumber != nil:
			subdirs = append(subdirs, path)
		case info.Mode().IsRegular() && filepath.Ext(path) == ".py":
			found = true
			s.read(path, info.Size())
		}
	}
	for _, path := range subdirs {
		if found && depth > 1 {
			s.add(path, depth-1)
		}
	}
}

func (s *snapshot) read(path string, size int64) {
	if size > int64(s.limit-s.bytes) {
		s.partial = true
		return
	}
	if text, err := os.ReadFile(path); err == nil {
		s.files[path] = text
		s.bytes += len(text)
	}
}

// fileChanged reports whether the model's file has changed since it was loaded and is not
// part of the snapshot: it is data, such as a pickle, and may be too large to keep.
func (m *model) fileChanged() bool {
	if filepath.Ext(m.file) == ".py" {
		return false
	}
	info, err := os.Stat(filepath.Join(m.dir, m.versionDir(), m.file))
	return err == nil && (info.Size() != m.info.Size() || !info.ModTime().Equal(m.info.ModTime()))
}

// takeSnapshot returns the snapshot of a model's files.
func (m *model) takeSnapshot() *snapshot {
	var dirs []string
	if filepath.Ext(m.file) == ".py" {
		dirs = append(dirs, filepath.Join(m.dir, m.versionDir()))
		if !m.bare {
			dirs = append(dirs, m.dir)
		}
	}
	if dir := handlerDir(m.cfg); dir != "" {
		dirs = append(dirs, dir)
	}
	s := newSnapshot(maxSnapshotBytes, dirs...)
	if s.partial {
		m.log.Warn("the model's directory has too many Python files to keep in memory, so that a restarted worker reads some of them from disk: move the model to a directory of its own",
			"directory", m.dir, "limit_mib", maxSnapshotBytes>>20)
	}
	return s
}
