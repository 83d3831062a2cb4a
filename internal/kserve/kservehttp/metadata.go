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
	if !h.catalog.ModelReady(r.PathValue("model"), r.PathValue("version")) {
		sendError(w, http.StatusBadRequest, "Model version not ready")
	}
	return nil
}

func (h *handler) serverMetadata(w http.ResponseWriter, _ *http.Request) error {
	return sendJSON(w, http.StatusOK, struct {
		Name       string   `json:"name"`
		Version    string   `json:"version"`
		Extensions []string `json:"extensions"`
	}{kserve.ServerName, h.opts.Version, kserve.Extensions})
}

func (h *handler) modelMetadata(w http.ResponseWriter, r *http.Request) error {
	m, err := h.catalog.Model(r.PathValue("model"), r.PathValue("version"))
	if err != nil {
		return err
	}
	document, err := kserve.MetadataJSON(m)
	if err != nil {
		return err
	}
	sendDocument(w, http.StatusOK, document)
	return nil
}
