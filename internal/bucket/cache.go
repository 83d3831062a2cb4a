package bucket

import (
	"bytes"
	"context"
	"crypto/md5"  //nolint:gosec // the stores' own checksum
	"crypto/sha1" //nolint:gosec // likewise
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/shoal-serving/shoal/internal/replace"
)

// A Cache is a directory of files that were read from buckets. Its methods are safe for
// concurrent use, by one process: the directory is locked.
//
//	blobs/SHA256   a file, named after its content
//	names/SHA256   the digest of the blob that a store's object has; named after what the store says of the object
//	partial/       files that are being read
//	trees/         directories of hard links to blobs, one for each [Tree]
//
// A blob gets its name when all of it is on disk, so a blob is whole even if the machine loses
// power. What is in partial and trees is of no use to the next process, which removes it.
type Cache struct {
	dir     string
	limit   int64
	lock    *os.File
	hashing chan struct{} // holds one value for each file that is being hashed

	mu      sync.Mutex // guards the following
	blobs   map[string]*cached
	used    int64                    // bytes of blobs, and of those that are being read
	reading map[string]chan struct{} // by identity; closed when the read has ended
}

// cached is the state of a blob.
type cached struct {
	size    int64
	last    time.Time   // when it was last used
	users   int         // trees and checks that need it
	checked fs.FileInfo // of its file when this process knew what is in it; nil if it never did
}

// is reports whether a file is the one that was checked, and was not written since.
func (e *cached) is(file fs.FileInfo) bool {
	return e.checked != nil && os.SameFile(e.checked, file) && e.checked.Size() == file.Size() && e.checked.ModTime().Equal(file.ModTime())
}

// hashesAtOnce is how many files are hashed at once, each on a core. Models are served meanwhile:
// half of the cores are left to them. The server has two of Go's processors for each core.
func hashesAtOnce() int { return max(1, runtime.GOMAXPROCS(0)/4) }

// OpenCache opens the cache in a directory, which it creates if needed. limit is how many bytes
// it may hold; zero means half of what is free on the disk. The caller closes the cache after
// the last tree was released.
func OpenCache(dir string, limit int64) (*Cache, error) {
	c := &Cache{dir: dir, limit: limit, hashing: make(chan struct{}, hashesAtOnce()), blobs: map[string]*cached{}, reading: map[string]chan struct{}{}}
	for _, part := range []string{"blobs", "names", "partial", "trees"} {
		if err := os.MkdirAll(filepath.Join(dir, part), 0o700); err != nil {
			return nil, fmt.Errorf("model cache: %w", err)
		}
	}
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("model cache: %w", err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("model cache: %s is used by another server; name another directory with --model-cache", dir), lock.Close())
	}
	c.lock = lock
	if err := c.recover(); err != nil {
		return nil, errors.Join(fmt.Errorf("model cache: %w", err), lock.Close())
	}
	if c.limit == 0 {
		var disk syscall.Statfs_t
		if err := syscall.Statfs(dir, &disk); err != nil {
			return nil, errors.Join(fmt.Errorf("model cache: %w", err), lock.Close())
		}
		c.limit = (int64(disk.Bavail)*int64(disk.Bsize) + c.used) / 2 //nolint:unconvert // types differ between systems
	}
	return c, nil
}

// recover removes what an earlier process left unfinished, and counts the rest.
func (c *Cache) recover() error {
	for _, part := range []string{"partial", "trees"} {
		entries, err := os.ReadDir(filepath.Join(c.dir, part))
		if err != nil {
			return err
		}
		for _, e := range entries {
			if err := os.RemoveAll(filepath.Join(c.dir, part, e.Name())); err != nil {
				return err
			}
		}
	}
	entries, err := os.ReadDir(filepath.Join(c.dir, "blobs"))
	if err != nil {
		return err
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			return err
		}
		c.blobs[e.Name()] = &cached{size: info.Size(), last: info.ModTime()}
		c.used += info.Size()
	}
	return c.forgetNames()
}

