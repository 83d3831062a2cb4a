package server

import (
	"context"

	"github.com/shoal-serving/shoal/internal/catalog"
	"github.com/shoal-serving/shoal/internal/explain"
	"github.com/shoal-serving/shoal/internal/modelconfig"
	"github.com/shoal-serving/shoal/internal/repository"
)

// Config returns the configuration of a version of a model, complete. Version "" means
// the one that its policy serves. The caller does not change it.
func (s *Server) Config(model, version string) (*modelconfig.Config, error) {
	v, err := s.models.Find(model, version)
	if err != nil {
		return nil, err
	}
	return v.Config, nil
}

// Explain returns why a version of a model runs with its current settings. Version ""
// means the one that its policy serves.
func (s *Server) Explain(model, version string) (*explain.Model, error) {
	return s.models.Explain(model, version)
}

// Index lists every model that the repository has or had, and the state of its
// versions. If ready, it leaves out those that take no requests.
func (s *Server) Index(ready bool) []catalog.IndexEntry {
	var entries []catalog.IndexEntry
	for _, e := range s.models.Index(ready) {
		entries = append(entries, catalog.IndexEntry{Name: e.Name, Version: e.Version, State: string(e.State), Reason: e.Reason})
	}
	return entries
}

// Load loads a model, or what has changed of it, and returns when it takes requests. If
// it fails, what was loaded before stays.
func (s *Server) Load(ctx context.Context, model string, opts catalog.LoadOptions) error {
	return s.models.Load(ctx, model, repository.Override{Config: opts.Config, Files: opts.Files})
}

// LoadModel implements [engine.Caller].
func (s *Server) LoadModel(ctx context.Context, model, config string, files map[string][]byte) error {
	opts := catalog.LoadOptions{Config: config}
	for path, content := range files {
		if err := opts.AddFile(path, content); err != nil {
			return err
		}
	}
	return s.Load(ctx, model, opts)
}

// UnloadModel implements [engine.Caller].
func (s *Server) UnloadModel(ctx context.Context, model string) error {
	return s.Unload(ctx, model, catalog.UnloadOptions{})
}

// Unload takes a model away. One that is not loaded is no error. No model is made of
// others yet.
func (s *Server) Unload(_ context.Context, model string, _ catalog.UnloadOptions) error {
	return s.models.Unload(model)
}
