package kservehttp

import (
	"net/http"
	"time"

	"github.com/shoal-serving/shoal/internal/access"
	"github.com/shoal-serving/shoal/internal/infer"
)

// maxNodeWait limits how long a client can wait for a change of the node's page.
const maxNodeWait = time.Minute

// node answers GET /v2/node, an extension of Shoal: the page that describes the server, with a
// tag. A client that sends the tag in If-None-Match gets 304 while the page is the same; with the
// parameter wait it is answered when the page changes, or after that time. With the parameter
// model it gets the figures of that model's versions instead.
func (h *handler) node(w http.ResponseWriter, r *http.Request) error {
	if err := h.catalog.Authorize(r.Context(), access.Observe, ""); err != nil {
		return err
	}
	if model := r.URL.Query().Get("model"); model != "" {
		body, err := h.opts.Node.Figures(model)
		if err == nil {
			sendDocument(w, http.StatusOK, body)
		}
		return err
	}
	wait := time.Duration(0)
	if text := r.URL.Query().Get("wait"); text != "" {
		var err error
		if wait, err = time.ParseDuration(text); err != nil || wait < 0 || wait > maxNodeWait {
			return infer.Errorf(infer.Invalid, "wait: found %q, expected a time up to %v, such as 10s", text, maxNodeWait)
		}
	}
	body, tag, err := h.opts.Node.Wait(r.Context(), r.Header.Get("If-None-Match"), wait)
	if err != nil {
		return err
	}
	w.Header().Set("ETag", tag)
	w.Header().Set("Cache-Control", "no-cache")
	if body == nil {
		w.WriteHeader(http.StatusNotModified)
		return nil
	}
	sendDocument(w, http.StatusOK, body) // uncharged: controllers must reach a busy server
	return nil
}