// forgetNames removes the names of blobs that were evicted.
func (c *Cache) forgetNames() error {
	entries, err := os.ReadDir(filepath.Join(c.dir, "names"))
	if err != nil {
		return err
	}
	for _, e := range entries {
		name := filepath.Join(c.dir, "names", e.Name())
		digest, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if c.blobs[string(digest)] == nil {
			if err := os.Remove(name); err != nil {
				return err
			}
		}
	}
	return nil
}

// Close gives the directory to the next process.
func (c *Cache) Close() error { return c.lock.Close() }

// A Tree is a directory of files from a bucket. Its files stay in the cache until the tree is
// released.
type Tree struct {
	Dir     string
	cache   *Cache
	digests []string
}

// Release removes the directory. Only the first call has an effect.
func (t *Tree) Release() {
	_ = os.RemoveAll(t.Dir) // what stays is removed by the next process
	t.cache.mu.Lock()
	defer t.cache.mu.Unlock()
	for _, digest := range t.digests {
		t.cache.releaseLocked(digest)
	}
	t.digests = nil
}

// NewTree returns an empty tree. The caller releases it.
func (c *Cache) NewTree() (*Tree, error) {
	dir, err := os.MkdirTemp(filepath.Join(c.dir, "trees"), "")
	if err != nil {
		return nil, fmt.Errorf("model cache: %w", err)
	}
	return &Tree{Dir: dir, cache: c}, nil
}

// Missing returns how many bytes of objects are not in the cache.
func (c *Cache) Missing(b *Bucket, objects []Object) (bytes int64) {
	for _, o := range objects {
		digest, ok := c.digest(b.identity(o))
		c.mu.Lock()
		if !ok || c.blobs[digest] == nil {
			bytes += o.Size
		}
		c.mu.Unlock()
	}
	return bytes
}

// Add puts objects of a bucket into the tree, below the directory to, without the given prefix
// of their keys. It reads those from the store that the cache does not have, and checks the
// others. It must not be called twice at once.
func (t *Tree) Add(ctx context.Context, b *Bucket, objects []Object, prefix, to string, progress *Progress) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	slots := make(chan struct{}, rangesAtOnce)
	places := make(chan struct{}, 2*rangesAtOnce) // objects at once, so that a model of many files does not open all of them
	var mu sync.Mutex
	var all sync.WaitGroup
	for _, o := range objects {
		places <- struct{}{}
		all.Go(func() {
			defer func() { <-places }()
			digest, err := t.cache.get(ctx, b, o, slots, progress)
			if err == nil {
				mu.Lock()
				t.digests = append(t.digests, digest)
				mu.Unlock()
				err = t.link(digest, filepath.Join(to, filepath.FromSlash(strings.TrimPrefix(o.Key, prefix))))
			}
			if err != nil {
				cancel(err)
			}
		})
	}
	all.Wait()
	return context.Cause(ctx)
}

// link gives a blob a name in the tree. Keys of objects must not lead out of it.
func (t *Tree) link(digest, name string) error {
	if !filepath.IsLocal(name) {
		return fmt.Errorf("%q is not a path below the model's directory", name)
	}
	path := filepath.Join(t.Dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("model cache: %w", err)
	}
	if err := os.Link(t.cache.blob(digest), path); err != nil {
		return fmt.Errorf("model cache: %w", err)
	}
	return nil
}

func (c *Cache) blob(digest string) string { return filepath.Join(c.dir, "blobs", digest) }

func (c *Cache) name(identity string) string {
	sum := sha256.Sum256([]byte(identity))
	return filepath.Join(c.dir, "names", hex.EncodeToString(sum[:]))
}

// digest returns the digest of the blob for an identity.
func (c *Cache) digest(identity string) (string, bool) {
	text, err := os.ReadFile(c.name(identity))
	return string(text), err == nil && len(text) == hex.EncodedLen(sha256.Size)
}

// get returns the digest of an object's blob, which the caller then uses, and releases. Callers
// that want the same content at the same time share one read.
func (c *Cache) get(ctx context.Context, b *Bucket, o Object, slots chan struct{}, progress *Progress) (string, error) {
	id := b.identity(o)
	for {
		c.mu.Lock()
		other := c.reading[id]
		if other == nil {
			done := make(chan struct{})
			c.reading[id] = done
			c.mu.Unlock()
			digest, err := c.getAlone(ctx, b, o, id, slots, progress)
			c.mu.Lock()
			delete(c.reading, id)
			c.mu.Unlock()
			close(done)
			return digest, err
		}
		c.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return "", context.Cause(ctx)
		}
	}
}

