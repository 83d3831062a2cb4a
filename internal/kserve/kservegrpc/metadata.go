package kservegrpc

import (
	"context"

	"github.com/shoal-serving/shoal/internal/catalog"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/kserve"
	"github.com/shoal-serving/shoal/internal/kserve/kservepb"
)

func (s *service) ServerLive(context.Context, *kservepb.ServerLiveRequest) (*kservepb.ServerLiveResponse, error) {
	return &kservepb.ServerLiveResponse{Live: true}, nil
}

func (s *service) ServerReady(context.Context, *kservepb.ServerReadyRequest) (*kservepb.ServerReadyResponse, error) {
	return &kservepb.ServerReadyResponse{Ready: s.catalog.Ready()}, nil
}

func (s *service) ModelReady(ctx context.Context, in *kservepb.ModelReadyRequest) (*kservepb.ModelReadyResponse, error) {
	ready, err := kserve.ModelReady(ctx, s.catalog, in.GetName(), in.GetVersion())
	if err != nil {
		return nil, err
	}
	return &kservepb.ModelReadyResponse{Ready: ready}, nil
}

func (s *service) ServerMetadata(context.Context, *kservepb.ServerMetadataRequest) (*kservepb.ServerMetadataResponse, error) {
	return &kservepb.ServerMetadataResponse{Name: s.opts.Name, Version: s.opts.Version, Extensions: kserve.Extensions(s.opts.Regions)}, nil
}

func (s *service) ModelMetadata(ctx context.Context, in *kservepb.ModelMetadataRequest) (*kservepb.ModelMetadataResponse, error) {
	m, err := s.catalog.Model(ctx, in.GetName(), in.GetVersion())
	if err != nil {
		return nil, err
	}
	return &kservepb.ModelMetadataResponse{
		Name:     m.Name,
		Versions: m.Versions,
		Platform: m.Platform,
		Inputs:   describe(m.Inputs),
		Outputs:  describe(m.Outputs),
	}, nil
}

func describe(tensors []catalog.Tensor) []*kservepb.ModelMetadataResponse_TensorMetadata {
	var described []*kservepb.ModelMetadataResponse_TensorMetadata
	for _, t := range tensors {
		described = append(described, &kservepb.ModelMetadataResponse_TensorMetadata{
			Name: t.Name, Datatype: t.Type.String(), Shape: t.Shape,
		})
	}
	return described
}

func checkVersion(version string) error {
	if kserve.ValidVersion(version) {
		return nil
	}
	return infer.Errorf(infer.Invalid, "failed to get model version from specified version string '%s', version should be an integral value > 0", version)
}
