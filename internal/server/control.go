package server

import (
	"context"

	"github.com/shoal-serving/shoal/internal/explain"
	"github.com/shoal-serving/shoal/internal/kserve"
	"github.com/shoal-serving/shoal/internal/modelconfig/configpb"
	"github.com/shoal-serving/shoal/internal/repository"
)

// Config implements [kserve.Catalog].
func (s *Server) Config(model, version string) (*configpb.ModelConfig, error) {
	v, err := s.models.Find(model, version)
	if err != nil {
		return nil, err
	}
	return v.Config.Effective(), nil
}

// Explain implements [kserve.Explainer].
func (s *Server) Explain(model, version string) (*explain.Model, error) {
	return s.models.Explain(model, version)
}

// Index implements [kserve.Control].
func (s *Server) Index(ready bool) []kserve.IndexEntry {
	var entries []kserve.IndexEntry
	for _, e := range s.models.Index(ready) {
		entries = append(entries, kserve.IndexEntry{Name: e.Name, Version: e.Version, State: string(e.State), Reason: e.Reason})
	}
	return entries
}

// Load implements [kserve.Control].
func (s *Server) Load(ctx context.Context, model string, opts kserve.LoadOptions) error {
	return s.models.Load(ctx, model, repository.Override{Config: opts.Config, Files: opts.Files})
}

// LoadModel implements [engine.Caller].
func (s *Server) LoadModel(ctx context.Context, model, config string, files map[string][]byte) error {
	opts := kserve.LoadOptions{Config: config}
	for path, content := range files {
		if err := opts.AddFile(path, content); err != nil {
			return err
		}
	}
	return s.Load(ctx, model, opts)
}

// UnloadModel implements [engine.Caller].
func (s *Server) UnloadModel(ctx context.Context, model string) error {
	return s.Unload(ctx, model, kserve.UnloadOptions{})
}

// Unload implements [kserve.Control]. No model is made of others yet.
func (s *Server) Unload(_ context.Context, model string, _ kserve.UnloadOptions) error {
	return s.models.Unload(model)
}
