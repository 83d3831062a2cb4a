// Package kservehttp serves the KServe v2 inference protocol over HTTP: JSON, and tensors
// as binary data if the client asks for it.
//
// It handles routes, headers and bodies. [kserve.Backend] runs models, [kserve.Control]
// loads them, and package kserve encodes and decodes messages.
package kservehttp

import (
	"cmp"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/shoal-serving/shoal/internal/budget"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/kserve"
	"github.com/shoal-serving/shoal/internal/node"
	"github.com/shoal-serving/shoal/internal/panics"
	"github.com/shoal-serving/shoal/internal/trace"
)

// Options configure a handler. The zero value is usable.
type Options struct {
	// Name is the server's name in its metadata. "" means [kserve.ServerName].
	Name string
	// Version is the version in the server's metadata.
	Version string

	// Limits bound what a client can send. The limit of the header must be set in the
	// http.Server.
	Limits kserve.Limits

	// TritonStatus rejects requests for a full queue with Triton's status, 503, instead of
	// 429.
	TritonStatus bool

	// BodyTimeout is how long the body of a request may take to arrive. Zero means no limit.
	BodyTimeout time.Duration

	// Budget bounds the memory of all requests. Nil means no limit.
	Budget *budget.Budget

	// Logging lets clients read and change the log settings. If it is nil, they cannot.
	Logging kserve.Logging

	// ForwardHeaders selects the headers that models get as parameters. Nil means none.
	ForwardHeaders *kserve.HeaderPattern

	// Regions are the shared memory regions of clients. Nil means that clients cannot use
	// shared memory.
	Regions *kserve.Regions

	// Node reports what the server is and how its models run. Nil means that clients cannot
	// read that.
	Node *node.Reporter

	// Dashboard is the page for browsers at /, and its events. Nil means a plain list of models.
	Dashboard Dashboard

	// Tracer decides which requests are traced. Nil means that none are.
	Tracer *trace.Tracer

	// Log receives internal errors. Nil means [slog.Default].
	Log *slog.Logger
}

// A Dashboard shows the server at work, to callers that may observe it.
type Dashboard interface {
	ServePage(w http.ResponseWriter, r *http.Request)
	// ServeFile answers with a file of the page, and reports whether it exists.
	ServeFile(w http.ResponseWriter, r *http.Request, name string) bool
	// ServeEvents sends events until the client leaves. It has not answered if it returns an
	// error.
	ServeEvents(w http.ResponseWriter, r *http.Request) error
}

type handler struct {
	backend kserve.Backend
	catalog kserve.Catalog
	control kserve.Control
	opts    Options
	mux     http.ServeMux
	routes  map[string]string // allowed methods, as in the Allow header, by pattern
}

// New returns a handler for all paths below /v2, and for /, which describes the server.
func New(backend kserve.Backend, catalog kserve.Catalog, control kserve.Control, opts Options) http.Handler {
	opts.Limits = opts.Limits.WithDefaults()
	opts.Log = cmp.Or(opts.Log, slog.Default())
	opts.Name = cmp.Or(opts.Name, kserve.ServerName)
	h := &handler{backend: backend, catalog: catalog, control: control, opts: opts, routes: map[string]string{}}
	h.handle(http.MethodGet, "/v2", h.serverMetadata)
	h.handle(http.MethodGet, "/v2/health/live", h.live)
	h.handle(http.MethodGet, "/v2/health/ready", h.ready)
	h.handleModel(http.MethodGet, "", h.modelMetadata)
	h.handleModel(http.MethodGet, "/ready", h.modelReady)
	h.handleModel(http.MethodPost, "/infer", h.infer)
	h.handleModel(http.MethodGet, "/config", h.modelConfig)
	h.handleModel(http.MethodGet, "/stats", h.statistics)
	h.handle(http.MethodGet, "/v2/models/stats", h.statistics)
	if opts.Node != nil {
		h.handle(http.MethodGet, "/v2/node", h.node)
	}
	if e, ok := catalog.(kserve.Explainer); ok {
		h.handleModel(http.MethodGet, "/explain", h.explainer(e))
	}
	if opts.Dashboard != nil {
		h.handle(http.MethodGet, "/dashboard/events", h.dashboardEvents)
		h.handle(http.MethodGet, "/dashboard/{file}", h.dashboardFile)
	}
	h.handleModel(http.MethodPost, "/generate", h.generate)
	h.handleModel(http.MethodPost, "/generate_stream", h.generateStream)
	h.handleRepository()
	h.handleSettings()
	h.handleSharedMemory()
	h.handle(http.MethodGet, "/{$}", h.describe)
	h.mux.HandleFunc("/", notFound)
	return h
}

