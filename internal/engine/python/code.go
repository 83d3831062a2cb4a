package python

import (
	"archive/zip"
	"bytes"
	"embed"
	"sync"
)

//go:embed worker/*.py
var sources embed.FS

// code returns the program that the interpreter runs: a zip archive of the worker's
// modules, which Python executes directly.
var code = sync.OnceValues(func() ([]byte, error) {
	entries, err := sources.ReadDir("worker")
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	for _, e := range entries {
		text, err := sources.ReadFile("worker/" + e.Name())
		if err != nil {
			return nil, err
		}
		// Stored, not compressed: interpreters may be built without zlib.
		f, err := w.CreateHeader(&zip.FileHeader{Name: e.Name(), Method: zip.Store})
		if err != nil {
			return nil, err
		}
		if _, err := f.Write(text); err != nil {
			return nil, err
		}
	}
	err = w.Close() // writes the directory of the archive
	return b.Bytes(), err
})
