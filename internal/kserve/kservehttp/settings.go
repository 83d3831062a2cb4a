package kservehttp

import (
	"net/http"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/shoal-serving/shoal/internal/kserve"
)

// handleSettings adds the routes of trace and log settings.
func (h *handler) handleSettings() {
	for _, path := range []string{"/v2/trace/setting", "/v2/models/{model}/trace/setting"} {
		h.handleAll(path, map[string]action{http.MethodGet: h.traceSettings, http.MethodPost: h.changeTrace})
	}
	h.handleAll("/v2/logging", map[string]action{http.MethodGet: h.logSettings, http.MethodPost: h.changeLog})
}

// traceSettings handles the settings of a model, or of all if the path names none.
func (h *handler) traceSettings(w http.ResponseWriter, r *http.Request) error {
	return h.sendTrace(w, r, nil)
}

func (h *handler) changeTrace(w http.ResponseWriter, r *http.Request) error {
	wanted, err := read(h, w, r, kserve.DecodeTrace)
	if err != nil {
		return err
	}
	return h.sendTrace(w, r, wanted)
}

func (h *handler) sendTrace(w http.ResponseWriter, r *http.Request, wanted map[string][]string) error {
	settings, err := kserve.ChangeTrace(r.Context(), h.catalog, h.opts.Tracer, r.PathValue("model"), wanted)
	if err != nil {
		return err
	}
	body := []byte{'{'}
	for i, s := range settings {
		if i > 0 {
			body = append(body, ',')
		}
		body, _ = jsontext.AppendQuote(body, s.Name) // cannot fail for these names
		body = append(body, ':')
		if s.Name == kserve.TraceLevel {
			body = append(body, '[')
		}
		body, _ = jsontext.AppendQuote(body, s.Value)
		if s.Name == kserve.TraceLevel {
			body = append(body, ']')
		}
	}
	sendDocument(w, http.StatusOK, append(body, '}'))
	return nil
}

func (h *handler) logSettings(w http.ResponseWriter, r *http.Request) error {
	return h.sendLog(w, r, kserve.LogChange{})
}

func (h *handler) changeLog(w http.ResponseWriter, r *http.Request) error {
	change, err := read(h, w, r, kserve.DecodeLogChange)
	if err != nil {
		return err
	}
	return h.sendLog(w, r, change)
}

func (h *handler) sendLog(w http.ResponseWriter, r *http.Request, change kserve.LogChange) error {
	s, err := kserve.ChangeLog(r.Context(), h.catalog, h.opts.Logging, change)
	if err != nil {
		return err
	}
	return h.sendJSON(w, struct {
		File    string `json:"log_file"`
		Info    bool   `json:"log_info"`
		Warning bool   `json:"log_warning"`
		Error   bool   `json:"log_error"`
		Verbose uint32 `json:"log_verbose_level"`
		Format  string `json:"log_format"`
	}(s))
}
