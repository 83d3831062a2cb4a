// Package catalog describes the models of a server in plain values: metadata, index,
// statistics, and the options of a load. Servers return them, and each protocol converts
// them to its own messages. It knows no protocol.
package catalog

import (
	"io/fs"
	"slices"

	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/modelconfig"
	"github.com/shoal-serving/shoal/internal/stats"
	"github.com/shoal-serving/shoal/tensor"
)

// Metadata describes a model to its clients. Shapes include the batch
// dimension as -1, if the model has one.
type Metadata struct {
	Name     string
	Versions []string
	Platform string
	Inputs   []Tensor
	Outputs  []Tensor
}

// A Tensor describes an input or an output of a model. A dimension of -1 may have any
// size.
type Tensor struct {
	Name  string
	Type  tensor.Type
	Shape []int64
}

// Describe returns the metadata of a model whose configuration is cfg.
func Describe(cfg *modelconfig.Config, versions ...string) *Metadata {
	return &Metadata{Name: cfg.Name, Versions: versions, Platform: cfg.Platform(), Inputs: tensors(cfg, cfg.Inputs), Outputs: tensors(cfg, cfg.Outputs)}
}

func tensors(cfg *modelconfig.Config, specs []modelconfig.Tensor) []Tensor {
	all := make([]Tensor, len(specs))
	for i, spec := range specs {
		all[i] = Tensor{Name: spec.Name, Type: spec.Type, Shape: slices.Clone(spec.Dims)}
		if cfg.MaxBatchSize > 0 {
			all[i].Shape = slices.Insert(all[i].Shape, 0, -1)
		}
	}
	return all
}

// Statistics are what was counted for one version of a model.
type Statistics struct {
	Model, Version string
	Stats          stats.Snapshot
	Memory         int64 // bytes that the version holds; 0 means unknown
}

// An IndexEntry is the state of a version of a model. Of a model that was never
// loaded only the name is known, and the rest is "".
type IndexEntry struct {
	Name    string
	Version string
	State   string // READY, UNAVAILABLE, LOADING or UNLOADING
	Reason  string // why the version is in that state, if there is more to say
}

// LoadOptions say what a model is loaded from, where that is not its directory.
// The zero LoadOptions take all from there.
type LoadOptions struct {
	// Config is the configuration, as JSON. "" means the one of the directory.
	Config string

	// Files are the files of the model by their path below its directory, such
	// as 1/model.onnx. They replace all files of the directory. Paths have slashes
	// and do not leave the directory; see
	// [LoadOptions.AddFile].
	Files map[string][]byte

	// Epoch orders controllers: the server refuses an epoch that is lower than one that it
	// has seen. Zero means that the client has none, and is not refused.
	Epoch uint64
}

// AddFile adds a file of a model. The path comes from the client: AddFile returns an
// error if it leads out of the model's directory. The options own content afterwards.
func (o *LoadOptions) AddFile(path string, content []byte) error {
	if !fs.ValidPath(path) || path == "." {
		return infer.Errorf(infer.Invalid, "parameter 'file:%s': the path must be below the model's directory, such as 1/model.onnx", path)
	}
	if _, twice := o.Files[path]; twice {
		return infer.Errorf(infer.Invalid, "parameter 'file:%s' is given twice", path)
	}
	if o.Files == nil {
		o.Files = map[string][]byte{}
	}
	o.Files[path] = content
	return nil
}

// UnloadOptions say what else is unloaded with a model.
type UnloadOptions struct {
	// Dependents also unloads the models that the model is made of.
	Dependents bool
	// Epoch is that of [LoadOptions].
	Epoch uint64
}
