// Package mmshttp serves the REST APIs of Multi Model Server, TorchServe and SageMaker:
// predictions and management. It handles paths, parameters, statuses and bodies; package
// mms implements the operations.
package mmshttp

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/shoal-serving/shoal/internal/budget"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/kserve"
	"github.com/shoal-serving/shoal/internal/mms"
	"github.com/shoal-serving/shoal/internal/panics"
	"github.com/shoal-serving/shoal/internal/trace"
)

// Options configure the handlers.
type Options struct {
	MaxRequest  int64         // maximum size of a body in bytes; 0 means 6,553,500
	BodyTimeout time.Duration // time limit for receiving each 64 KiB of a body; 0 means no limit

	// Budget bounds the memory of all requests. Nil means no limit.
	Budget *budget.Budget

	// KServe handles predictions of models that were not registered. If it is nil, such
	// requests fail.
	KServe http.Handler

	// Tracer decides which predictions are traced. Nil means that none are.
	Tracer *trace.Tracer

	Log *slog.Logger
}

// A handler serves one port.
type handler struct {
	store                 *mms.Store
	opts                  Options
	inference, management bool
}

// Inference returns the handler of the inference API.
func Inference(store *mms.Store, opts Options) http.Handler {
	return &handler{store: store, opts: opts.withDefaults(), inference: true}
}

// Management returns the handler of the management API, which registers and scales models.
func Management(store *mms.Store, opts Options) http.Handler {
	return &handler{store: store, opts: opts.withDefaults(), management: true}
}

// Both returns a handler of both APIs on one port, as SageMaker requires.
func Both(store *mms.Store, opts Options) http.Handler {
	return &handler{store: store, opts: opts.withDefaults(), inference: true, management: true}
}

func (o Options) withDefaults() Options {
	if o.MaxRequest == 0 {
		o.MaxRequest = 6553500
	}
	return o
}

// ServeHTTP implements [http.Handler].
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	id := requestID()
	header := w.Header()
	header.Set("X-Request-Id", id)
	header.Set("Pragma", "no-cache")
	header.Set("Cache-Control", "no-cache; no-store, must-revalidate, private")
	header.Set("Expires", "Thu, 01 Jan 1970 00:00:00 UTC")
	segments := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	err := h.routeSafely(w, r, id, segments)
	if err == nil {
		return // the response is sent
	}
	var clientErr *mms.Error
	switch {
	case errors.Is(err, context.Canceled): // by the client, which may have closed only its half of the connection
		clientErr = newError(kserve.HTTPStatus(infer.Cancelled), "RequestCancelledException", "The request was cancelled.")
	case !errors.As(err, &clientErr):
		h.opts.Log.Error("request failed", "path", r.URL.Path, "error", err)
		clientErr = newError(http.StatusInternalServerError, "InternalServerException", infer.WithoutPaths("", err.Error()))
	}
	if clientErr.Status == http.StatusServiceUnavailable || clientErr.Status == http.StatusTooManyRequests {
		header.Set("Retry-After", kserve.RetrySeconds(clientErr.RetryAfter))
	}
	writeJSON(w, clientErr.Status, struct {
		Code    int    `json:"code"`
		Type    string `json:"type"`
		Message string `json:"message"`
	}{clientErr.Status, clientErr.Type, clientErr.Message})
}

// routeSafely calls route. A panic is an error, which reveals nothing to the client.
func (h *handler) routeSafely(w http.ResponseWriter, r *http.Request, id string, segments []string) (err error) {
	defer func() {
		if cause := recover(); cause != nil {
			panics.Report(h.opts.Log, "HTTP request", cause, "method", r.Method, "path", r.URL.Path)
			err = newError(http.StatusInternalServerError, "InternalServerException", "internal error")
		}
	}()
	panics.Point("mms")
	return h.route(w, r, id, segments)
}

