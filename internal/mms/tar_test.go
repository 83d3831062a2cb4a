package mms

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// tarOf returns a tar.gz with entries as they are given, however unsafe. What a file contains
// stands in its Uname.
func tarOf(t testing.TB, entries ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	compressed := gzip.NewWriter(&b)
	w := tar.NewWriter(compressed)
	for _, h := range entries {
		content := h.Uname
		h.Uname, h.Size, h.Mode = "", int64(len(content)), 0o644
		err := w.WriteHeader(&h)
		if err == nil {
			_, err = w.Write([]byte(content))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), compressed.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func tarFile(name, content string) tar.Header {
	return tar.Header{Name: name, Uname: content, Typeflag: tar.TypeReg}
}

func tarDir(name string) tar.Header { return tar.Header{Name: name, Typeflag: tar.TypeDir} }

func TestATarIsUnpackedLikeAZip(t *testing.T) {
	for name, entries := range map[string][]tar.Header{
		"files at the top":        {tarFile("MAR-INF/MANIFEST.json", manifest), tarFile("deep/w.bin", "123")},
		"as tar writes them":      {tarDir("./"), tarDir("./MAR-INF/"), tarFile("./MAR-INF/MANIFEST.json", manifest), tarFile("./deep/w.bin", "123")},
		"as torch-model-archiver": {tarDir("m"), tarDir("m/MAR-INF"), tarFile("m/MAR-INF/MANIFEST.json", manifest), tarFile("m/deep/w.bin", "123")},
	} {
		t.Run(name, func(t *testing.T) {
			s := store{dir: t.TempDir(), private: t.TempDir()}
			if err := os.WriteFile(filepath.Join(s.dir, "m.tar.gz"), tarOf(t, entries...), 0o600); err != nil {
				t.Fatal(err)
			}
			a, done, err := s.open(t.Context(), "m.tar.gz")
			if err != nil {
				t.Fatal(err)
			}
			if a.manifest.Model.Name != "m" {
				t.Errorf("the manifest is %+v", a.manifest)
			}
			if b, err := os.ReadFile(filepath.Join(a.dir, "deep", "w.bin")); string(b) != "123" || err != nil {
				t.Errorf("a file has %q, %v", b, err)
			}
			if err := done(); err != nil {
				t.Error(err)
			}
			if left, _ := os.ReadDir(s.private); len(left) != 0 {
				t.Errorf("%v are left", left)
			}
		})
	}
}

func TestAnUnsafeTarIsRefused(t *testing.T) {
	many := make([]tar.Header, 11)
	for i := range many {
		many[i] = tarFile(strings.Repeat("x", i+1), "")
	}
	for name, tt := range map[string]struct {
		entries []tar.Header
		want    string
	}{
		"above":     {[]tar.Header{tarFile("../evil", "")}, "the path leads out"},
		"absolute":  {[]tar.Header{tarFile("/etc/evil", "")}, "the path leads out"},
		"inside":    {[]tar.Header{tarFile("a/../../evil", "")}, "the path leads out"},
		"link":      {[]tar.Header{{Name: "link", Linkname: "/etc/passwd", Typeflag: tar.TypeSymlink}}, "links and devices"},
		"hard link": {[]tar.Header{tarFile("a", "1"), {Name: "link", Linkname: "a", Typeflag: tar.TypeLink}}, "links and devices"},
		"device":    {[]tar.Header{{Name: "null", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3}}, "links and devices"},
		"twice":     {[]tar.Header{tarFile("a", "1"), tarFile("a", "2")}, "file exists"},
		"large":     {[]tar.Header{tarFile("zeros", strings.Repeat("0", 2000))}, errTooLarge.Error()},
		"together":  {[]tar.Header{tarFile("a", strings.Repeat("0", 600)), tarFile("b", strings.Repeat("0", 600))}, errTooLarge.Error()},
		"many":      {many, errTooManyFiles.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s := store{dir: dir, private: filepath.Join(dir, "private"), limits: limits{Files: 10, Bytes: 1000}}
			if err := os.Mkdir(s.private, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, "m.tar.gz"), tarOf(t, tt.entries...), 0o600); err != nil {
				t.Fatal(err)
			}
			_, _, err := s.open(t.Context(), "m.tar.gz")
			if refused, ok := errors.AsType[*Error](err); !ok || refused.Status != 400 || !strings.Contains(refused.Message, tt.want) {
				t.Errorf("error %v, want %s", err, tt.want)
			}
			if left, _ := os.ReadDir(s.private); len(left) != 0 {
				t.Errorf("%v are left", left)
			}
			if _, err := os.Stat(filepath.Join(dir, "evil")); err == nil {
				t.Error("a file was written outside")
			}
		})
	}
}

func TestAFileThatIsNoArchiveIsRefused(t *testing.T) {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, _ = w.Write([]byte("this is no tar"))
	_ = w.Close()
	for content, want := range map[string]string{"": "neither a zip nor a tar.gz", "some text": "neither a zip nor a tar.gz", b.String(): "not a valid tar.gz"} {
		file := filepath.Join(t.TempDir(), "m.mar")
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := unpack(file, t.TempDir(), limits{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: found %v, want %s", content, err, want)
		}
	}
}
