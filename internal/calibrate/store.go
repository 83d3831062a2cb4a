package calibrate

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
)

// A Key says what findings are of. They hold for nothing that differs in any of it.
type Key struct {
	Model   string // a hash of its files and settings
	Engine  string // its name and release
	CPU     string
	Cores   int // that may be used
	Threads int // of one batch
	// Shape is that of rows where the model takes any and traffic showed it; see
	// [Inputs.Seen]. "" means that it has no such, or that it was made up or given.
	Shape string `json:",omitempty"`
}

// format is that of the files. It changes when what is measured does.
const format = 2

// A Store keeps findings: in memory, for models that are loaded again or under
// several names, and in a directory, one small file for each key, from one start of
// the server to the next. It is worth having and never needed: what cannot be read is
// measured again. Its methods may be called concurrently.
type Store struct {
	dir    string
	log    *slog.Logger
	warned sync.Once

	mu    sync.Mutex // guards the following
	known map[Key]Findings
}

// NewStore returns a store over a directory, which need not be there yet; "" means
// that nothing is kept for the next start.
func NewStore(dir string, log *slog.Logger) *Store {
	return &Store{dir: dir, log: log, known: map[Key]Findings{}}
}

// DefaultDir returns where findings are kept unless somebody says; "" if the user
// has no place for such.
func DefaultDir() string {
	cache, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	return filepath.Join(cache, "shoal", "calibration")
}

// A record is what is in a file.
type record struct {
	Format int
	Key    Key
	Found  Findings
}

// Get returns what is kept for a key, and whether there is anything. A file that
// cannot be understood is as good as none.
func (s *Store) Get(k Key) (Findings, bool) {
	s.mu.Lock()
	f, known := s.known[k]
	s.mu.Unlock()
	if known || s.dir == "" {
		return f, known
	}
	text, err := os.ReadFile(s.file(k))
	if err != nil {
		return Findings{}, false
	}
	var r record
	if json.Unmarshal(text, &r) != nil || r.Format != format || r.Key != k || !r.Found.plausible() {
		return Findings{}, false
	}
	return r.Found, true
}

// Put keeps findings. If they cannot be written, it says so in the log, once.
func (s *Store) Put(k Key, f Findings) {
	s.mu.Lock()
	s.known[k] = f
	s.mu.Unlock()
	if s.dir == "" {
		return
	}
	if err := s.put(k, f); err != nil {
		s.warned.Do(func() {
			s.log.Warn("what is measured of models is not kept, and measured again at the next start; --calibration-dir names another directory, or none",
				"directory", s.dir, "error", err)
		})
	}
}

func (s *Store) put(k Key, f Findings) error {
	text, err := json.MarshalIndent(record{format, k, f}, "", " ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return err
	}
	part, err := os.CreateTemp(s.dir, "*.part")
	if err != nil {
		return err
	}
	_, err = part.Write(append(text, '\n'))
	err = errors.Join(err, part.Close())
	if err == nil {
		err = os.Rename(part.Name(), s.file(k)) // so that nobody ever reads half of it
	}
	if err != nil {
		_ = os.Remove(part.Name()) // what is wrong has been said
	}
	return err
}

func (s *Store) file(k Key) string {
	text := fmt.Appendf(nil, "%d %q %q %q %d %d", format, k.Model, k.Engine, k.CPU, k.Cores, k.Threads)
	if k.Shape != "" { // so that the files of others keep their names
		text = fmt.Appendf(text, " %q", k.Shape)
	}
	sum := sha256.Sum256(text)
	return filepath.Join(s.dir, hex.EncodeToString(sum[:16])+".json")
}

// plausible reports whether findings could have been measured.
func (f Findings) plausible() bool {
	rows := 0
	for _, t := range f.Profile.Sizes {
		if t.Rows <= rows || t.Took <= 0 || t.Slow < t.Took || t.Runs < 1 {
			return false
		}
		rows = t.Rows
	}
	for _, slower := range f.Profile.Slowdown {
		if !(slower >= 1) {
			return false
		}
	}
	return rows > 0
}

// Hash returns a hash of the files at a path, which is one or a directory of them,
// and of settings that belong to them. Links are followed: a version's directory is one
// where a volume is mounted. It reads until ctx ends.
func Hash(ctx context.Context, path string, settings []byte) (string, error) {
	h := sha256.New()
	_, _ = h.Write(settings) // a hash takes everything
	err := addAll(ctx, h, path, ".", map[string]bool{})
	return hex.EncodeToString(h.Sum(nil)), err
}

// addAll adds what is at a path below root. Directories that were there before are left
// out, so that links in a circle end.
func addAll(ctx context.Context, to io.Writer, root, path string, before map[string]bool) error {
	name := filepath.Join(root, path)
	info, err := os.Stat(name)
	switch {
	case err != nil:
		return err
	case info.Mode().IsRegular():
		_, _ = fmt.Fprintf(to, "\n%q %d\n", path, info.Size())
		return add(ctx, to, name)
	case !info.IsDir():
		return nil
	}
	place, err := filepath.EvalSymlinks(name)
	if err != nil || before[place] {
		return err
	}
	before[place] = true
	entries, err := os.ReadDir(name)
	for _, e := range entries {
		err = errors.Join(err, addAll(ctx, to, root, filepath.Join(path, e.Name()), before))
	}
	return err
}

func add(ctx context.Context, to io.Writer, file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	for err == nil && ctx.Err() == nil {
		_, err = io.CopyN(to, f, 1<<20)
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return errors.Join(err, ctx.Err(), f.Close())
}
