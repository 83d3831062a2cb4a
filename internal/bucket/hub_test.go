package bucket

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-serving/shoal/internal/bucket/hubtest"
)

// weights are the contents of a large file.
func weights(seed byte) []byte {
	content := make([]byte, 1<<20)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(content) // it never fails
	return content
}

// tiny are the files of a repository with one model.
func tiny(seed byte) map[string][]byte {
	return map[string][]byte{
		"onnx/model.onnx": weights(seed), "onnx/model.onnx_data": []byte("data"), "onnx/model_int8.onnx": []byte("smaller"),
		"config.pbtxt": []byte("max_batch_size: 8"), "README.md": []byte("about it"), "model.safetensors": weights(seed + 1),
	}
}

func openTestHub(t *testing.T, h *hubtest.Hub, suffix, token string) *Bucket {
	t.Helper()
	t.Setenv("HF_ENDPOINT", h.URL)
	t.Setenv("HF_TOKEN", token)
	b, err := Open(t.Context(), "hf://"+hubtest.Repository+suffix)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b
}

// fetchHub puts all objects of a bucket into a tree.
func fetchHub(t *testing.T, c *Cache, b *Bucket) (*Tree, int64, error) {
	t.Helper()
	objects, err := b.List(t.Context(), "")
	if err != nil {
		return nil, 0, err
	}
	tree, err := c.NewTree()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tree.Release)
	var p Progress
	err = tree.Add(t.Context(), b, objects, "", "", &p)
	return tree, p.Done.Load(), err
}

func keys(objects []Object) (all []string) {
	for _, o := range objects {
		all = append(all, o.Key)
	}
	return all
}

func TestARepositoryOfTheHubIsAModel(t *testing.T) {
	h := hubtest.New(t)
	h.Commit("main", tiny(1))
	c := openCache(t, t.TempDir(), 1<<30)
	tree, n, err := fetchHub(t, c, openTestHub(t, h, "", ""))
	if err != nil {
		t.Fatal(err)
	}
	if tree.content(t, "tiny-model/1/model.onnx") != string(weights(1)) || tree.content(t, "tiny-model/1/model.onnx_data") != "data" ||
		tree.content(t, "tiny-model/config.pbtxt") != "max_batch_size: 8" || n != 1<<20+4+17 || h.Redirects.Load() == 0 {
		t.Errorf("read %d bytes with %d redirects into %s", n, h.Redirects.Load(), tree.Dir)
	}
	if _, n, err := fetchHub(t, c, openTestHub(t, h, "", "")); n != 0 || err != nil {
		t.Errorf("read %d bytes again: %v", n, err)
	}
}

func TestFilesOfTheHubAreNamedByAPath(t *testing.T) {
	h := hubtest.New(t)
	files := tiny(1)
	for name, content := range map[string]string{"repository/a/1/model.onnx": "a", "repository/a/config.pbtxt": "config", "repository/b/2/model.py": "b"} {
		files[name] = []byte(content)
	}
	h.Commit("main", files)
	two := map[string][]byte{"x.onnx": []byte("x"), "y.onnx": []byte("y")}
	h.Commit("two", two)
	h.Commit("none", map[string][]byte{"model.safetensors": []byte("weights")})
	for suffix, want := range map[string][]string{
		"/onnx":                 {"tiny-model/1/model.onnx", "tiny-model/1/model.onnx_data", "tiny-model/config.pbtxt"},
		"/onnx/model_int8.onnx": {"tiny-model/1/model.onnx", "tiny-model/config.pbtxt"},
		"/repository":           {"a/1/model.onnx", "a/config.pbtxt", "b/2/model.py"},
		"@two/x.onnx":           {"tiny-model/1/model.onnx"},
	} {
		objects, err := openTestHub(t, h, suffix, "").List(t.Context(), "")
		if err != nil || !slices.Equal(keys(objects), want) {
			t.Errorf("%s: %q, %v; want %q", suffix, keys(objects), err, want)
		}
	}
	for suffix, want := range map[string]string{
		"@two": "2 .onnx files; name one", "@none": "no .onnx file", "@missing": `no revision "missing"`, "/other.onnx": "no file other.onnx", "/nothing": "no .onnx file",
	} {
		if objects, err := openTestHub(t, h, suffix, "").List(t.Context(), ""); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %q, %v; want %q", suffix, keys(objects), err, want)
		}
	}
	for _, address := range []string{"hf://one", "hf://a/b?x=1", "hf://"} {
		if _, err := Open(t.Context(), address); err == nil || !strings.Contains(err.Error(), "expected hf://ORGANIZATION/NAME") {
			t.Errorf("%s: %v", address, err)
		}
	}
}

