package mmshttp

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/shoal-serving/shoal/internal/access"
	"github.com/shoal-serving/shoal/internal/budget"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/kserve"
	"github.com/shoal-serving/shoal/internal/mms"
	"github.com/shoal-serving/shoal/internal/servable"
	"github.com/shoal-serving/shoal/internal/trace"
)

// invocations handles requests from SageMaker, which need not name a model.
func (h *handler) invocations(w http.ResponseWriter, r *http.Request, id string) error {
	name := r.URL.Query().Get("model_name")
	if name == "" {
		started := slices.DeleteFunc(h.store.Defaults(), func(v *servable.Version) bool { return !mms.About(v).AtStart })
		if len(started) == 1 {
			name = started[0].Config.Name
		}
	}
	return h.predict(w, r, id, name, "", true)
}

// predictVersion handles a prediction of a version. As in TorchServe, the rest of the path
// is passed to the handler as if it were a header.
func (h *handler) predictVersion(w http.ResponseWriter, r *http.Request, id string, segments []string) error {
	more := strings.Join(segments[3:], "/")
	if strings.ContainsAny(more, "\r\n") {
		return errNoResource // not allowed in headers
	}
	r.Header["url_path"] = []string{more}
	return h.predict(w, r, id, segments[1], segments[2], false)
}

// predict handles a prediction. If the path names no model, TorchServe takes it from the
// form. On paths where MMS does so, query parameters are part of the data.
func (h *handler) predict(w http.ResponseWriter, r *http.Request, id, model, version string, query bool) (err error) {
	if model != "" && h.opts.KServe != nil && h.store.Foreign(model) {
		h.forward(w, r, model, version)
		return nil
	}
	charge := h.opts.Budget.OpenModel(model)
	defer charge.Close() // when the response has been sent
	parts, err := h.parts(w, r, query, &charge)
	if err != nil {
		return err
	}
	if model == "" && h.torch() {
		if at := slices.IndexFunc(parts, func(p mms.Part) bool { return p.Name == "model_name" }); at >= 0 {
			model = string(parts[at].Data)
		}
	}
	if model == "" {
		return badRequest("Parameter model_name is required.")
	}
	if r.Method == http.MethodOptions {
		if err := h.store.Authorize(r.Context(), access.Describe, model); err != nil {
			return err
		}
		if _, err := h.store.Find(model, version); err != nil {
			return err
		}
		return h.describeAPI(w)
	}
	r.Header["Host"] = []string{r.Host} // net/http moves it out of the header, where handlers expect it
	var span *trace.Root
	if h.opts.Tracer.On(model) {
		traceparent, tracestate := kserve.TraceHeaders(r.Header)
		span = h.opts.Tracer.Begin("mms", model, traceparent, tracestate)
		defer func() { kserve.EndTrace(span, err) }()
	}
	if !charge.Reserve(charge.Bytes()) {
		return errOverBudget
	}
	var resp infer.Response
	answer, err := h.store.Predict(r.Context(), &mms.Request{
		ID: id, Model: model, Version: version, Client: kserve.ClientID(r.RemoteAddr), Header: r.Header, Parts: parts, Trace: span.Request(),
	}, &resp)
	if err != nil {
		return err
	}
	defer resp.Release()
	if !charge.Settle(int64(len(answer.Body))) {
		return errOverBudget
	}
	header := w.Header()
	header["Content-Type"] = nil // prevents detection by net/http; the handler may set it
	for _, pair := range answer.Header {
		header.Set(pair[0], pair[1])
	}
	header.Set("Content-Length", strconv.Itoa(len(answer.Body)))
	w.WriteHeader(answer.Status)
	kserve.WriteAnswer(w, answer.Body)
	return nil
}

// forward handles a prediction of a model that was not registered: the body is a KServe
// request.
func (h *handler) forward(w http.ResponseWriter, r *http.Request, model, version string) {
	path := "/v2/models/" + model
	if version != "" {
		path += "/versions/" + version
	}
	r.URL = &url.URL{Path: path + "/infer"}
	h.opts.KServe.ServeHTTP(w, r)
}

// parts returns the data of a request: its body, or the fields of a form.
func (h *handler) parts(w http.ResponseWriter, r *http.Request, query bool, charge *budget.Charge) ([]mms.Part, error) {
	var parts []mms.Part
	if query {
		var err error
		if parts, err = fields(r.URL.RawQuery); err != nil {
			return nil, badRequest(err.Error())
		}
	}
	var more []mms.Part
	err := h.withBodyTimeout(w, r, func() (err error) {
		more, err = h.readParts(&chargedReader{from: http.MaxBytesReader(w, r.Body, h.opts.MaxRequest), charge: charge}, r)
		return err
	})
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return nil, newError(http.StatusRequestEntityTooLarge, "RequestEntityTooLargeException", fmt.Sprintf(
			"the body has more than %d bytes; raise max_request_size in config.properties", h.opts.MaxRequest))
	}
	if _, ok := errors.AsType[*mms.Error](err); !ok && err != nil {
		err = badRequest(err.Error())
	}
	return append(parts, more...), err
}

