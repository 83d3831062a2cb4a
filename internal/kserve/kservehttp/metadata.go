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

type tensorMetadata struct {
	Name     string  `json:"name"`
	Datatype string  `json:"datatype"`
	Shape    []int64 `json:"shape"`
}

func (h *handler) modelMetadata(w http.ResponseWriter, r *http.Request) error {
	m, err := h.catalog.Model(r.PathValue("model"), r.PathValue("version"))
	if err != nil {
		return err
	}
	return sendJSON(w, http.StatusOK, struct {
		Name     string           `json:"name"`
		Versions []string         `json:"versions"`
		Platform string           `json:"platform"`
		Inputs   []tensorMetadata `json:"inputs"`
		Outputs  []tensorMetadata `json:"outputs"`
	}{m.Name, m.Versions, m.Platform, describe(m.Inputs), describe(m.Outputs)})
}

func describe(tensors []kserve.TensorMetadata) []tensorMetadata {
	var described []tensorMetadata
	for _, t := range tensors {
		described = append(described, tensorMetadata{t.Name, t.Type.String(), t.Shape})
	}
	return described
}