func (c *Cache) getAlone(ctx context.Context, b *Bucket, o Object, id string, slots chan struct{}, progress *Progress) (string, error) {
	if digest, ok := c.digest(id); ok {
		has, isChecked := c.use(digest)
		if isChecked {
			return digest, nil
		}
		if has {
			err := c.hash(ctx, func() error { return c.verify(ctx, digest, o.Size) })
			switch {
			case err == nil:
				return digest, nil
			case ctx.Err() != nil: // it may be what its name says
				c.mu.Lock()
				defer c.mu.Unlock()
				c.releaseLocked(digest)
				return "", context.Cause(ctx)
			}
			c.remove(digest) // it is read again
		}
	}
	if err := c.reserve(o.Size); err != nil {
		return "", err
	}
	digest, err := c.read(ctx, b, o, slots, progress)
	if err != nil {
		c.mu.Lock()
		c.used -= o.Size
		c.mu.Unlock()
		return "", err
	}
	if err := replace.File(c.name(id), []byte(digest), filepath.Join(c.dir, "partial")); err != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.releaseLocked(digest)
		return "", fmt.Errorf("model cache: %w", err)
	}
	return digest, nil
}

// use counts a user of a blob. It reports whether the cache has it, and whether its content is
// known not to have changed.
func (c *Cache) use(digest string) (has, isChecked bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	entry := c.blobs[digest]
	if entry == nil {
		return false, false
	}
	file, err := os.Stat(c.blob(digest))
	isChecked = err == nil && entry.is(file)
	entry.users++
	c.touchLocked(digest, entry)
	if isChecked {
		entry.checked, err = os.Stat(c.blob(digest))
		isChecked = err == nil
	}
	return true, isChecked
}

// touchLocked records that a blob is used. Its file gets the exact time, for the next process, and
// because one that is written afterwards gets another: the system's own times are those of its
// last tick.
func (c *Cache) touchLocked(digest string, entry *cached) {
	entry.last = time.Now()
	_ = os.Chtimes(c.blob(digest), entry.last, entry.last) // it matters little
}

func (c *Cache) releaseLocked(digest string) {
	if entry := c.blobs[digest]; entry != nil {
		entry.users--
		entry.last = time.Now()
	}
}

// hash runs work that reads a whole file and takes a core for it, when there is one.
func (c *Cache) hash(ctx context.Context, work func() error) error {
	select {
	case c.hashing <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-c.hashing }()
	return work()
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// until returns a reader of r that fails when ctx has ended: files are large.
func until(ctx context.Context, r io.Reader) io.Reader {
	return readerFunc(func(p []byte) (int, error) {
		if ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}
		return r.Read(p)
	})
}

