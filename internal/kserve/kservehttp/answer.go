package kservehttp

import (
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/kserve"
)

func sendJSON(w http.ResponseWriter, status int, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	sendDocument(w, status, body)
	return nil
}

// sendDocument answers with JSON.
func sendDocument(w http.ResponseWriter, status int, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body) // fails only if the client has left
}

func sendError(w http.ResponseWriter, status int, text string) {
	_ = sendJSON(w, status, struct { // cannot fail for a string
		Error string `json:"error"`
	}{text})
}

// fail answers with an error.
func (h *handler) fail(w http.ResponseWriter, err error) {
	code := infer.CodeOf(err)
	if code == infer.Overloaded {
		w.Header().Set("Retry-After", retryAfter(err))
	}
	sendError(w, kserve.HTTPStatus(code), err.Error())
}

// retryAfter is in whole seconds, and at least one: a client that is told 0
// comes back at once.
func retryAfter(err error) string {
	var wait time.Duration
	if e, ok := errors.AsType[*infer.Error](err); ok {
		wait = e.RetryAfter
	}
	return strconv.Itoa(int(max(1, (wait+time.Second-1)/time.Second)))
}

func notFound(w http.ResponseWriter, _ *http.Request) {
	sendError(w, http.StatusNotFound, "Not Found")
}
