package kservegrpc

import (
	"context"
	"maps"
	"slices"

	"google.golang.org/grpc/metadata"

	"github.com/shoal-serving/shoal/internal/catalog"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/kserve"
	"github.com/shoal-serving/shoal/internal/kserve/kservepb"
)

func (s *service) RepositoryIndex(ctx context.Context, in *kservepb.RepositoryIndexRequest) (*kservepb.RepositoryIndexResponse, error) {
	out := &kservepb.RepositoryIndexResponse{}
	for _, e := range kserve.Index(ctx, s.control, in.GetReady()) {
		out.Models = append(out.Models, &kservepb.RepositoryIndexResponse_ModelIndex{
			Name: e.Name, Version: e.Version, State: e.State, Reason: e.Reason,
		})
	}
	return out, nil
}

func (s *service) RepositoryModelLoad(ctx context.Context, in *kservepb.RepositoryModelLoadRequest) (*kservepb.RepositoryModelLoadResponse, error) {
	opts, err := loadOptions(in.GetParameters())
	if err != nil {
		return nil, err
	}
	if opts.Epoch, err = epochOf(ctx); err != nil {
		return nil, err
	}
	if err := s.control.Load(ctx, in.GetModelName(), opts); err != nil {
		return nil, err
	}
	return &kservepb.RepositoryModelLoadResponse{}, nil
}

func (s *service) RepositoryModelUnload(ctx context.Context, in *kservepb.RepositoryModelUnloadRequest) (*kservepb.RepositoryModelUnloadResponse, error) {
	opts, err := unloadOptions(in.GetParameters())
	if err != nil {
		return nil, err
	}
	if opts.Epoch, err = epochOf(ctx); err != nil {
		return nil, err
	}
	if err := s.control.Unload(ctx, in.GetModelName(), opts); err != nil {
		return nil, err
	}
	return &kservepb.RepositoryModelUnloadResponse{}, nil
}

// epochOf returns the epoch of a control request; 0 if it has none.
func epochOf(ctx context.Context) (uint64, error) {
	values := metadata.ValueFromIncomingContext(ctx, kserve.EpochHeader)
	if len(values) == 0 {
		return 0, nil
	}
	return kserve.ParseEpoch(values[0])
}

// loadOptions processes parameters in the order of their names, so that the error is
// deterministic if several are invalid.
func loadOptions(params map[string]*kservepb.ModelRepositoryParameter) (o catalog.LoadOptions, err error) {
	for _, name := range slices.Sorted(maps.Keys(params)) {
		path, isFile := kserve.FileParameter(name)
		switch {
		case name == kserve.ConfigParameter:
			p, ok := params[name].GetParameterChoice().(*kservepb.ModelRepositoryParameter_StringParam)
			if !ok {
				return o, mistyped(name, "string_param")
			}
			o.Config = p.StringParam
		case isFile:
			p, ok := params[name].GetParameterChoice().(*kservepb.ModelRepositoryParameter_BytesParam)
			if !ok {
				return o, mistyped(name, "bytes_param")
			}
			if err := o.AddFile(path, p.BytesParam); err != nil {
				return o, err
			}
		default:
			return o, kserve.UnknownLoadParameter(name)
		}
	}
	return o, nil
}

func unloadOptions(params map[string]*kservepb.ModelRepositoryParameter) (o catalog.UnloadOptions, err error) {
	for _, name := range slices.Sorted(maps.Keys(params)) {
		if name != kserve.UnloadDependentsParameter {
			return o, kserve.UnknownUnloadParameter(name)
		}
		p, ok := params[name].GetParameterChoice().(*kservepb.ModelRepositoryParameter_BoolParam)
		if !ok {
			return o, mistyped(name, "bool_param")
		}
		o.Dependents = p.BoolParam
	}
	return o, nil
}

func mistyped(name, expected string) error {
	return infer.Errorf(infer.Invalid, "invalid value type for '%s' parameter, expected %s.", name, expected)
}
