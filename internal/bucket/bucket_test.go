package bucket

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"gocloud.dev/blob"
	"gocloud.dev/blob/memblob"
)

// A memoryStore is a bucket in memory.
type memoryStore struct {
	t    *testing.T
	blob *blob.Bucket
	*Bucket
}

func newStore(t *testing.T) *memoryStore {
	t.Helper()
	b := memblob.OpenBucket(nil)
	t.Cleanup(func() { _ = b.Close() })
	return &memoryStore{t, b, New("mem://models", "", b)}
}

func (s *memoryStore) put(key, content string) {
	s.t.Helper()
	if err := s.blob.WriteAll(context.Background(), key, []byte(content), nil); err != nil {
		s.t.Fatal(err)
	}
}

func (s *memoryStore) list() []Object {
	s.t.Helper()
	all, err := s.List(context.Background(), "")
	if err != nil {
		s.t.Fatal(err)
	}
	return all
}

func openCache(t *testing.T, dir string, limit int64) *Cache {
	t.Helper()
	c, err := OpenCache(dir, limit)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// fetch puts all objects of a store into a tree, and returns how many bytes came from the store.
func fetch(t *testing.T, c *Cache, s *memoryStore) (*Tree, int64, error) {
	t.Helper()
	tree, err := c.NewTree()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tree.Release)
	var p Progress
	err = tree.Add(t.Context(), s.Bucket, s.list(), "", "", &p)
	return tree, p.Done.Load(), err
}

func mustFetch(t *testing.T, c *Cache, s *memoryStore, want int64) *Tree {
	t.Helper()
	tree, n, err := fetch(t, c, s)
	if err != nil || n != want {
		t.Fatalf("read %d bytes, want %d: %v", n, want, err)
	}
	return tree
}

func (t *Tree) content(test *testing.T, name string) string {
	test.Helper()
	text, err := os.ReadFile(filepath.Join(t.Dir, name))
	if err != nil {
		test.Fatal(err)
	}
	return string(text)
}

func TestEqualFilesAreReadOnce(t *testing.T) {
	s, c := newStore(t), openCache(t, t.TempDir(), 1<<20)
	s.put("a/1/model.onnx", "the same")
	mustFetch(t, c, s, 8)
	s.put("b/1/model.onnx", "the same")
	tree := mustFetch(t, c, s, 0)
	if a, b := tree.content(t, "a/1/model.onnx"), tree.content(t, "b/1/model.onnx"); a != "the same" || b != a {
		t.Errorf("found %q and %q", a, b)
	}
}

func TestThoseWhoWantAFileAtOnceShareOneRead(t *testing.T) {
	s, c := newStore(t), openCache(t, t.TempDir(), 1<<20)
	s.put("model", strings.Repeat("x", 1000))
	objects := s.list()
	var p Progress
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			tree, err := c.NewTree()
			if err != nil {
				t.Error(err)
				return
			}
			defer tree.Release()
			if err := tree.Add(t.Context(), s.Bucket, objects, "", "", &p); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if p.Done.Load() != 1000 {
		t.Errorf("read %d bytes, want 1000", p.Done.Load())
	}
}

func TestALargeFileIsPutTogetherFromItsRanges(t *testing.T) {
	s, c := newStore(t), openCache(t, t.TempDir(), 1<<30)
	content := make([]byte, 2*rangeSize+12345)
	random := rand.NewChaCha8([32]byte{1})
	_, _ = random.Read(content) // it never fails
	s.put("large", string(content))
	tree := mustFetch(t, c, s, int64(len(content)))
	if !bytes.Equal([]byte(tree.content(t, "large")), content) {
		t.Error("the file is not the object")
	}
}

// damage writes to the file "model" of a tree, which is a link to the one in the cache.
func damage(t *testing.T, tree *Tree) {
	t.Helper()
	path := filepath.Join(tree.Dir, "model")
	if err := errors.Join(os.Chmod(path, 0o600), os.WriteFile(path, []byte("wrong!!"), 0o600)); err != nil {
		t.Fatal(err)
	}
}

func TestAFileThatIsDamagedOnDiskIsReadAgain(t *testing.T) {
	s, c := newStore(t), openCache(t, t.TempDir(), 1<<20)
	s.put("model", "weights")
	damage(t, mustFetch(t, c, s, 7))
	for _, from := range []int64{7, 0} {
		if again := mustFetch(t, c, s, from); again.content(t, "model") != "weights" {
			t.Errorf("found %q", again.content(t, "model"))
		}
	}
	damage(t, mustFetch(t, c, s, 0)) // after it was used without a check
	if again := mustFetch(t, c, s, 7); again.content(t, "model") != "weights" {
		t.Errorf("found %q", again.content(t, "model"))
	}
}

// The store lists the same content in another way, so that it is read although the cache has it.
func TestAFileThatWasJustReadReplacesOneThatIsDamagedOnDisk(t *testing.T) {
	s, c := newStore(t), openCache(t, t.TempDir(), 1<<20)
	s.put("model", "weights")
	damage(t, mustFetch(t, c, s, 7))
	objects := s.list()
	objects[0].md5 = nil
	for range 2 {
		tree, err := c.NewTree()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(tree.Release)
		if err := tree.Add(t.Context(), s.Bucket, objects, "", "", &Progress{}); err != nil || tree.content(t, "model") != "weights" {
			t.Errorf("found %q: %v", tree.content(t, "model"), err)
		}
	}
	if c.used != 7 || len(c.blobs) != 1 {
		t.Errorf("the cache counts %d bytes in %d files, want 7 in one", c.used, len(c.blobs))
	}
}

