package kservehttp

import (
	"net/http"
	"strings"

	"github.com/shoal-serving/shoal/internal/access"
)

// showDashboard answers GET / with the dashboard, and reports whether it did: if the client is a
// browser whose user may observe the server. Others get the list of the models they may know.
func (h *handler) showDashboard(w http.ResponseWriter, r *http.Request) bool {
	if h.opts.Dashboard == nil || !wantsPage(r) || h.catalog.Authorize(r.Context(), access.Observe, "") != nil {
		return false
	}
	w.Header().Set("Vary", "Accept")
	h.opts.Dashboard.ServePage(w, r)
	return true
}

func wantsPage(r *http.Request) bool { return strings.Contains(r.Header.Get("Accept"), "text/html") }

func (h *handler) dashboardFile(w http.ResponseWriter, r *http.Request) error {
	if err := h.catalog.Authorize(r.Context(), access.Observe, ""); err != nil {
		return err
	}
	if !h.opts.Dashboard.ServeFile(w, r, r.PathValue("file")) {
		notFound(w, r)
	}
	return nil
}

func (h *handler) dashboardEvents(w http.ResponseWriter, r *http.Request) error {
	if err := h.catalog.Authorize(r.Context(), access.Observe, ""); err != nil {
		return err
	}
	return h.opts.Dashboard.ServeEvents(w, r)
}