func TestADownloadFromTheHubGoesOnWhereItBrokeOff(t *testing.T) {
	h := hubtest.New(t)
	h.Commit("main", tiny(1))
	h.Breaks.Store(2)
	tree, n, err := fetchHub(t, openCache(t, t.TempDir(), 1<<30), openTestHub(t, h, "", ""))
	if err != nil || !bytes.Equal([]byte(tree.content(t, "tiny-model/1/model.onnx")), weights(1)) {
		t.Fatalf("got %v", err)
	}
	if h.Broken.Load() != 2 || n != 1<<20+4+17 {
		t.Errorf("%d downloads broke off, and %d bytes were read, want each byte once", h.Broken.Load(), n)
	}
}

func TestAGatedRepositoryNeedsAToken(t *testing.T) {
	h := hubtest.New(t)
	h.Commit("main", tiny(1))
	h.Token = "hf_secret"
	c := openCache(t, t.TempDir(), 1<<30)
	for token, want := range map[string]string{"": "set HF_TOKEN", "hf_wrong": "accept its conditions"} {
		if _, _, err := fetchHub(t, c, openTestHub(t, h, "", token)); !errors.Is(err, ErrDenied) || !strings.Contains(err.Error(), want) {
			t.Errorf("with the token %q: %v, want %q", token, err, want)
		}
	}
	if _, n, err := fetchHub(t, c, openTestHub(t, h, "", "hf_secret")); err != nil || n == 0 {
		t.Errorf("with the right token: %d bytes, %v", n, err)
	}
	if h.Leaked.Load() > 0 || h.Redirects.Load() == 0 || h.Refused.Load() != 2 {
		t.Errorf("the storage got %d tokens with %d redirects; %d requests were refused", h.Leaked.Load(), h.Redirects.Load(), h.Refused.Load())
	}
	b := openTestHub(t, h, "", "hf_secret")
	h.Denied = true
	if _, _, err := fetchHub(t, c, b); !errors.Is(err, ErrDenied) || !strings.Contains(err.Error(), "403") {
		t.Errorf("without permission: %v", err)
	}
}

func TestWhatDoesNotHaveTheDigestOfTheHubIsNotKept(t *testing.T) {
	h := hubtest.New(t)
	h.Commit("main", tiny(1))
	dir := t.TempDir()
	c := openCache(t, dir, 1<<30)
	h.Wrong.Store(true)
	tree, _, err := fetchHub(t, c, openTestHub(t, h, "", ""))
	if !errors.Is(err, ErrChecksum) || h.Changed.Load() == 0 {
		t.Errorf("%d files were changed: %v", h.Changed.Load(), err)
	}
	if _, err := os.Stat(filepath.Join(tree.Dir, "tiny-model/1/model.onnx")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the tree has the wrong file: %v", err)
	}
	for _, o := range []Object{
		{Size: 4, gitSHA1: "6320cd248dd8aeaab759d5871f8781b5c0505172"}, // of "data"
		{Size: 4, sha256: "3a6eb0790f39ac87c94f3856b2dd2c5d110e6811602261a9a923d3bb23adc8b7"},
	} {
		if _, err := o.check(strings.NewReader("data"), false); err != nil {
			t.Errorf("%+v: %v", o, err)
		}
		if _, err := o.check(strings.NewReader("dada"), false); !errors.Is(err, ErrChecksum) {
			t.Errorf("%+v accepts another content: %v", o, err)
		}
	}
	h.Wrong.Store(false)
	if _, _, err := fetchHub(t, c, openTestHub(t, h, "", "")); err != nil {
		t.Errorf("the right file: %v", err)
	}
}

func TestARevisionPinsTheFiles(t *testing.T) {
	h := hubtest.New(t)
	first := h.Commit("main", tiny(1))
	pinned, branch := openTestHub(t, h, "@"+first, ""), openTestHub(t, h, "", "")
	listed, err := branch.List(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	h.Commit("main", tiny(9))
	c := openCache(t, t.TempDir(), 1<<30)
	tree, err := c.NewTree()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tree.Release)
	if err := tree.Add(t.Context(), branch, listed, "", "", &Progress{}); err != nil || tree.content(t, "tiny-model/1/model.onnx") != string(weights(1)) {
		t.Errorf("files that were listed before the branch moved: %v", err)
	}
	for range 3 {
		if tree, _, err := fetchHub(t, c, pinned); err != nil || tree.content(t, "tiny-model/1/model.onnx") != string(weights(1)) {
			t.Errorf("a commit: %v", err)
		}
	}
	if n := h.Lists.Load(); n != 2 {
		t.Errorf("listed %d times, want once for each: a commit never changes", n)
	}
	if tree, _, err := fetchHub(t, c, branch); err != nil || tree.content(t, "tiny-model/1/model.onnx") != string(weights(9)) {
		t.Errorf("a branch that has moved: %v", err)
	}
}
