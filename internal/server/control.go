package server

import (
	"strconv"

	"github.com/shoal-serving/shoal/internal/catalog"
	"github.com/shoal-serving/shoal/internal/explain"
	"github.com/shoal-serving/shoal/internal/modelconfig"
)

// Config returns the complete configuration of a version of a model. Version "" means the
// default one. The caller must not modify it.
func (s *Server) Config(model, version string) (*modelconfig.Config, error) {
	v, err := s.Find(model, version)
	if err != nil {
		return nil, err
	}
	return v.Config, nil
}

// Explain explains how a version of a model runs and why. Version "" means the default one.
func (s *Server) Explain(model, version string) (*explain.Model, error) {
	v, err := s.Find(model, version)
	if err != nil {
		return nil, err
	}
	return v.Explain(), nil
}

// Statistics returns the counters of the named versions, if they are loaded. Model "" means
// all models, version "" all versions of the model.
func (s *Server) Statistics(model, version string) []catalog.Statistics {
	var all []catalog.Statistics
	for _, v := range s.AllVersions() {
		name, number := v.Config.Name, strconv.FormatInt(v.Number(), 10)
		if (model == "" || model == name) && (version == "" || version == number || version == v.Source.Label) {
			all = append(all, catalog.Statistics{Model: name, Version: number, Stats: v.Stats.Snapshot(), Memory: v.Memory})
		}
	}
	return all
}
