package mmshttp

import (
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/kserve"
	"github.com/shoal-serving/shoal/internal/mms"
	"github.com/shoal-serving/shoal/internal/servable"
)

// invocations answers SageMaker, which need not name a model.
func (f *face) invocations(w http.ResponseWriter, r *http.Request, id string) error {
	name := r.URL.Query().Get("model_name")
	if name == "" {
		started := slices.DeleteFunc(f.store.Defaults(), func(v *servable.Version) bool { return !mms.About(v).AtStart })
		if len(started) == 1 {
			name = started[0].Config.Name
		}
	}
	return f.predict(w, r, id, name, "", true)
}

// predictVersion answers a prediction of a version. What is behind it in the path
// reaches the handler, as in TorchServe, as if it were a header.
func (f *face) predictVersion(w http.ResponseWriter, r *http.Request, id string, segments []string) error {
	more := strings.Join(segments[3:], "/")
	if strings.ContainsAny(more, "\r\n") {
		return errNoResource // headers have none of these
	}
	r.Header["url_path"] = []string{more}
	return f.predict(w, r, id, segments[1], segments[2], false)
}

// predict answers a prediction. Without a model in the path TorchServe looks for it in
// the form. Parameters of the query are part of the data on those paths where MMS has it
// so.
func (f *face) predict(w http.ResponseWriter, r *http.Request, id, model, version string, query bool) error {
	if model != "" && f.opts.KServe != nil && f.store.Foreign(model) {
		f.forward(w, r, model, version)
		return nil
	}
	parts, err := f.parts(w, r, query)
	if err != nil {
		return err
	}
	if model == "" && f.torch() {
		if at := slices.IndexFunc(parts, func(p mms.Part) bool { return p.Name == "model_name" }); at >= 0 {
			model = string(parts[at].Data)
		}
	}
	if model == "" {
		return badRequest("Parameter model_name is required.")
	}
	if r.Method == http.MethodOptions {
		if _, err := f.store.Find(model, version); err != nil {
			return err
		}
		return f.describeAPI(w)
	}
	r.Header["Host"] = []string{r.Host} // net/http keeps it elsewhere, and handlers look for it here
	var resp infer.Response
	answer, err := f.store.Predict(r.Context(), &mms.Request{
		ID: id, Model: model, Version: version, Client: kserve.ClientOf(r.RemoteAddr), Header: r.Header, Parts: parts,
	}, &resp)
	if err != nil {
		return err
	}
	defer resp.Release()
	h := w.Header()
	h["Content-Type"] = nil // none, unless the handler says
	for _, pair := range answer.Header {
		h.Set(pair[0], pair[1])
	}
	h.Set("Content-Length", strconv.Itoa(len(answer.Body)))
	w.WriteHeader(answer.Status)
	_, _ = w.Write(answer.Body) // the client may have left
	return nil
}

// forward answers a prediction of a model that was not registered: the request's body is
// one of KServe.
func (f *face) forward(w http.ResponseWriter, r *http.Request, model, version string) {
	path := "/v2/models/" + model
	if version != "" {
		path += "/versions/" + version
	}
	r.URL = &url.URL{Path: path + "/infer"}
	f.opts.KServe.ServeHTTP(w, r)
}

// parts reads the data of a request: its body, or the fields of a form.
func (f *face) parts(w http.ResponseWriter, r *http.Request, query bool) ([]mms.Part, error) {
	var parts []mms.Part
	if query {
		var err error
		if parts, err = fields(r.URL.RawQuery); err != nil {
			return nil, badRequest(err.Error())
		}
	}
	var more []mms.Part
	err := f.inTime(w, r, func() (err error) {
		more, err = f.readParts(http.MaxBytesReader(w, r.Body, f.opts.MaxRequest), r)
		return err
	})
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return nil, tell(http.StatusRequestEntityTooLarge, "RequestEntityTooLargeException", fmt.Sprintf(
			"found a body of more than %d bytes; max_request_size in config.properties allows more", f.opts.MaxRequest))
	}
	if _, ok := errors.AsType[*mms.Error](err); !ok && err != nil {
		err = badRequest(err.Error())
	}
	return append(parts, more...), err
}

// inTime reads the body of a request. A client that is too slow is not waited for.
func (f *face) inTime(w http.ResponseWriter, r *http.Request, read func() error) error {
	if f.opts.BodyTimeout == 0 || r.ContentLength == 0 {
		return read()
	}
	conn := http.NewResponseController(w)
	// A writer that has no connection has no deadlines either.
	_ = conn.SetReadDeadline(time.Now().Add(f.opts.BodyTimeout))
	err := read()
	switch {
	case err == nil:
		// Whether the client is still there is found out by reading on.
		_ = conn.SetReadDeadline(time.Time{})
	case errors.Is(err, os.ErrDeadlineExceeded):
		// The deadline stays, so that nobody waits for the rest of the body.
		return tell(http.StatusRequestTimeout, "RequestTimeoutException", fmt.Sprintf(
			"the body of the request did not arrive within %v; send it faster, or raise --body-timeout-secs", f.opts.BodyTimeout))
	}
	return err
}

func (f *face) readParts(body io.Reader, r *http.Request) ([]mms.Part, error) {
	kind, options, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	switch kind {
	case "multipart/form-data":
		return readForm(multipart.NewReader(body, options["boundary"]))
	case "application/x-www-form-urlencoded":
		return readFields(body)
	}
	data, err := readAll(body, r.ContentLength, f.opts.MaxRequest)
	return []mms.Part{{Name: mms.Body, Type: kind, Data: data}}, err
}

// readAll reads a body, into memory of its size if that is known and allowed.
func readAll(body io.Reader, size, most int64) ([]byte, error) {
	if size < 0 || size > most {
		return io.ReadAll(body)
	}
	data := make([]byte, size)
	_, err := io.ReadFull(body, data)
	return data, err
}

// maxFields is how many a form may have.
const maxFields = 1000

var errTooMany = fmt.Errorf("found more fields than a form may have, which are %d", maxFields)

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

// fields takes those of a form or a query apart, in their order. They are of no type.
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
