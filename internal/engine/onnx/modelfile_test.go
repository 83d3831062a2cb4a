package onnx

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoal-serving/shoal/internal/engine/onnx/onnxruntime"
	"github.com/shoal-serving/shoal/internal/engine/onnx/onnxtest"
	"github.com/shoal-serving/shoal/internal/infer"
)

// packed returns an archive with the model in it.
func packed(t *testing.T, model []byte, pack func(b *bytes.Buffer, model []byte) error) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := pack(&b, model); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func zipped(b *bytes.Buffer, model []byte) error {
	w := zip.NewWriter(b)
	f, err := w.Create("model.onnx")
	if err != nil {
		return err
	}
	if _, err := f.Write(model); err != nil {
		return err
	}
	return w.Close()
}

func tarred(b *bytes.Buffer, model []byte) error {
	w := tar.NewWriter(b)
	if err := w.WriteHeader(&tar.Header{Name: "model.onnx", Mode: 0o644, Size: int64(len(model)), Format: tar.FormatUSTAR}); err != nil {
		return err
	}
	if _, err := w.Write(model); err != nil {
		return err
	}
	return w.Close()
}

func gzipped(b *bytes.Buffer, model []byte) error {
	w := gzip.NewWriter(b)
	if err := tarred(b, model); err != nil {
		return err
	}
	archive := bytes.Clone(b.Bytes())
	b.Reset()
	if _, err := w.Write(archive); err != nil {
		return err
	}
	return w.Close()
}

// Each file is reported when its size is estimated, and when it is loaded without that.
func TestAFileInPlaceOfAModelIsRecognised(t *testing.T) {
	model, err := os.ReadFile(onnxtest.Model("mlp"))
	if err != nil {
		t.Fatal(err)
	}
	e := newEngine(t, Options{})
	for name, tt := range map[string]struct {
		content []byte
		want    string
	}{
		"Git LFS pointer": {[]byte("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n"), `the file is a Git LFS pointer; run "git lfs pull" to download the model`},
		"HTML page":       {[]byte("\n<!DOCTYPE HTML><html><body>Sign in</body></html>"), "the file is an HTML page, probably from a failed download; download the model itself"},
		"JSON":            {[]byte(`{"message": "rate limit exceeded"}`), "the file is a JSON text"},
		"zip":             {packed(t, model, zipped), "the file is a zip archive; unpack it, or, if torch.save wrote it, export the model with torch.onnx.export"},
		"tar.gz":          {packed(t, model, gzipped), "the file is a gzip archive; unpack it"},
		"tar":             {packed(t, model, tarred), "the file is a tar archive; unpack it"},
		"pickle":          {[]byte("\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00\x8c\x05torch"), "the file is a Python pickle"},
		"Keras":           {[]byte("\x89HDF\r\n\x1a\n\x00\x00"), "the file is HDF5, probably of Keras"},
		"text":            {[]byte("Grüße\n"), "the file is a text"},
		"empty":           {nil, "the file is empty; copy or download it again"},
		"half":            {model[:len(model)/2], "not an ONNX model, or an incomplete one: the file ends before the model does; copy or download it again"},
		"other bytes":     {[]byte{0xff, 0xfe, 0x00, 0x01, 0x99, 0x98}, "not an ONNX model; check that the file is complete and was exported to ONNX"},
		"no graph":        {[]byte{0x08, 0x07}, "not an ONNX model; check that the file is complete"}, // only a version
	} {
		t.Run(name, func(t *testing.T) {
			src := sources["mlp"]()
			src.Dir, src.Config.Proto = t.TempDir(), nil
			file := filepath.Join(src.Dir, "model.onnx")
			if err := os.WriteFile(file, tt.content, 0o644); err != nil {
				t.Fatal(err)
			}
			_, err := e.Size(src)
			_, loadErr := e.Load(t.Context(), src)
			for _, err := range []error{err, loadErr} {
				if infer.CodeOf(err) != infer.Invalid || !strings.HasPrefix(err.Error(), file+": ") || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("got %v, want it to say %q", err, tt.want)
				}
			}
		})
	}
}

func TestAMisnamedFileIsSuggested(t *testing.T) {
	src := sources["mlp"]()
	src.Dir, src.Config.Proto = t.TempDir(), nil
	if err := os.WriteFile(filepath.Join(src.Dir, "net.onnx"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	const want = `; rename net.onnx to model.onnx, or set default_model_filename: "net.onnx" in config.pbtxt`
	if _, err := newEngine(t, Options{}).Size(src); infer.CodeOf(err) != infer.NotFound || !strings.HasSuffix(err.Error(), want) {
		t.Errorf("got %v, want it to end in %q", err, want)
	}
}

func TestErrorsOfTheLibraryComeWithoutItsSourceCodeAndWithANextStep(t *testing.T) {
	file := onnxtest.Model("mlp")
	for text, want := range map[string]string{
		"Load model from m.onnx failed:/onnxruntime_src/onnxruntime/core/graph/model.cc:187 onnxruntime::Model::Model(onnx::ModelProto&&, const onnxruntime::PathString&) Unsupported model IR version: 99, max supported IR version: 12\n": "Load model from m.onnx failed:Unsupported model IR version: 99, max supported IR version: 12; " +
			"export the model with an older version of onnx, or name a newer ONNX Runtime with --onnxruntime-library",
		"Fatal error: com.example:Frobnicate(-1) is not a registered function/op": "com.example:Frobnicate(-1) is not a registered function/op; the operator does not exist in ONNX Runtime",
	} {
		err := loadError(file, &onnxruntime.Error{Code: onnxruntime.InvalidGraph, Text: text})
		if infer.CodeOf(err) != infer.Invalid || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want it to say %q", err, want)
		}
	}
}
