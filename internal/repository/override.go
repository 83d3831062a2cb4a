package repository

import (
	"fmt"
	"hash/fnv"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"

	"github.com/shoal-serving/shoal/internal/catalog"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/modelconfig"
	"github.com/shoal-serving/shoal/internal/tempdir"
)

// An override is a configuration or files that a client sends to replace those on disk. The
// zero override replaces nothing.
type override catalog.LoadOptions

// fingerprint is 0 for nothing.
func (o override) fingerprint() fingerprint {
	if o.Config == "" && len(o.Files) == 0 {
		return 0
	}
	h := fnv.New64a()
	_, _ = io.WriteString(h, o.Config)
	for _, path := range slices.Sorted(maps.Keys(o.Files)) {
		_, _ = io.WriteString(h, path)
		_, _ = h.Write(o.Files[path])
	}
	return fingerprint(h.Sum64())
}

// programParameters are the parameters of a configuration that name a program which the
// server then runs.
var programParameters = []string{"python", "EXECUTION_ENV_PATH"}

// maxConfig is the size of a configuration that a client sends. It stays in memory as long as its
// model, uncharged, and takes many times as much while it is parsed.
const maxConfig = 1 << 20

// checkClient returns an error if a client sends a configuration that is too long, or sends code,
// and code is not allowed.
func (o override) checkClient(code bool) error {
	if len(o.Config) > maxConfig {
		return infer.Errorf(infer.Invalid, "the configuration has %d bytes, and may have %d; put it into the model repository", len(o.Config), maxConfig)
	}
	const hint = "; put the model into the model repository, or start the server with --allow-model-uploads"
	if code {
		return nil
	}
	if len(o.Files) > 0 {
		return infer.Errorf(infer.Forbidden, "files of a model cannot be sent to this server"+hint)
	}
	if o.Config == "" {
		return nil
	}
	cfg, err := modelconfig.ParseJSON([]byte(o.Config))
	if err != nil {
		return nil //nolint:nilerr // the load returns the error, with the model's name
	}
	for _, name := range programParameters {
		if _, ok := cfg.Parameters[name]; ok {
			return infer.Errorf(infer.Forbidden, "parameters[%s] names a program, which a configuration that is sent to this server cannot"+hint, name)
		}
	}
	if len(cfg.Proto.GetModelOperations().GetOpLibraryFilename()) > 0 {
		return infer.Errorf(infer.Forbidden, "model_operations.op_library_filename names a library, which a configuration that is sent to this server cannot"+hint)
	}
	if len(cfg.Proto.GetOptimization().GetExecutionAccelerators().GetGpuExecutionAccelerator()) > 0 {
		return infer.Errorf(infer.Forbidden, "optimization.execution_accelerators.gpu_execution_accelerator can name libraries and files, which a configuration that is sent to this server cannot"+hint)
	}
	return nil
}

// unpack writes the files to a directory of their own, where the engine finds them.
// The caller removes it if the error is nil.
func (o override) unpack(name string) (f *candidate, err error) {
	if o.Config == "" {
		return nil, infer.Errorf(infer.Invalid, "files of a model were sent without a configuration").WithReason(infer.ConfigMissing, name, "")
	}
	unpacked, err := tempdir.New("upload")
	if err != nil {
		return nil, fmt.Errorf("cannot create a directory for the uploaded files: %w", err)
	}
	defer func() {
		if err != nil {
			_ = unpacked.Remove() // the first error is the one to report
		}
	}()
	root, err := os.OpenRoot(unpacked.Path())
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }() // writes are checked when each file is closed
	for path, content := range o.Files {
		if err := checkUpload(path); err != nil {
			return nil, infer.Errorf(infer.Invalid, "file:%s: %w", path, err)
		}
		if err := writeFile(root, path, content); err != nil {
			return nil, infer.Errorf(infer.Invalid, "file:%s: %w; the path must be below the model's directory, such as 1/model.onnx, and %s must have space for the file", path, err, os.TempDir())
		}
	}
	if f, err = scanEntry(unpacked.Path()); err != nil {
		return nil, err
	}
	f.name, f.unpacked = name, unpacked
	return f, f.err
}

// An upload is the directory of files that a client sent, or that were fetched from a bucket.
// It is removed when its last user releases it.
type upload struct {
	remove  func()
	fetched bool // from a bucket: every version keeps the directory while it is open
	users   atomic.Int64
}

// newUpload returns an upload with one user, the caller.
func newUpload(dir *tempdir.Dir) *upload {
	return newFiles(func() { _ = dir.Remove() }) // what stays is swept later
}

func newFiles(remove func()) *upload {
	u := &upload{remove: remove}
	u.users.Store(1)
	return u
}

func (u *upload) release() {
	if u != nil && u.users.Add(-1) == 0 {
		u.remove()
	}
}

// keep adds a user of the files, which calls release when it is done.
func (u *upload) keep() (release func()) {
	u.users.Add(1)
	return u.release
}

// writeFile writes a file below root, and nowhere else.
func writeFile(root *os.Root, path string, content []byte) error {
	if err := root.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return root.WriteFile(path, content, 0o644)
}
