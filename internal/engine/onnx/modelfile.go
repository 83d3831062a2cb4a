package onnx

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/shoal-serving/shoal/internal/engine/onnx/onnxruntime"
	"github.com/shoal-serving/shoal/internal/infer"
)

// errNoGraph is the error of a protocol buffer that could be a model, but has no graph.
var errNoGraph = errors.New("it has no graph")

// missingFile returns the error for a model's file that cannot be read. If the directory
// has another ONNX file, it says how to use that one.
func missingFile(file string, err error) error {
	others, _ := filepath.Glob(filepath.Join(filepath.Dir(file), "*.onnx")) // the pattern is valid
	if errors.Is(err, os.ErrNotExist) && len(others) == 1 {
		other := filepath.Base(others[0])
		return infer.Errorf(infer.NotFound, "the model's file cannot be read: %w; rename %s to %s, or set default_model_filename: %q in config.pbtxt",
			err, other, filepath.Base(file), other)
	}
	return infer.Errorf(infer.NotFound, "the model's file cannot be read: %w", err)
}

// notAModel returns the error for a file that is not an ONNX model, given what is wrong
// with its encoding. It says what the file is instead, if its first bytes show it.
func notAModel(file string, err error) error {
	f, openErr := os.Open(file)
	if openErr != nil {
		return missingFile(file, openErr)
	}
	defer func() { _ = f.Close() }() // read-only, so there is nothing to lose
	head := make([]byte, 512)
	n, _ := io.ReadFull(f, head) // a file that is shorter or cannot be read shows less
	head = head[:n]
	what := kindOf(head)
	switch {
	case what != "":
		return infer.Errorf(infer.Invalid, "%s: not an ONNX model: %s", file, what)
	case errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF):
		return infer.Errorf(infer.Invalid, "%s: not an ONNX model, or an incomplete one: the file ends before the model does; copy or download it again", file)
	}
	return infer.Errorf(infer.Invalid, "%s: not an ONNX model; check that the file is complete and was exported to ONNX", file)
}

// signatures are the first bytes of files that are found in place of a model.
var signatures = []struct{ prefix, what string }{
	{"version https://git-lfs.github.com/spec/", `the file is a Git LFS pointer; run "git lfs pull" to download the model`},
	{"PK\x03\x04", "the file is a zip archive; unpack it, or, if torch.save wrote it, export the model with torch.onnx.export"},
	{"\x1f\x8b", "the file is a gzip archive; unpack it"},
	{"BZh", "the file is a bzip2 archive; unpack it"},
	{"\xfd7zXZ\x00", "the file is an xz archive; unpack it"},
	{"\x28\xb5\x2f\xfd", "the file is a zstd archive; unpack it"},
	{"7z\xbc\xaf\x27\x1c", "the file is a 7z archive; unpack it"},
	{"\x89HDF\r\n", "the file is HDF5, probably of Keras; export the model to ONNX"},
	{"\x80\x02", "the file is a Python pickle, probably of PyTorch; export the model with torch.onnx.export"},
	{"\x80\x03", "the file is a Python pickle; export the model to ONNX"},
	{"\x80\x04", "the file is a Python pickle; export the model to ONNX"},
	{"\x80\x05", "the file is a Python pickle; export the model to ONNX"},
}

// kindOf says what a file is that begins with head, if it is not an ONNX model and is of a
// kind that is known; "" otherwise.
func kindOf(head []byte) string {
	if len(head) == 0 {
		return "the file is empty; copy or download it again"
	}
	for _, s := range signatures {
		if bytes.HasPrefix(head, []byte(s.prefix)) {
			return s.what
		}
	}
	const tarMagic = 257 // offset
	text := bytes.ToLower(bytes.TrimSpace(head))
	switch {
	case len(head) > tarMagic && bytes.HasPrefix(head[tarMagic:], []byte("ustar")):
		return "the file is a tar archive; unpack it"
	case !isText(head):
		return ""
	case bytes.HasPrefix(text, []byte("<!doctype html")) || bytes.HasPrefix(text, []byte("<html")):
		return "the file is an HTML page, probably from a failed download; download the model itself"
	case bytes.HasPrefix(text, []byte("{")):
		return "the file is a JSON text, probably from a failed download; download the model itself"
	}
	return "the file is a text; export the model to ONNX"
}

// isText reports whether bytes are printable text. A character may be cut off at the end.
func isText(b []byte) bool {
	for len(b) > 0 {
		r, size := utf8.DecodeRune(b)
		if r == utf8.RuneError && size == 1 && utf8.FullRune(b) || r < ' ' && r != '\n' && r != '\r' && r != '\t' {
			return false
		}
		b = b[size:]
	}
	return true
}

// sourcePosition matches what the library's messages say about its own source code.
var sourcePosition = regexp.MustCompile(`/onnxruntime_src/\S+:\d+ [^\n]*?\(.*?\)( const)? `)

// hints are next steps for errors of the library that contain a certain text.
var hints = []struct{ contains, hint string }{
	{"Unsupported model IR version", "export the model with an older version of onnx, or name a newer ONNX Runtime with --onnxruntime-library"},
	{"is under development and support for this is limited", "export the model with a lower opset_version, or name a newer ONNX Runtime with --onnxruntime-library"},
	{"is not a registered function/op", "the operator does not exist in ONNX Runtime; export the model with standard operators, or run it from a Python model (docs/reference/python-models.md)"},
}

// loadError returns the error for a model that the library does not load.
func loadError(file string, err error) error {
	e, ok := errors.AsType[*onnxruntime.Error](err)
	if !ok {
		return fmt.Errorf("%s: %w", file, err)
	}
	if _, scanErr := scan(file); infer.CodeOf(scanErr) == infer.Invalid {
		return scanErr // it says what the file is
	}
	e.Text = strings.TrimSpace(sourcePosition.ReplaceAllString(e.Text, ""))
	for _, h := range hints {
		if strings.Contains(e.Text, h.contains) {
			e.Text += "; " + h.hint
		}
	}
	return withCode(fmt.Errorf("%s: %w", file, err))
}