// route calls the method that handles a path.
func (h *handler) route(w http.ResponseWriter, r *http.Request, id string, segments []string) error {
	if r.Method == http.MethodOptions && segments[0] == "" {
		return h.describeAPI(w)
	}
	invoke := len(segments) == 3 && segments[0] == "models" && segments[2] == "invoke"
	if h.management && segments[0] == "models" && !(invoke && h.inference) {
		return h.manage(w, r, id, segments[1:])
	}
	if h.management && h.torch() && isKServeV1(segments) && r.Method == http.MethodGet {
		return h.kserveV1Ready(w, r, segments[2])
	}
	if !h.inference {
		return errNoResource
	}
	// Handlers read these without regard to case: only the server says what a request is for.
	r.Header.Del("Describe")
	r.Header.Del("Explain")
	if h.torch() {
		r.Header["url_path"] = []string{""} // see predictVersion
		r.Header["explain"] = []string{"False"}
	}
	switch {
	case h.torch() && segments[0] == "explanations" && len(segments) >= 2:
		r.Header["explain"] = []string{"True"}
		if len(segments) > 2 {
			return h.predictVersion(w, r, id, segments)
		}
		return h.predict(w, r, id, segments[1], "", false)
	case h.torch() && isKServeV1(segments):
		return h.kserveV1(w, r, id, segments[2])
	case h.torch() && segments[0] == "v2":
		return h.kserveV2(w, r, id, segments)
	case segments[0] == "ping" && len(segments) == 1:
		return h.ping(w)
	case segments[0] == "api-description":
		return h.describeAPI(w)
	case segments[0] == "predictions" && len(segments) >= 2:
		if len(segments) > 2 && h.torch() {
			return h.predictVersion(w, r, id, segments)
		}
		return h.predict(w, r, id, segments[1], "", false)
	case segments[0] == "invocations":
		return h.invocations(w, r, id)
	case invoke:
		return h.predict(w, r, id, segments[1], "", true)
	case len(segments) == 2 && segments[1] == "predict":
		return h.predict(w, r, id, segments[0], "", true)
	case len(segments) == 3 && segments[2] == "predict" && h.torch():
		return h.predict(w, r, id, segments[0], segments[1], true)
	}
	return errNoResource
}

func (h *handler) torch() bool { return h.store.Dialect() == mms.TorchServe }

var (
	errNoResource = newError(http.StatusNotFound, "ResourceNotFoundException", "Requested resource is not found, please refer to API document.")
	errNoMethod   = newError(http.StatusMethodNotAllowed, "MethodNotAllowedException", "Requested method is not allowed, please refer to API document.")
)

func newError(status int, kind, message string) *mms.Error {
	return &mms.Error{Status: status, Type: kind, Message: message}
}

// requestID returns a random UUID.
func requestID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// status is the body of most responses.
type status struct {
	Status string `json:"status"`
}

func writeJSON(w http.ResponseWriter, code int, body any) {
	text, err := json.MarshalIndent(body, "", "  ")
	if err != nil {
		panic(err) // all bodies are types of this package
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write(append(text, '\n')) // the client may have disconnected
}

// ping reports whether all models have the workers that they should have.
func (h *handler) ping(w http.ResponseWriter) error {
	health := h.store.Health()
	word, code := "Healthy", http.StatusOK
	switch {
	case h.torch() && (health.Short || health.Away):
		word, code = "Unhealthy", http.StatusInternalServerError
	case health.Away || health.Living == 0 && health.Wanted > 0:
		// MMS returns 200 here, but load balancers look only at the status.
		word, code = "Unhealthy", http.StatusServiceUnavailable
	case health.Living < health.Wanted:
		word = "Partial Healthy"
	}
	writeJSON(w, code, status{word})
	return nil
}

// describeAPI returns an OpenAPI document of this port's paths.
func (h *handler) describeAPI(w http.ResponseWriter) error {
	paths := map[string]map[string]any{}
	add := func(path string, verbs ...string) {
		paths[path] = map[string]any{}
		for _, verb := range verbs {
			paths[path][verb] = map[string]any{"responses": map[string]any{"default": map[string]string{"description": "an answer, or {code, type, message}"}}}
		}
	}
	if h.inference {
		add("/ping", "get")
		add("/predictions/{model_name}", "post")
		add("/invocations", "post")
		add("/models/{model_name}/invoke", "post")
		add("/api-description", "get")
	}
	if h.management {
		add("/models", "get", "post")
		add("/models/{model_name}", "get", "put", "delete")
	}
	if h.torch() {
		if h.inference {
			add("/predictions/{model_name}/{model_version}", "post")
			add("/explanations/{model_name}", "post")
			add("/explanations/{model_name}/{model_version}", "post")
			add("/v1/models/{model_name}:predict", "post")
			add("/v1/models/{model_name}:explain", "post")
			add("/v2/models/{model_name}/infer", "post")
			add("/v2/models/{model_name}/explain", "post")
		}
		if h.management {
			add("/models/{model_name}/{model_version}", "get", "put", "delete")
			add("/models/{model_name}/{model_version}/set-default", "put")
			add("/v1/models/{model_name}", "get")
		}
	}
	writeJSON(w, http.StatusOK, map[string]any{
		"openapi": "3.0.1", "info": map[string]string{"title": "Model Server APIs", "version": "1.0.0"}, "paths": paths,
	})
	return nil
}
