package kservehttp

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	"github.com/shoal-serving/shoal/internal/explain"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/kserve"
	"github.com/shoal-serving/shoal/internal/plainjson"
)

func (h *handler) modelConfig(w http.ResponseWriter, r *http.Request) error {
	config, err := h.catalog.Config(r.Context(), r.PathValue("model"), r.PathValue("version"))
	if err != nil {
		return err
	}
	return h.sendCharged(w, "application/json", plainjson.Append(nil, config.Effective()))
}

// statistics handles the statistics of a model, or of all if the path names none.
func (h *handler) statistics(w http.ResponseWriter, r *http.Request) error {
	stats, err := kserve.Statistics(r.Context(), h.catalog, r.PathValue("model"), r.PathValue("version"))
	if err != nil {
		return err
	}
	return h.sendCharged(w, "application/json", plainjson.Append(nil, stats))
}

// explainer returns the handler that explains why a model runs the way it does.
func (h *handler) explainer(e kserve.Explainer) action {
	return func(w http.ResponseWriter, r *http.Request) error {
		m, err := e.Explain(r.Context(), r.PathValue("model"), r.PathValue("version"))
		if err != nil {
			return err
		}
		if strings.HasPrefix(r.Header.Get("Accept"), "text/plain") {
			return h.sendExplanation(w, r, m)
		}
		body, err := json.Marshal(m) // encoding/json/v2 does not encode durations as numbers
		if err != nil {
			return err
		}
		return h.sendCharged(w, "application/json", body)
	}
}

// Widths of an explanation as text, in columns.
const (
	defaultWidth = 80
	maxWidth     = 10_000
)

// sendExplanation sends what shoal explain prints, in lines of at most as many columns as the
// parameter width says.
func (h *handler) sendExplanation(w http.ResponseWriter, r *http.Request, m *explain.Model) error {
	width := defaultWidth
	if text := r.URL.Query().Get("width"); text != "" {
		var err error
		if width, err = strconv.Atoi(text); err != nil || width < defaultWidth/2 || width > maxWidth {
			return infer.Errorf(infer.Invalid, "width: found %q, expected a number from %d to %d", text, defaultWidth/2, maxWidth)
		}
	}
	var body bytes.Buffer
	if err := m.WriteText(&body, width); err != nil {
		return err
	}
	w.Header().Set("Vary", "Accept")
	return h.sendCharged(w, "text/plain; charset=utf-8", body.Bytes())
}