// That a model comes back costs no reading of its files, except by its engine.
func TestAFileIsHashedOnceIfNobodyWritesToIt(t *testing.T) {
	dir := t.TempDir()
	s, c := newStore(t), openCache(t, dir, 1<<20)
	s.put("model", "weights")
	hide := func(tree *Tree) { // changes the content only, as a check would notice
		path := filepath.Join(tree.Dir, "model")
		before, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		damage(t, tree)
		if err := os.Chtimes(path, before.ModTime(), before.ModTime()); err != nil {
			t.Fatal(err)
		}
	}
	hide(mustFetch(t, c, s, 7))
	if again := mustFetch(t, c, s, 0); again.content(t, "model") != "wrong!!" {
		t.Error("the file was hashed again")
	}
	_ = c.Close()                // it only holds a lock
	c = openCache(t, dir, 1<<20) // and knows of no check
	hide(mustFetch(t, c, s, 7))
	if again := mustFetch(t, c, s, 0); again.content(t, "model") != "wrong!!" {
		t.Error("the file was hashed again after a check")
	}
}

func TestAnObjectThatWasReplacedAfterItWasListedIsRefused(t *testing.T) {
	for name, content := range map[string]string{"of another size": "changed weights", "of the same size": "changed"} {
		s, c := newStore(t), openCache(t, t.TempDir(), 1<<20)
		s.put("model", "weights")
		objects := s.list()
		s.put("model", content)
		tree, err := c.NewTree()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(tree.Release)
		if err := tree.Add(t.Context(), s.Bucket, objects, "", "", &Progress{}); err == nil {
			t.Errorf("%s: no error", name)
		}
		if entries, _ := os.ReadDir(tree.Dir); len(entries) > 0 {
			t.Errorf("%s: the tree has %v", name, entries)
		}
	}
}

func TestFilesThatWereUsedLongestAgoLeave(t *testing.T) {
	c := openCache(t, t.TempDir(), 20)
	one := func(content string) *memoryStore {
		s := newStore(t)
		s.put("model", content)
		return s
	}
	a, b := one("aaaaaaaa"), one("bbbbbbbb")
	mustFetch(t, c, a, 8).Release()
	time.Sleep(time.Millisecond) // so that the times of use differ
	mustFetch(t, c, b, 8).Release()
	time.Sleep(time.Millisecond)
	held := mustFetch(t, c, a, 0)
	mustFetch(t, c, one("cccccccc"), 8).Release() // b leaves
	mustFetch(t, c, a, 0).Release()
	mustFetch(t, c, b, 8).Release() // c leaves
	if _, _, err := fetch(t, c, one(strings.Repeat("d", 13))); err == nil || !strings.Contains(err.Error(), "--model-cache-size") {
		t.Errorf("beside a file in use: %v", err)
	}
	held.Release()
	mustFetch(t, c, one(strings.Repeat("d", 13)), 13)
}

func TestTheNextProcessFindsWhatIsWholeAndNothingElse(t *testing.T) {
	dir := t.TempDir()
	s, c := newStore(t), openCache(t, dir, 1<<20)
	s.put("model", "weights")
	tree := mustFetch(t, c, s, 7)
	partial := filepath.Join(dir, "partial", "killed")
	if err := os.WriteFile(partial, []byte("wei"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenCache(dir, 1<<20); err == nil || !strings.Contains(err.Error(), "used by another server") {
		t.Errorf("a second server opens the cache: %v", err)
	}
	if err := c.Close(); err != nil { // as the system does when the process is killed
		t.Fatal(err)
	}
	again := openCache(t, dir, 1<<20)
	for _, path := range []string{partial, tree.Dir} {
		if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is still there: %v", path, err)
		}
	}
	mustFetch(t, again, s, 0)
}

func TestKeysDoNotLeadOutOfTheTree(t *testing.T) {
	s, c := newStore(t), openCache(t, t.TempDir(), 1<<20)
	s.put("a/../../../escaped", "x")
	if _, _, err := fetch(t, c, s); err == nil || !strings.Contains(err.Error(), "not a path below") {
		t.Errorf("got %v", err)
	}
}

func TestACallerThatLeavesEndsTheRead(t *testing.T) {
	s, c := newStore(t), openCache(t, t.TempDir(), 1<<20)
	s.put("model", "weights")
	objects := s.list()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	tree, err := c.NewTree()
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Release()
	if err := tree.Add(ctx, s.Bucket, objects, "", "", &Progress{}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	mustFetch(t, c, s, 7)
}

func TestACallerThatLeavesEndsTheHashing(t *testing.T) {
	dir := t.TempDir()
	s := newStore(t)
	s.put("a", "content")
	c := openCache(t, dir, 1<<20)
	tree := mustFetch(t, c, s, 7)
	tree.Release()
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	c = openCache(t, dir, 1<<20) // it has not hashed the file yet
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, full := range []bool{false, true} {
		for full && len(c.hashing) < cap(c.hashing) {
			c.hashing <- struct{}{}
		}
		if _, err := c.get(ctx, s.Bucket, s.list()[0], make(chan struct{}, 1), &Progress{}); !errors.Is(err, context.Canceled) {
			t.Errorf("all cores busy %t: %v, want that the caller left", full, err)
		}
	}
	for len(c.hashing) > 0 {
		<-c.hashing
	}
	for digest, entry := range c.blobs {
		if entry.users != 0 {
			t.Errorf("%s has %d users", digest, entry.users)
		}
	}
	mustFetch(t, c, s, 0) // it is still there
}

func TestAReaderEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	r := until(ctx, endless{})
	if n, err := r.Read(make([]byte, 3)); n != 3 || err != nil {
		t.Errorf("read %d, %v", n, err)
	}
	left := errors.New("left")
	cancel(left)
	if _, err := (Object{Size: 1 << 40}).check(r, false); !errors.Is(err, left) {
		t.Errorf("hashed with %v, want the cause", err)
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }
