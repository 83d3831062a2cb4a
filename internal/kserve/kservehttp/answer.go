package kservehttp

import (
	"cmp"
	"errors"
	"net/http"
	"path"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/kserve"
)

func (h *handler) sendJSON(w http.ResponseWriter, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return h.sendCharged(w, "application/json", body)
}

// sendCharged sends a response that describes the server or its models. It is charged if it is not
// small: all models together may have megabytes.
func (h *handler) sendCharged(w http.ResponseWriter, contentType string, body []byte) error {
	charge := h.opts.Budget.Open(notInference)
	defer charge.Close()
	if len(body) > smallDocument && !charge.Grow(int64(cap(body))) {
		return kserve.ErrOverBudget
	}
	send(w, http.StatusOK, contentType, body)
	return nil
}

// sendDocument sends a response with a JSON body.
func sendDocument(w http.ResponseWriter, status int, body []byte) {
	send(w, status, "application/json", body)
}

func send(w http.ResponseWriter, status int, contentType string, body []byte) {
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	kserve.WriteAnswer(w, body)
}

func sendError(w http.ResponseWriter, status int, text string) {
	sendDocument(w, status, encodeFailure(failure{Error: text}))
}

// A failure is the body of an error response. Error has Triton's text; the other members
// are extensions for users without a client library.
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
	body := failure{Error: err.Error()}
	if e, ok := errors.AsType[*infer.Error](err); ok {
		body.Hint = e.Hint
	}
	if e, ok := errors.AsType[invalidBody](err); ok {
		body.Hint, body.Example = cmp.Or(body.Hint, e.hint), e.example
	}
	sendDocument(w, h.errorStatus(w, err), encodeFailure(body))
}

// errorStatus returns the status of an error response, and sets its Retry-After header.
func (h *handler) errorStatus(w http.ResponseWriter, err error) int {
	if after := kserve.RetryAfter(err); after != "" {
		w.Header().Set("Retry-After", after)
	}
	code := infer.CodeOf(err)
	if h.opts.TritonStatus {
		code = kserve.TritonCode(code)
	}
	return kserve.HTTPStatus(code)
}

// encodeFailure encodes the body of an error response. A text that is not valid UTF-8 is
// sent without what goes with it, and with the invalid bytes replaced.
func encodeFailure(body failure) []byte {
	doc, err := json.Marshal(body)
	if err != nil {
		doc, _ = json.Marshal(failure{Error: strings.ToValidUTF8(body.Error, "\uFFFD")}) // cannot fail for valid text
	}
	return doc
}

func notFound(w http.ResponseWriter, r *http.Request) {
	sendDocument(w, http.StatusNotFound, encodeFailure(failure{Error: "Not Found", Hint: pathHint(r.URL.Path)}))
}

// pathHint says what to ask for in place of a path that does not exist.
func pathHint(p string) string {
	switch {
	case strings.HasSuffix(p, "/"):
		return "paths have no slash at the end"
	case path.Clean(p) != p:
		return "paths are matched literally, without dots and double slashes"
	case p == "/metrics":
		return "metrics are on a port of their own, by default 8002: see --metrics-port"
	case p == "/v2/models":
		return "list the models with POST /v2/repository/index"
	case strings.Contains(p, "/versions/"):
		return "versions are positive numbers; without /versions/N a request goes to the newest version"
	case p == "/v1" || strings.HasPrefix(p, "/v1/"):
		return "this port has version 2 of the protocol: infer with POST /v2/models/NAME/infer"
	}
	return "infer with POST /v2/models/NAME/infer; GET /v2/models/NAME describes a model, and POST /v2/repository/index lists all models"
}
