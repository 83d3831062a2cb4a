package kservehttp

import (
	"net/http"

	"github.com/shoal-serving/shoal/internal/kserve"
)

func (h *handler) live(http.ResponseWriter, *http.Request) error { return nil }

func (h *handler) ready(w http.ResponseWriter, _ *http.Request) error {
	if !h.catalog.Ready() {
		w.WriteHeader(http.StatusBadRequest)
	}
	return nil
}

func (h *handler) modelReady(w http.ResponseWriter, r *http.Request) error {
	ready, err := kserve.ModelReady(r.Context(), h.catalog, r.PathValue("model"), r.PathValue("version"))
	if err != nil {
		return err
	}
	if !ready {
		sendError(w, http.StatusBadRequest, "Model version not ready")
	}
	return nil
}

func (h *handler) serverMetadata(w http.ResponseWriter, _ *http.Request) error {
	return h.sendJSON(w, struct {
		Name       string   `json:"name"`
		Version    string   `json:"version"`
		Extensions []string `json:"extensions"`
	}{h.opts.Name, h.opts.Version, kserve.Extensions(h.opts.Regions)})
}

func (h *handler) modelMetadata(w http.ResponseWriter, r *http.Request) error {
	m, err := h.catalog.Model(r.Context(), r.PathValue("model"), r.PathValue("version"))
	if err != nil {
		return err
	}
	document, err := kserve.MetadataJSON(m)
	if err != nil {
		return err
	}
	return h.sendCharged(w, "application/json", document)
}
