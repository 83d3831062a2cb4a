package kservehttp

import (
	"cmp"
	"errors"
	"net/http"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

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
	_ = sendJSON(w, status, failure{Error: text}) // cannot fail for a string
}

// A failure is the body of an error response. Error has Triton's text; the other members
// are extensions for people who write requests themselves.
type failure struct {
	Error   string         `json:"error"`
	Hint    string         `json:"hint,omitzero"`
	Example jsontext.Value `json:"example,omitzero"` // a valid body for the model
}

// An invalidBody is an error about the JSON body of a request, with what a valid one looks
// like.
type invalidBody struct {
	error
	example []byte // nil if there is none
	hint    string
}

func (e invalidBody) Unwrap() error { return e.error }

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
	body := failure{Error: err.Error()}
	if e, ok := errors.AsType[*infer.Error](err); ok {
		body.Hint = e.Hint
	}
	if e, ok := errors.AsType[invalidBody](err); ok {
		body.Hint, body.Example = cmp.Or(body.Hint, e.hint), e.example
	}
	if sendJSON(w, kserve.HTTPStatus(code), body) != nil { // the text is not valid UTF-8
		sendError(w, kserve.HTTPStatus(code), strings.ToValidUTF8(err.Error(), "\uFFFD"))
	}
}

func notFound(w http.ResponseWriter, _ *http.Request) {
	sendError(w, http.StatusNotFound, "Not Found")
}
