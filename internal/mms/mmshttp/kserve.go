package mmshttp

import (
	"net/http"
	"strings"

	"github.com/shoal-serving/shoal/internal/access"
)

// isKServeV1 reports whether a path is below /v1/models, and names a model.
func isKServeV1(segments []string) bool {
	return len(segments) == 3 && segments[0] == "v1" && segments[1] == "models"
}

// kserveV1Ready handles GET /v1/models/{model}.
func (h *handler) kserveV1Ready(w http.ResponseWriter, r *http.Request, model string) error {
	if err := h.store.Authorize(r.Context(), access.Describe, model); err != nil {
		return err
	}
	v, err := h.store.Find(model, "")
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, struct {
		Name  string `json:"name"`
		Ready bool   `json:"ready"`
	}{model, v.Alive() > 0})
	return nil
}

// kserveV1 handles predictions and explanations of version 1 of KServe's protocol. As in
// TorchServe, the handler gets the body as it is.
func (h *handler) kserveV1(w http.ResponseWriter, r *http.Request, id, last string) error {
	model, verb, _ := strings.Cut(last, ":")
	switch verb {
	case "predict":
	case "explain":
		r.Header["explain"] = []string{"True"}
	default:
		return errNoResource
	}
	return h.predict(w, r, id, model, "", false)
}

// kserveV2 handles the paths of version 2 of KServe's protocol. As in TorchServe, the
// handler of a registered model gets the body as it is. All else is the same as on the port
// of KServe's protocol.
func (h *handler) kserveV2(w http.ResponseWriter, r *http.Request, id string, segments []string) error {
	predict := len(segments) == 4 && segments[1] == "models" && (segments[3] == "infer" || segments[3] == "explain")
	switch {
	case predict && (h.opts.KServe == nil || !h.store.Foreign(segments[2])):
		if segments[3] == "explain" {
			r.Header["explain"] = []string{"True"}
		}
		return h.predict(w, r, id, segments[2], "", false)
	case h.opts.KServe == nil:
		return errNoResource
	}
	h.opts.KServe.ServeHTTP(w, r)
	return nil
}
