package kservegrpc

import (
	"context"

	"github.com/shoal-serving/shoal/internal/kserve"
	"github.com/shoal-serving/shoal/internal/kserve/kservepb"
)

func (s *service) ModelConfig(ctx context.Context, in *kservepb.ModelConfigRequest) (*kservepb.ModelConfigResponse, error) {
	config, err := s.catalog.Config(ctx, in.GetName(), in.GetVersion())
	if err != nil {
		return nil, err
	}
	return &kservepb.ModelConfigResponse{Config: config.Effective()}, nil
}

func (s *service) ModelStatistics(ctx context.Context, in *kservepb.ModelStatisticsRequest) (*kservepb.ModelStatisticsResponse, error) {
	return kserve.Statistics(ctx, s.catalog, in.GetName(), in.GetVersion())
}
