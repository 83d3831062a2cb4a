package python

import (
	"archive/zip"
	"bytes"
	"embed"
	"io/fs"
	"sync"

	"github.com/shoal-serving/shoal/python/src"
)

//go:embed worker/*.py
var sources embed.FS

// code returns the program that the interpreter runs: a zip archive of the worker's
// modules and of the package shoal, which Python executes directly.
var code = sync.OnceValues(func() ([]byte, error) {
	modules, err := fs.Sub(sources, "worker")
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	for _, files := range []fs.FS{modules, src.Files} {
		if err := addFiles(w, files); err != nil {
			return nil, err
		}
	}
	err = w.Close() // writes the directory of the archive
	return b.Bytes(), err
})

// addFiles adds all files to an archive.
func addFiles(w *zip.Writer, files fs.FS) error {
	return fs.WalkDir(files, ".", func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		text, err := fs.ReadFile(files, path)
		if err != nil {
			return err
		}
		// Stored, not compressed: interpreters may be built without zlib.
		f, err := w.CreateHeader(&zip.FileHeader{Name: path, Method: zip.Store})
		if err != nil {
			return err
		}
		_, err = f.Write(text)
		return err
	})
}
