package mms

import (
	"archive/zip"
	"errors"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

// writeArchive writes a zip with entries as they are given, however unsafe.
func writeArchive(t *testing.T, file string, entries ...zip.FileHeader) {
	t.Helper()
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	w := zip.NewWriter(f)
	for _, h := range entries {
		content := h.Comment
		h.Comment = ""
		e, err := w.CreateHeader(&h)
		if err == nil {
			_, err = e.Write([]byte(content))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

// entry is a file of an archive; its comment stands for its content.
func entry(name, content string) zip.FileHeader {
	return zip.FileHeader{Name: name, Comment: content, Method: zip.Deflate}
}

const manifest = `{"runtime":"python","engine":{"engineName":"E"},"model":{"modelName":"m","modelVersion":"2.0","handler":"service:handle"}}`

func TestAnArchiveIsUnpackedForThisUserAlone(t *testing.T) {
	dir := t.TempDir()
	s := store{dir: dir, private: t.TempDir()}
	writeArchive(t, filepath.Join(dir, "m.mar"), entry("MAR-INF/MANIFEST.json", manifest), entry("service.py", "x = 1"), entry("deep/", ""), entry("deep/er/w.bin", "123"))
	a, done, err := s.open(t.Context(), "m.mar")
	if err != nil {
		t.Fatal(err)
	}
	if a.manifest.Model.Name != "m" || a.manifest.Model.Version != "2.0" || a.manifest.Model.Handler != "service:handle" || a.manifest.Engine.Name != "E" {
		t.Errorf("the manifest is %+v", a.manifest)
	}
	if b, err := os.ReadFile(filepath.Join(a.dir, "deep", "er", "w.bin")); string(b) != "123" || err != nil {
		t.Errorf("a file has %q, %v", b, err)
	}
	if info, err := os.Stat(filepath.Join(a.dir, "service.py")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("service.py: %v, %v", info, err)
	}
	if err := done(); err != nil {
		t.Error(err)
	}
	if left, _ := os.ReadDir(s.private); len(left) != 0 {
		t.Errorf("%v are left", left)
	}
}

func TestAnUnsafeArchiveIsRefused(t *testing.T) {
	link := entry("link", "/etc/passwd")
	link.SetMode(fs.ModeSymlink | 0o777)
	many := make([]zip.FileHeader, 11)
	for i := range many {
		many[i] = entry(strings.Repeat("x", i+1), "")
	}
	for name, entries := range map[string][]zip.FileHeader{
		"above":     {entry("../evil", "")},
		"absolute":  {entry("/etc/evil", "")},
		"inside":    {entry("a/../../evil", "")},
		"backslash": {entry(`a\..\evil`, "")},
		"link":      {link},
		"twice":     {entry("a", "1"), entry("a", "2")},
		"below":     {entry("a", "1"), entry("a/b", "2")},
		"large":     {entry("zeros", strings.Repeat("0", 2000))},
		"together":  {entry("a", strings.Repeat("0", 600)), entry("b", strings.Repeat("0", 600))},
		"many":      many,
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s := store{dir: dir, private: filepath.Join(dir, "private"), limits: limits{Files: 10, Bytes: 1000}}
			if err := os.Mkdir(s.private, 0o700); err != nil {
				t.Fatal(err)
			}
			writeArchive(t, filepath.Join(dir, "m.mar"), entries...)
			_, _, err := s.open(t.Context(), "m.mar")
			told, ok := errors.AsType[*Error](err)
			if !ok || told.Status != http.StatusBadRequest || told.Type != "InvalidModelException" {
				t.Errorf("error %v", err)
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

func TestAClientDoesNotLearnWhereArchivesAreUnpacked(t *testing.T) {
	full := &fs.PathError{Op: "write", Path: "/var/lib/private/archive-1/w.bin", Err: syscall.ENOSPC}
	for what, err := range map[string]error{
		"a file":     (&unpacker{archive: "m.mar"}).invalid("w.bin", full),
		"a download": (&store{words: wordsOfMMS}).notDownloaded("http://example.org/m.mar", full),
	} {
		if text := err.Error(); strings.Contains(text, "/var") || !strings.Contains(text, "w.bin: no space left on device") {
			t.Errorf("%s: %s", what, text)
		}
	}
}

func TestTheRatioOfAnArchiveIsLimited(t *testing.T) {
	for size, want := range map[int]error{freeBytes - 1: nil, freeBytes + 1: errTooLarge} {
		dir := t.TempDir()
		file := filepath.Join(dir, "m.mar")
		writeArchive(t, file, entry("zeros", strings.Repeat("0", size)))
		err := unpack(file, t.TempDir(), limits{})
		if (err == nil) != (want == nil) || err != nil && !strings.Contains(err.Error(), want.Error()) {
			t.Errorf("%d bytes in an archive of a thousandth of that: %v, want %v", size, err, want)
		}
	}
}

func TestArchivesComeFromTheStoreAlone(t *testing.T) {
	dir := t.TempDir()
	s := store{dir: filepath.Join(dir, "store"), private: dir}
	if err := os.Mkdir(s.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	writeArchive(t, filepath.Join(dir, "outside.mar"), entry("a", ""))
	for url, want := range map[string]int{
		"../outside.mar": 404, filepath.Join(dir, "outside.mar"): 404, "": 404, ".": 404, "absent.mar": 404,
		"http://127.0.0.1/m.mar": 400, "file://" + dir + "/outside.mar": 400, "s3://bucket/m.mar": 400,
	} {
		_, _, err := s.open(t.Context(), url)
		if told, ok := errors.AsType[*Error](err); !ok || told.Status != want {
			t.Errorf("%s: error %v, want status %d", url, err, want)
		}
	}
}

func TestAnArchiveIsLoadedFromAnAllowedAddress(t *testing.T) {
	dir := t.TempDir()
	writeArchive(t, filepath.Join(dir, "m.mar"), entry("MAR-INF/MANIFEST.json", manifest))
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/good/elsewhere.mar" {
			http.Redirect(w, r, "/bad/m.mar", http.StatusFound)
			return
		}
		http.ServeFile(w, r, filepath.Join(dir, filepath.Base(r.URL.Path)))
	}))
	defer web.Close()
	s := store{private: dir, allowed: []*regexp.Regexp{regexp.MustCompile("^(?:" + web.URL + "/good/.*)$")}}
	a, done, err := s.open(t.Context(), web.URL+"/good/m.mar")
	if err != nil {
		t.Fatal(err)
	}
	if a.manifest.Model.Name != "m" {
		t.Errorf("the manifest is %+v", a.manifest)
	}
	if err := done(); err != nil {
		t.Error(err)
	}
	for _, path := range []string{"/bad/m.mar", "/good/elsewhere.mar", "/good/absent.mar"} {
		if _, _, err := s.open(t.Context(), web.URL+path); err == nil {
			t.Errorf("%s was loaded", path)
		}
	}
}
