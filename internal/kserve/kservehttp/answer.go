package kservehttp

import (
	"net/http"
	"strconv"

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

// sendDocument sends a response with a JSON body.
func sendDocument(w http.ResponseWriter, status int, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body) // fails only if the client has disconnected
}

func sendError(w http.ResponseWriter, status int, text string) {
	_ = sendJSON(w, status, struct { // cannot fail for a string
		Error string `json:"error"`
	}{text})
}

// fail sends an error response.
func (h *handler) fail(w http.ResponseWriter, err error) {
	err = kserve.TritonError(err, nil)
	code := infer.CodeOf(err)
	if after := kserve.RetryAfter(err); after != "" {
		w.Header().Set("Retry-After", after)
	}
	if h.opts.TritonStatus {
		code = kserve.TritonCode(code)
	}
	sendError(w, kserve.HTTPStatus(code), err.Error())
}

func notFound(w http.ResponseWriter, _ *http.Request) {
	sendError(w, http.StatusNotFound, "Not Found")
}
