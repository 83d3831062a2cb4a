package kservehttp

import (
	"encoding/json"
	"net/http"

	"github.com/shoal-serving/shoal/internal/kserve"
	"github.com/shoal-serving/shoal/internal/plainjson"
)

func (h *handler) modelConfig(w http.ResponseWriter, r *http.Request) error {
	config, err := h.catalog.Config(r.Context(), r.PathValue("model"), r.PathValue("version"))
	if err != nil {
		return err
	}
	sendDocument(w, http.StatusOK, plainjson.Append(nil, config.Effective()))
	return nil
}

// statistics handles the statistics of a model, or of all if the path names none.
func (h *handler) statistics(w http.ResponseWriter, r *http.Request) error {
	stats, err := kserve.Statistics(r.Context(), h.catalog, r.PathValue("model"), r.PathValue("version"))
	if err != nil {
		return err
	}
	sendDocument(w, http.StatusOK, plainjson.Append(nil, stats))
	return nil
}

// explainer returns the handler that explains why a model runs the way it does.
func explainer(e kserve.Explainer) action {
	return func(w http.ResponseWriter, r *http.Request) error {
		m, err := e.Explain(r.Context(), r.PathValue("model"), r.PathValue("version"))
		if err != nil {
			return err
		}
		body, err := json.Marshal(m) // encoding/json/v2 does not encode durations as numbers
		if err != nil {
			return err
		}
		sendDocument(w, http.StatusOK, body)
		return nil
	}
}