// verify checks that a blob is what its name says.
func (c *Cache) verify(ctx context.Context, digest string, size int64) error {
	f, err := os.Open(c.blob(digest))
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // it was only read
	file, err := f.Stat()
	if err != nil {
		return err
	}
	h := sha256.New()
	n, err := io.Copy(h, until(ctx, f))
	switch {
	case err != nil:
		return err
	case n != size || hex.EncodeToString(h.Sum(nil)) != digest:
		return errors.New("the file has changed on disk")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if entry := c.blobs[digest]; entry != nil {
		entry.checked = file
	}
	return nil
}

// remove removes a blob that is not what its name says. Trees that have it keep their file.
func (c *Cache) remove(digest string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if entry := c.blobs[digest]; entry != nil {
		c.used -= entry.size
		delete(c.blobs, digest)
		_ = os.Remove(c.blob(digest)) // the next read replaces it
	}
}

// reserve makes room for size bytes, and takes it. The blobs that were used longest ago leave.
func (c *Cache) reserve(size int64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.used+size > c.limit {
		oldest := ""
		for digest, entry := range c.blobs {
			if entry.users <= 0 && (oldest == "" || entry.last.Before(c.blobs[oldest].last)) {
				oldest = digest
			}
		}
		if oldest == "" {
			return fmt.Errorf("model cache: %d MiB more do not fit into the %d MiB of --model-cache-size, because loaded models use the rest; raise it", (size+1<<20-1)>>20, c.limit>>20)
		}
		if err := os.Remove(c.blob(oldest)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("model cache: %w", err)
		}
		c.used -= c.blobs[oldest].size
		delete(c.blobs, oldest)
	}
	c.used += size
	return nil
}

// read reads an object from its store and makes a blob of it, with one user.
func (c *Cache) read(ctx context.Context, b *Bucket, o Object, slots chan struct{}, progress *Progress) (digest string, err error) {
	f, err := os.CreateTemp(filepath.Join(c.dir, "partial"), "")
	if err != nil {
		return "", fmt.Errorf("model cache: %w", err)
	}
	defer func() {
		_ = f.Close()           // Sync has reported what went wrong
		_ = os.Remove(f.Name()) // it has another name, or is of no use
	}()
	d := download{bucket: b, object: o, file: f, slots: slots, progress: progress}
	if err := d.run(ctx); err != nil {
		return "", err
	}
	err = c.hash(ctx, func() (err error) {
		digest, err = o.check(until(ctx, io.NewSectionReader(f, 0, o.Size+1)), d.checked.Load())
		return err
	})
	switch {
	case err != nil && ctx.Err() != nil:
		return "", context.Cause(ctx)
	case errors.Is(err, ErrChecksum):
		return "", fmt.Errorf("%s/%s: %w", b.url, o.Key, err)
	case err != nil:
		return "", fmt.Errorf("model cache: %w", err)
	}
	if err := errors.Join(f.Chmod(0o400), f.Sync()); err != nil {
		return "", fmt.Errorf("model cache: %w", err)
	}
	return digest, c.keep(f.Name(), digest, o.Size)
}

// ErrChecksum is the error of an object that is not what its store lists.
var ErrChecksum = errors.New("what was read does not have the checksum that the store lists")

// check reads the content of an object, compares it with all that the store says of it, and
// returns its digest. plainMD5 is whether the object's md5 is that of its content.
func (o Object) check(content io.Reader, plainMD5 bool) (digest string, err error) {
	sum, check, git := sha256.New(), md5.New(), sha1.New() //nolint:gosec // see above
	_, _ = fmt.Fprintf(git, "blob %d\x00", o.Size)         // it never fails
	hasMD5, hasGit := len(o.md5) > 0 && plainMD5, o.gitSHA1 != ""
	sums := []io.Writer{sum}
	if hasMD5 {
		sums = append(sums, check)
	}
	if hasGit {
		sums = append(sums, git)
	}
	n, err := io.Copy(io.MultiWriter(sums...), content)
	digest = hex.EncodeToString(sum.Sum(nil))
	switch {
	case err != nil:
		return "", err
	case n != o.Size || o.sha256 != "" && o.sha256 != digest || hasGit && o.gitSHA1 != hex.EncodeToString(git.Sum(nil)),
		hasMD5 && !bytes.Equal(check.Sum(nil), o.md5):
		return "", ErrChecksum
	}
	return digest, nil
}

// beforeRename is where a test ends the process.
var beforeRename = func() {}

// keep makes a blob of a whole file, for which room is reserved.
func (c *Cache) keep(file, digest string, size int64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	entry := c.blobs[digest]
	if entry != nil { // from an object that the store lists otherwise
		if old, err := os.Stat(c.blob(digest)); err == nil && entry.is(old) {
			c.used -= size
			entry.users++
			return nil
		}
	}
	beforeRename()
	if err := os.Rename(file, c.blob(digest)); err != nil { // trees that have an old file keep it
		return fmt.Errorf("model cache: %w", err)
	}
	if entry == nil {
		entry = &cached{}
		c.blobs[digest] = entry
	}
	c.used -= entry.size // of the file that is replaced
	entry.size = size
	entry.users++
	c.touchLocked(digest, entry)
	entry.checked, _ = os.Stat(c.blob(digest)) // without it, the content is checked when it is used again
	return syncDir(filepath.Join(c.dir, "blobs"))
}

// syncDir makes sure that the names in a directory are on disk.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
