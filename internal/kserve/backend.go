package kserve

import (
	"context"

	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/tensor"
)

// A Backend answers inference requests: a server with its own models, or a
// gateway that asks others.
type Backend interface {
	// Infer runs req and fills in resp, which the caller owns, and releases if the
	// error is nil. Nothing touches resp after Infer has returned, whereas req may
	// still be read; see there.
	Infer(ctx context.Context, req *infer.Request, resp *infer.Response) error
}

// A Catalog tells which models there are and whether they can be asked.
type Catalog interface {
	// Ready reports whether the server takes requests: all its models are
	// loaded and it is not shutting down.
	Ready() bool
	// ModelReady reports whether a version of a model takes requests. Version
	// "" means any.
	ModelReady(model, version string) bool
	// Model describes a model. Version "" means the one its policy serves.
	Model(model, version string) (*Metadata, error)
}

// Metadata describes a model to its clients. Shapes include the batch
// dimension as -1, if the model has one.
type Metadata struct {
	Name     string
	Versions []string
	Platform string
	Inputs   []TensorMetadata
	Outputs  []TensorMetadata
}

// TensorMetadata describes an input or an output of a model. A dimension of -1
// may have any size.
type TensorMetadata struct {
	Name  string
	Type  tensor.Type
	Shape []int64
}
