// Package mmshttp speaks the REST APIs of Multi Model Server, TorchServe and
// SageMaker: predictions and management. What is done is for package mms; here are paths,
// parameters, statuses and bodies.
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

	"github.com/shoal-serving/shoal/internal/mms"
)

// Options configure the handlers.
type Options struct {
	MaxRequest  int64         // bytes of a body; 0 means 6,553,500
	BodyTimeout time.Duration // how long a body may take to come; 0 means any time
	// KServe answers predictions of models that were not registered. Nil means that there
	// are none.
	KServe http.Handler
	Log    *slog.Logger
}

// A face answers on one port.
type face struct {
	store                 *mms.Store
	opts                  Options
	inference, management bool
}

// Inference returns what answers predictions.
func Inference(store *mms.Store, opts Options) http.Handler {
	return &face{store: store, opts: opts.withDefaults(), inference: true}
}

// Management returns what answers those who register and scale models.
func Management(store *mms.Store, opts Options) http.Handler {
	return &face{store: store, opts: opts.withDefaults(), management: true}
}

// Both returns what answers both on one port, as SageMaker wants it.
func Both(store *mms.Store, opts Options) http.Handler {
	return &face{store: store, opts: opts.withDefaults(), inference: true, management: true}
}

func (o Options) withDefaults() Options {
	if o.MaxRequest == 0 {
		o.MaxRequest = 6553500
	}
	return o
}

// ServeHTTP implements [http.Handler].
func (f *face) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	id := requestID()
	h := w.Header()
	h.Set("X-Request-Id", id)
	h.Set("Pragma", "no-cache")
	h.Set("Cache-Control", "no-cache; no-store, must-revalidate, private")
	h.Set("Expires", "Thu, 01 Jan 1970 00:00:00 UTC")
	segments := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	err := f.route(w, r, id, segments)
	if err == nil || errors.Is(err, context.Canceled) {
		return // answered, or nobody is there to be
	}
	var told *mms.Error
	if !errors.As(err, &told) {
		f.opts.Log.Error("request failed", "path", r.URL.Path, "error", err)
		told = tell(http.StatusInternalServerError, "InternalServerException", err.Error())
	}
	if told.Status == http.StatusServiceUnavailable {
		h.Set("Retry-After", "1")
	}
	writeJSON(w, told.Status, struct {
		Code    int    `json:"code"`
		Type    string `json:"type"`
		Message string `json:"message"`
	}{told.Status, told.Type, told.Message})
}

// route finds who answers a path.
func (f *face) route(w http.ResponseWriter, r *http.Request, id string, segments []string) error {
	if r.Method == http.MethodOptions && segments[0] == "" {
		return f.describeAPI(w)
	}
	invoke := len(segments) == 3 && segments[0] == "models" && segments[2] == "invoke"
	if f.management && segments[0] == "models" && !(invoke && f.inference) {
		return f.manage(w, r, segments[1:])
	}
	if !f.inference {
		return errNoResource
	}
	if f.torch() {
		r.Header["url_path"] = []string{""} // see predictVersion
	}
	switch {
	case segments[0] == "ping" && len(segments) == 1:
		return f.ping(w)
	case segments[0] == "api-description":
		return f.describeAPI(w)
	case segments[0] == "predictions" && len(segments) >= 2:
		if len(segments) > 2 && f.torch() {
			return f.predictVersion(w, r, id, segments)
		}
		return f.predict(w, r, id, segments[1], "", false)
	case segments[0] == "invocations":
		return f.invocations(w, r, id)
	case invoke:
		return f.predict(w, r, id, segments[1], "", true)
	case len(segments) == 2 && segments[1] == "predict":
		return f.predict(w, r, id, segments[0], "", true)
	case len(segments) == 3 && segments[2] == "predict" && f.torch():
		return f.predict(w, r, id, segments[0], segments[1], true)
	}
	return errNoResource
}

func (f *face) torch() bool { return f.store.Dialect() == mms.TorchServe }

var (
	errNoResource = tell(http.StatusNotFound, "ResourceNotFoundException", "Requested resource is not found, please refer to API document.")
	errNoMethod   = tell(http.StatusMethodNotAllowed, "MethodNotAllowedException", "Requested method is not allowed, please refer to API document.")
)

func tell(status int, kind, message string) *mms.Error {
	return &mms.Error{Status: status, Type: kind, Message: message}
}

// requestID returns a random UUID.
func requestID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // it never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// status is the body of most answers.
type status struct {
	Status string `json:"status"`
}

func writeJSON(w http.ResponseWriter, code int, body any) {
	text, err := json.MarshalIndent(body, "", "  ")
	if err != nil {
		panic(err) // all bodies are of this package
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write(append(text, '\n')) // the client may have left
}

// ping tells whether there are the workers that there should be.
func (f *face) ping(w http.ResponseWriter) error {
	h := f.store.Health()
	word, code := "Healthy", http.StatusOK
	switch {
	case f.torch() && (h.Short || h.Away):
		word, code = "Unhealthy", http.StatusInternalServerError
	case h.Away || h.Living == 0 && h.Wanted > 0:
		// MMS says 200. Who balances the load looks at nothing else, so the status tells.
		word, code = "Unhealthy", http.StatusServiceUnavailable
	case h.Living < h.Wanted:
		word = "Partial Healthy"
	}
	writeJSON(w, code, status{word})
	return nil
}

// describeAPI lists the paths of this port, as an OpenAPI document.
func (f *face) describeAPI(w http.ResponseWriter) error {
	paths := map[string]map[string]any{}
	add := func(path string, verbs ...string) {
		paths[path] = map[string]any{}
		for _, verb := range verbs {
			paths[path][verb] = map[string]any{"responses": map[string]any{"default": map[string]string{"description": "an answer, or {code, type, message}"}}}
		}
	}
	if f.inference {
		add("/ping", "get")
		add("/predictions/{model_name}", "post")
		add("/invocations", "post")
		add("/models/{model_name}/invoke", "post")
		add("/api-description", "get")
	}
	if f.management {
		add("/models", "get", "post")
		add("/models/{model_name}", "get", "put", "delete")
	}
	if f.torch() {
		if f.inference {
			add("/predictions/{model_name}/{model_version}", "post")
		}
		if f.management {
			add("/models/{model_name}/{model_version}", "get", "put", "delete")
			add("/models/{model_name}/{model_version}/set-default", "put")
		}
	}
	writeJSON(w, http.StatusOK, map[string]any{
		"openapi": "3.0.1", "info": map[string]string{"title": "Model Server APIs", "version": "1.0.0"}, "paths": paths,
	})
	return nil
}