// withBodyTimeout calls read, which reads the body of a request, and fails if the body
// stalls for BodyTimeout.
func (h *handler) withBodyTimeout(w http.ResponseWriter, r *http.Request, read func() error) error {
	timer := kserve.BeginBody(w, r, h.opts.BodyTimeout)
	err := read()
	var rest error // of what is not used
	if err == nil {
		rest = kserve.SkipRest(r.Body)
	}
	if timer.End(cmp.Or(err, rest)) {
		if timer.Stopping() {
			return newError(http.StatusServiceUnavailable, "ServiceUnavailableException", "The server is shutting down, and the body of the request has not arrived.")
		}
		return newError(http.StatusRequestTimeout, "RequestTimeoutException", fmt.Sprintf(
			"the body of the request did not arrive within %v; send it faster, or raise --body-timeout-secs", h.opts.BodyTimeout))
	}
	if rest != nil {
		return badRequest(rest.Error())
	}
	return err
}

func (h *handler) readParts(body io.Reader, r *http.Request) ([]mms.Part, error) {
	kind, options, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	switch kind {
	case "multipart/form-data":
		return readForm(multipart.NewReader(body, options["boundary"]))
	case "application/x-www-form-urlencoded":
		return readFields(body)
	}
	data, err := readAll(body, r.ContentLength, h.opts.MaxRequest)
	return []mms.Part{{Name: mms.Body, Type: kind, Data: data}}, err
}

// A chargedReader reads a body, and charges twice its size: workers get a copy.
type chargedReader struct {
	from   io.Reader
	charge *budget.Charge
	free   int // bytes that are charged, and were not read yet
}

// chargeStep is how much of a body is charged at once.
const chargeStep = 64 << 10

var errOverBudget = newError(http.StatusTooManyRequests, "TooManyRequestsException", kserve.ErrOverBudget.Error())

func (c *chargedReader) Read(p []byte) (int, error) {
	if c.free == 0 {
		if !c.charge.Grow(2 * chargeStep) {
			return 0, errOverBudget
		}
		c.free = chargeStep
	}
	n, err := c.from.Read(p[:min(len(p), c.free)])
	c.free -= n
	return n, err
}

// maxPreallocated is how much memory is allocated for a body before it arrives.
const maxPreallocated = 1 << 20

// readAll reads a body, into memory of its size if that is known and small.
func readAll(body io.Reader, size, limit int64) ([]byte, error) {
	if size < 0 || size > min(limit, maxPreallocated) {
		return io.ReadAll(body)
	}
	data := make([]byte, size)
	_, err := io.ReadFull(body, data)
	return data, err
}

// maxFields is the maximum number of fields in a form.
const maxFields = 1000

var errTooMany = fmt.Errorf("the form has more than %d fields", maxFields)

func readForm(form *multipart.Reader) (parts []mms.Part, err error) {
	for {
		p, err := form.NextPart()
		if errors.Is(err, io.EOF) {
			return parts, nil
		}
		if err != nil {
			return nil, err
		}
		if len(parts) == maxFields {
			return nil, errTooMany
		}
		data, err := io.ReadAll(p)
		if err != nil {
			return nil, err
		}
		kind, _, _ := mime.ParseMediaType(p.Header.Get("Content-Type"))
		parts = append(parts, mms.Part{Name: p.FormName(), Type: kind, Data: data})
	}
}

func readFields(body io.Reader) ([]mms.Part, error) {
	text, err := io.ReadAll(body)
	if err != nil {
		return nil, err
	}
	return fields(string(text))
}

// fields parses a form or a query, in order. The parts have no content type.
func fields(text string) (parts []mms.Part, err error) {
	for pair := range strings.SplitSeq(text, "&") {
		if pair == "" {
			continue
		}
		if len(parts) == maxFields {
			return nil, errTooMany
		}
		name, value, _ := strings.Cut(pair, "=")
		if name, err = url.QueryUnescape(name); err != nil {
			return nil, err
		}
		if value, err = url.QueryUnescape(value); err != nil {
			return nil, err
		}
		parts = append(parts, mms.Part{Name: name, Data: []byte(value)})
	}
	return parts, nil
}
