package server

import (
	"strconv"

	"github.com/shoal-serving/shoal/internal/catalog"
	"github.com/shoal-serving/shoal/internal/repository"
)

// Statistics returns what was counted for the loaded versions that are named: model ""
// means all models, version "" all its versions.
func (s *Server) Statistics(model, version string) []catalog.Statistics {
	var all []catalog.Statistics
	s.models.All(func(name string, v *repository.Version) {
		number := strconv.FormatInt(v.Number, 10)
		if (model == "" || model == name) && (version == "" || version == number) {
			all = append(all, catalog.Statistics{Model: name, Version: number, Counted: v.Stats.Snapshot(), Memory: v.Memory})
		}
	})
	return all
}
