package server

import (
	"context"
	"strconv"

	"github.com/shoal-serving/shoal/internal/access"
	"github.com/shoal-serving/shoal/internal/catalog"
	"github.com/shoal-serving/shoal/internal/explain"
	"github.com/shoal-serving/shoal/internal/modelconfig"
)

// Config returns the complete configuration of a version of a model. Version "" means the
// default one. The caller must not modify it.
func (s *Server) Config(ctx context.Context, model, version string) (*modelconfig.Config, error) {
	v, err := s.findFor(ctx, access.Describe, model, version)
	if err != nil {
		return nil, err
	}
	return v.Config, nil
}

// MemberConfig is Config for an ensemble, which is loaded for no caller.
func (s *Server) MemberConfig(model, version string) (*modelconfig.Config, error) {
	v, err := s.Find(model, version)
	if err != nil {
		return nil, err
	}
	return v.Config, nil
}

// Explain explains how a version of a model runs and why. Version "" means the default one.
func (s *Server) Explain(ctx context.Context, model, version string) (*explain.Model, error) {
	if err := s.Authorize(ctx, access.Inspect, model); err != nil {
		return nil, err
	}
	v, err := s.Find(model, version) // a model that is not loaded has nothing to explain
	if err != nil {
		return nil, err
	}
	return v.Explain(), nil
}

// Statistics returns the counters of the named versions, if they are loaded. Model "" means
// all models that the caller may inspect, version "" all versions of the model.
func (s *Server) Statistics(ctx context.Context, model, version string) ([]catalog.Statistics, error) {
	if model != "" {
		if err := s.Authorize(ctx, access.Inspect, model); err != nil {
			return nil, err
		}
	}
	var all []catalog.Statistics
	for _, v := range s.AllVersions() {
		name, number := v.Config.Name, strconv.FormatInt(v.Number(), 10)
		if (model == "" || model == name) && (version == "" || version == number || version == v.Source.Label) && s.Authorize(ctx, access.Inspect, name) == nil {
			all = append(all, catalog.Statistics{Model: name, Version: number, Stats: v.Stats.Snapshot(), Memory: v.Memory})
		}
	}
	return all, nil
}
