package mms

import (
	"archive/zip"
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// zipOf returns an archive with the given files.
func zipOf(f testing.TB, files map[string]string) []byte {
	f.Helper()
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	for name, content := range files {
		e, err := w.Create(name)
		if err == nil {
			_, err = e.Write([]byte(content))
		}
		if err != nil {
			f.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		f.Fatal(err)
	}
	return b.Bytes()
}

// Whatever an archive contains, unpacking it writes regular files within the limits, and
// nothing outside of the directory.
func FuzzUnpack(f *testing.F) {
	f.Add(zipOf(f, map[string]string{manifestFile: manifest}))
	f.Add(zipOf(f, map[string]string{"../evil": "x", "a/b/c": "y"}))
	f.Add(zipOf(f, map[string]string{"zeros": strings.Repeat("0", 2000)}))
	f.Add([]byte("PK\x05\x06no archive"))
	f.Add(tarOf(f, tarFile(manifestFile, manifest), tarDir("deep/"), tarFile("../evil", "x")))
	f.Add(tarOf(f, tarFile("zeros", strings.Repeat("0", 2000))))
	most := limits{Files: 10, Bytes: 1000}
	f.Fuzz(func(t *testing.T, data []byte) {
		dir := t.TempDir()
		file, inside := filepath.Join(dir, "m.mar"), filepath.Join(dir, "inside")
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Mkdir(inside, 0o700); err != nil {
			t.Fatal(err)
		}
		failed := unpack(file, inside, most)
		var size int64
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case path == file || d.IsDir() && (path == dir || strings.HasPrefix(path, inside)):
				return nil
			case !d.Type().IsRegular() || !strings.HasPrefix(path, inside+string(filepath.Separator)):
				t.Errorf("%s has type %v", path, d.Type())
			}
			info, err := d.Info()
			size += info.Size()
			return err
		})
		// One byte more shows that there are too many.
		if err != nil || size > most.Bytes+1 || failed == nil && size > most.Bytes {
			t.Errorf("unpacked %d bytes: %v, %v", size, failed, err)
		}
	})
}

// Whatever a config.properties contains, its numbers are not negative, and errors name one of
// its lines.
func FuzzProperties(f *testing.F) {
	f.Add("inference_address=http://127.0.0.1:9080\nload_models=a.mar, b=c.mar\nmodel_store = $$STORE$$/models")
	f.Add("models={\\\n  \"b\": {\"1.0\": {\"marName\": \"c.mar\", \"minWorkers\": 3}}\\\n}")
	f.Add("# comment\n! comment\nallowed_urls=https://good/.*, (")
	f.Add("default_response_timeout=9223372036854775807")
	f.Fuzz(func(t *testing.T, text string) {
		s := NewSettings()
		err := s.Parse("p", text, func(name string) string { return name })
		if s.Queue < 0 || s.Workers < 0 || s.MaxRequest < 0 || s.ResponseTimeout < 0 || s.StartupTimeout < 0 {
			t.Errorf("found a negative number: %+v", s)
		}
		if err != nil && !strings.HasPrefix(err.Error(), "p:") {
			t.Errorf("the error does not begin with a line: %v", err)
		}
		again := NewSettings()
		if second := again.Parse("p", text, func(name string) string { return name }); (err == nil) != (second == nil) || again.Store != s.Store || len(again.Load) != len(s.Load) {
			t.Errorf("read twice: %v and %v", err, second)
		}
	})
}

// Whatever a model-config.yaml contains, what is read of it is within the limits of a call.
func FuzzModelYAML(f *testing.F) {
	f.Add("minWorkers: 2\nmaxWorkers: 3\nbatchSize: 16\nmaxBatchDelay: 50\nresponseTimeout: 7\njobQueueSize: 5")
	f.Add("batchSize: 99999999999999999999\nminWorkers: -1\n? [a]\n: b\nminWorker: 2")
	f.Add("a: &x [*x]\nsequenceBatching: true")
	f.Fuzz(func(t *testing.T, text string) {
		y, err := parseYAML("f", []byte(text))
		if err != nil {
			return
		}
		if y.BatchSize < 0 || y.BatchSize > maxBatch || y.Queue < 0 || y.Queue > maxQueue || y.ResponseTimeout < 0 || y.StartupTimeout < 0 || y.ClientTimeout < 0 ||
			y.MaxBatchDelay != nil && *y.MaxBatchDelay < 0 || y.Workers != nil && (y.Workers.Min < 1 || y.Workers.Max < y.Workers.Min || y.Workers.Max > maxWorkers) {
			t.Errorf("found %+v", y.parameters)
		}
	})
}