// An action handles a request, or returns the error to respond with.
type action func(w http.ResponseWriter, r *http.Request) error

// handle adds a route with one method.
func (h *handler) handle(method, pattern string, do action) {
	h.handleAll(pattern, map[string]action{method: do})
}

// handleAll adds a route with all its methods. It does not use the mux's method patterns,
// which would answer HEAD for GET, and other methods with a message of their own.
func (h *handler) handleAll(pattern string, methods map[string]action) {
	allowed := strings.Join(slices.Sorted(maps.Keys(methods)), ", ")
	h.routes[pattern] = allowed
	h.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		do, ok := methods[r.Method]
		if !ok {
			w.Header().Set("Allow", allowed)
			hint := "this path takes " + strings.ReplaceAll(allowed, ", ", " or ")
			sendDocument(w, http.StatusMethodNotAllowed, encodeFailure(failure{Error: "Method Not Allowed", Hint: hint}))
			return
		}
		if err := checkNames(w, r, do); err != nil {
			h.fail(w, err)
		}
	})
}

// checkNames validates the model name of a request before do runs.
func checkNames(w http.ResponseWriter, r *http.Request, do action) error {
	if model := r.PathValue("model"); model != "" {
		if err := kserve.CheckName(model); err != nil {
			return err
		}
	}
	return do(w, r)
}

// handleModel adds the two routes of a model's resource: with a version and without.
func (h *handler) handleModel(method, suffix string, do action) {
	h.handle(method, "/v2/models/{model}"+suffix, func(w http.ResponseWriter, r *http.Request) error {
		if version := kserve.FirstValue(r.Header[kserve.VersionHeader]); version != "" {
			if !kserve.ValidVersion(version) {
				return infer.Errorf(infer.Invalid, "%s: %q is not a version", kserve.VersionHeader, version)
			}
			r.SetPathValue("version", version)
		}
		return do(w, r)
	})
	h.handle(method, "/v2/models/{model}/versions/{version}"+suffix, func(w http.ResponseWriter, r *http.Request) error {
		if version := r.PathValue("version"); !kserve.ValidVersion(version) {
			notFound(w, r)
			return nil
		}
		return do(w, r)
	})
}

// ServeHTTP implements [http.Handler]. A panic fails only its own request.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	defer func() {
		if cause := recover(); cause != nil {
			h.panicked(w, r, cause)
		}
	}()
	// Paths are matched literally. The mux would redirect clients for a dot or a double slash,
	// and no route ends in a slash.
	if path.Clean(r.URL.Path) != r.URL.Path {
		notFound(w, r)
		return
	}
	h.mux.ServeHTTP(w, r)
}

func (h *handler) panicked(w http.ResponseWriter, r *http.Request, cause any) {
	if err, ok := cause.(error); ok && errors.Is(err, http.ErrAbortHandler) {
		panic(cause) // http.ErrAbortHandler, for net/http
	}
	panics.Report(h.opts.Log, "HTTP request", cause, "method", r.Method, "path", r.URL.Path)
	sendError(w, http.StatusInternalServerError, "internal error")
}
