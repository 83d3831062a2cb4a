// Package kservehttp is the KServe v2 inference protocol over HTTP: JSON, with
// tensors as binary data where the client likes.
//
// It knows routes, headers and bodies. What runs a model is behind
// [kserve.Backend], what loads one behind [kserve.Control], and how requests and
// answers are written is in package kserve.
package kservehttp

import (
	"cmp"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"path"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/shoal-serving/shoal/internal/kserve"
)

// Options of a handler. The zero Options work.
type Options struct {
	// Version is what the server's metadata calls its version.
	Version string

	// Limits bound what a client can send. That of the header is for the
	// http.Server.
	Limits kserve.Limits

	// TritonStatus answers a full queue with Triton's status, 503, and not with 429.
	TritonStatus bool

	// BodyTimeout is how long the body of a request may take to come. Zero means
	// any time.
	BodyTimeout time.Duration

	// Logging is what clients see and change of the log. Nil means nothing.
	Logging kserve.Logging

	// Log takes what is wrong with the server itself. Nil means [slog.Default].
	Log *slog.Logger
}

type handler struct {
	backend kserve.Backend
	catalog kserve.Catalog
	control kserve.Control
	opts    Options
	mux     http.ServeMux
}

// New returns a handler for all that is below /v2, and for nothing else.
func New(backend kserve.Backend, catalog kserve.Catalog, control kserve.Control, opts Options) http.Handler {
	opts.Limits = opts.Limits.WithDefaults()
	opts.Log = cmp.Or(opts.Log, slog.Default())
	h := &handler{backend: backend, catalog: catalog, control: control, opts: opts}
	h.handle(http.MethodGet, "/v2", h.serverMetadata)
	h.handle(http.MethodGet, "/v2/health/live", h.live)
	h.handle(http.MethodGet, "/v2/health/ready", h.ready)
	h.handleModel(http.MethodGet, "", h.modelMetadata)
	h.handleModel(http.MethodGet, "/ready", h.modelReady)
	h.handleModel(http.MethodPost, "/infer", h.infer)
	h.handleModel(http.MethodGet, "/config", h.modelConfig)
	h.handleModel(http.MethodGet, "/stats", h.statistics)
	h.handle(http.MethodGet, "/v2/models/stats", h.statistics)
	if e, ok := catalog.(kserve.Explainer); ok {
		h.handleModel(http.MethodGet, "/explain", explainer(e))
	}
	h.handleModel(http.MethodPost, "/generate", h.generate)
	h.handleModel(http.MethodPost, "/generate_stream", h.generate)
	h.handleRepository()
	h.handleSettings()
	h.handleSharedMemory()
	h.mux.HandleFunc("/", notFound)
	return h
}

// An action answers a request, or returns the error to answer with.
type action func(w http.ResponseWriter, r *http.Request) error

// handle adds a route that has one method.
func (h *handler) handle(method, pattern string, do action) {
	h.handleAll(pattern, map[string]action{method: do})
}

// handleAll adds a route with all its methods. They are not left to the mux, which
// would answer HEAD where GET is meant, and others with a text of its own.
func (h *handler) handleAll(pattern string, methods map[string]action) {
	allowed := strings.Join(slices.Sorted(maps.Keys(methods)), ", ")
	h.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		do, ok := methods[r.Method]
		if !ok {
			w.Header().Set("Allow", allowed)
			sendError(w, http.StatusMethodNotAllowed, "Method Not Allowed")
			return
		}
		if err := checked(w, r, do); err != nil {
			h.fail(w, err)
		}
	})
}

// checked looks at the name of a model before anything else does.
func checked(w http.ResponseWriter, r *http.Request, do action) error {
	if model := r.PathValue("model"); model != "" {
		if err := kserve.CheckName(model); err != nil {
			return err
		}
	}
	return do(w, r)
}

// handleModel adds the two routes that lead to something of a model: one that
// names a version, and one that does not.
func (h *handler) handleModel(method, suffix string, do action) {
	h.handle(method, "/v2/models/{model}"+suffix, do)
	h.handle(method, "/v2/models/{model}/versions/{version}"+suffix, func(w http.ResponseWriter, r *http.Request) error {
		if version := r.PathValue("version"); !kserve.ValidVersion(version) {
			notFound(w, r)
			return nil
		}
		return do(w, r)
	})
}

// ServeHTTP answers a request. A handler that panics costs that request, and no
// other.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	defer func() {
		if cause := recover(); cause != nil {
			h.panicked(w, r, cause)
		}
	}()
	// Paths are taken as they are. The mux would send a client elsewhere for a
	// dot or a second slash, and no route ends in a slash.
	if path.Clean(r.URL.Path) != r.URL.Path {
		notFound(w, r)
		return
	}
	h.mux.ServeHTTP(w, r)
}

func (h *handler) panicked(w http.ResponseWriter, r *http.Request, cause any) {
	if err, ok := cause.(error); ok && errors.Is(err, http.ErrAbortHandler) {
		panic(cause) // how a handler tells net/http to drop the connection
	}
	h.opts.Log.Error("a request panicked", "method", r.Method, "path", r.URL.Path, "cause", cause, "stack", string(debug.Stack()))
	sendError(w, http.StatusInternalServerError, "internal error")
}
