package server

import (
	"context"
	"strconv"

	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/kserve"
	"github.com/shoal-serving/shoal/internal/kserve/kservepb"
	"github.com/shoal-serving/shoal/internal/modelconfig/configpb"
)

// Config implements [kserve.Catalog].
func (s *Server) Config(model, version string) (*configpb.ModelConfig, error) {
	v, err := s.models.Find(model, version)
	if err != nil {
		return nil, err
	}
	return v.Config.Effective(), nil
}

// Statistics implements [kserve.Catalog]. Nothing is counted yet.
func (s *Server) Statistics(model, version string) ([]*kservepb.ModelStatistics, error) {
	var stats []*kservepb.ModelStatistics
	for _, e := range s.Index(true) {
		if (model == "" || model == e.Name) && (version == "" || version == e.Version) {
			stats = append(stats, &kservepb.ModelStatistics{Name: e.Name, Version: e.Version})
		}
	}
	switch {
	case len(stats) > 0 || model == "":
		return stats, nil
	case len(s.models.Versions(model)) == 0:
		return nil, infer.Errorf(infer.Invalid, "requested model '%s' is not available", model)
	}
	return nil, infer.Errorf(infer.Invalid, "requested model version is not available for model '%s'", model)
}

// Index implements [kserve.Control]. All that is there is ready.
func (s *Server) Index(bool) []kserve.IndexEntry {
	var entries []kserve.IndexEntry
	for _, name := range s.models.Names() {
		for _, n := range s.models.Versions(name) {
			entries = append(entries, kserve.IndexEntry{Name: name, Version: strconv.FormatInt(n, 10), State: "READY"})
		}
	}
	return entries
}

// Load implements [kserve.Control].
func (s *Server) Load(context.Context, string, kserve.LoadOptions) error { return errNoControl }

// Unload implements [kserve.Control].
func (s *Server) Unload(context.Context, string, kserve.UnloadOptions) error { return errNoControl }

var errNoControl = infer.Errorf(infer.Unavailable, "explicit model load / unload is not allowed if polling is enabled")
