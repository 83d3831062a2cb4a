package calibrate

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// A Key identifies what findings are about. They are valid only for an equal key.
type Key struct {
	Model   string // hash of the model's files and settings
	Engine  string // name and release
	CPU     string
	Cores   int // available to the process
	Threads int // per batch
	// Shape is the shape of rows taken from traffic, for inputs with variable dimensions;
	// see [Inputs.SeenShape].
	Shape string `json:",omitempty"`
}

// formatVersion is the version of the files. It changes when what is measured changes.
const formatVersion = 2

// A Store keeps findings in memory, for models that are reloaded or served under several
// names, and in a directory, for the next start of the server, with one small file per key.
// It is only a cache: findings that cannot be read are measured again. Its methods may be
// called concurrently.
type Store struct {
	dir    string
	log    *slog.Logger
	warned sync.Once

	mu         sync.Mutex // guards the following
	inMemory   map[Key]Findings
	footprints map[string]Footprint
}

// NewStore returns a store with the given directory, which is created when needed. If dir
// is "", findings are kept in memory only.
func NewStore(dir string, log *slog.Logger) *Store {
	return &Store{dir: dir, log: log, inMemory: map[Key]Findings{}, footprints: map[string]Footprint{}}
}

// DefaultDir returns the default directory for findings, or "" if the user has no cache
// directory.
func DefaultDir() string {
	cache, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	return filepath.Join(cache, "shoal", "calibration")
}

// A record is the content of a file.
type record struct {
	Format int
	Key    Key
	Found  Findings
}

// Get returns the findings for a key, and whether there are any. It ignores a file that it
// cannot read.
func (s *Store) Get(k Key) (Findings, bool) {
	s.mu.Lock()
	f, known := s.inMemory[k]
	s.mu.Unlock()
	if known || s.dir == "" {
		return f, known
	}
	text, err := os.ReadFile(s.file(k))
	if err != nil {
		return Findings{}, false
	}
	var r record
	if json.Unmarshal(text, &r) != nil || r.Format != formatVersion || r.Key != k || !r.Found.plausible() {
		return Findings{}, false
	}
	return r.Found, true
}

// Put stores findings. The first time that it cannot write them, it logs a warning.
func (s *Store) Put(k Key, f Findings) {
	s.mu.Lock()
	s.inMemory[k] = f
	s.mu.Unlock()
	if s.dir == "" {
		return
	}
	s.report(s.write(s.file(k), record{formatVersion, k, f}))
}

// report logs the first error of a write.
func (s *Store) report(err error) {
	if err == nil {
		return
	}
	s.warned.Do(func() {
		s.log.Warn("calibration results cannot be saved and will be measured again at the next start; set --calibration-dir to another directory, or to an empty string to keep none",
			"directory", s.dir, "error", err)
	})
}

func (s *Store) write(file string, content any) error {
	text, err := json.MarshalIndent(content, "", " ")
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
		err = os.Rename(part.Name(), file) // atomic, so that a partial file is never read
	}
	if err != nil {
		_ = os.Remove(part.Name()) // err has the reason
	}
	return err
}

// A Footprint is what a version of a model needs to be in memory.
type Footprint struct {
	Bytes int64
	Load  time.Duration
}

// A footprintRecord is the content of a footprint's file.
type footprintRecord struct {
	Format int
	ID     string
	Found  Footprint
}

// Footprint returns the footprint of the files with the given id, and whether there is one.
func (s *Store) Footprint(id string) (Footprint, bool) {
	s.mu.Lock()
	f, known := s.footprints[id]
	s.mu.Unlock()
	if known || s.dir == "" {
		return f, known
	}
	text, err := os.ReadFile(s.footprintFile(id))
	if err != nil {
		return Footprint{}, false
	}
	var r footprintRecord
	if json.Unmarshal(text, &r) != nil || r.Format != formatVersion || r.ID != id || r.Found.Bytes <= 0 || r.Found.Load <= 0 {
		return Footprint{}, false
	}
	return r.Found, true
}

// PutFootprint stores a footprint that differs by at least a tenth from the one that is stored.
// Others change nothing, so that what grows little by little is compared with the same one.
func (s *Store) PutFootprint(id string, f Footprint) {
	before, known := s.Footprint(id)
	if known && similar(float64(before.Bytes), float64(f.Bytes)) && similar(before.Load.Seconds(), f.Load.Seconds()) {
		return
	}
	s.mu.Lock()
	s.footprints[id] = f
	s.mu.Unlock()
	if s.dir == "" {
		return
	}
	s.report(s.write(s.footprintFile(id), footprintRecord{formatVersion, id, f}))
}

func similar(a, b float64) bool { return math.Abs(a-b) < 0.1*max(a, b) }

func (s *Store) footprintFile(id string) string {
	sum := sha256.Sum256([]byte("footprint " + id))
	return filepath.Join(s.dir, hex.EncodeToString(sum[:16])+".json")
}

func (s *Store) file(k Key) string {
	text := fmt.Appendf(nil, "%d %q %q %q %d %d", formatVersion, k.Model, k.Engine, k.CPU, k.Cores, k.Threads)
	if k.Shape != "" { // files of keys without a shape keep the names of earlier releases
		text = fmt.Appendf(text, " %q", k.Shape)
	}
	sum := sha256.Sum256(text)
	return filepath.Join(s.dir, hex.EncodeToString(sum[:16])+".json")
}

// plausible reports whether findings could have been measured.
func (f Findings) plausible() bool {
	rows := 0
	for _, t := range f.Profile.Sizes {
		if t.Rows <= rows || t.Median <= 0 || t.P95 < t.Median || t.Runs < 1 {
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

// Hash returns a hash of the file or directory at path, and of settings that belong to it.
// It follows symbolic links, because a mounted volume may have a version's directory behind
// one. It stops with an error when ctx ends.
func Hash(ctx context.Context, path string, settings []byte) (string, error) {
	h := sha256.New()
	_, _ = h.Write(settings) // never fails
	err := hashTree(ctx, h, path, ".", map[string]bool{})
	return hex.EncodeToString(h.Sum(nil)), err
}

// hashTree writes the file or directory at path below root to the hash. It skips directories
// that it has visited, so that cycles of links end.
func hashTree(ctx context.Context, to io.Writer, root, path string, visited map[string]bool) error {
	name := filepath.Join(root, path)
	info, err := os.Stat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist) && path != "." && isLink(name):
		return nil // there is nothing to hash: it leads nowhere
	case err != nil:
		return err
	case info.Mode().IsRegular():
		_, _ = fmt.Fprintf(to, "\n%q %d\n", path, info.Size())
		return hashFile(ctx, to, name)
	case !info.IsDir():
		return nil
	}
	resolved, err := filepath.EvalSymlinks(name)
	if err != nil || visited[resolved] {
		return err
	}
	visited[resolved] = true
	entries, err := os.ReadDir(name)
	for _, e := range entries {
		err = errors.Join(err, hashTree(ctx, to, root, filepath.Join(path, e.Name()), visited))
	}
	return err
}

func isLink(name string) bool {
	info, err := os.Lstat(name)
	return err == nil && info.Mode()&fs.ModeSymlink != 0
}

func hashFile(ctx context.Context, to io.Writer, file string) error {
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
