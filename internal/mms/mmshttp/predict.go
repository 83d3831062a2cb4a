package mmshttp

import (
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/kserve"
	"github.com/shoal-serving/shoal/internal/mms"
)

// invocations answers SageMaker, which need not name a model.
func (f *face) invocations(w http.ResponseWriter, r *http.Request, id string) error {
	name := r.URL.Query().Get("model_name")
	if name == "" {
		started := ""
		for _, v := range f.server.Usual() {
			switch {
			case !v.AtStart:
			case started != "":
				return badRequest("Parameter model_name is required: more than one model was loaded at the start.")
			default:
				started = v.Name
			}
		}
		name = started
	}
	if name == "" {
		return badRequest("Parameter model_name is required.")
	}
	return f.predict(w, r, id, name, "", true)
}

// predict answers a prediction. Parameters of the query are part of the data on those
// paths where MMS has it so.
func (f *face) predict(w http.ResponseWriter, r *http.Request, id, model, version string, query bool) error {
	if r.Method == http.MethodOptions {
		if _, err := f.server.Find(model, version); err != nil {
			return err
		}
		return f.describeAPI(w)
	}
	parts, err := f.parts(w, r, query)
	if err != nil {
		return err
	}
	var resp infer.Response
	answer, err := f.server.Predict(r.Context(), &mms.Request{
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

// parts reads the data of a request: its body, or the fields of a form.
func (f *face) parts(w http.ResponseWriter, r *http.Request, query bool) ([]mms.Part, error) {
	var parts []mms.Part
	if query {
		for name, values := range r.URL.Query() {
			for _, v := range values {
				parts = append(parts, mms.Part{Name: name, Type: "text/plain; charset=UTF-8", Data: []byte(v)})
			}
		}
	}
	if f.opts.BodyTimeout > 0 {
		conn := http.NewResponseController(w)
		// A writer that has no connection has no deadlines either. Afterwards, whether the
		// client is still there is found out by reading on.
		_ = conn.SetReadDeadline(time.Now().Add(f.opts.BodyTimeout))
		defer func() { _ = conn.SetReadDeadline(time.Time{}) }()
	}
	body := http.MaxBytesReader(w, r.Body, f.opts.MaxRequest)
	kind, options, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	var more []mms.Part
	var err error
	switch kind {
	case "multipart/form-data":
		more, err = readForm(multipart.NewReader(body, options["boundary"]))
	case "application/x-www-form-urlencoded":
		more, err = readFields(body)
	default:
		more = []mms.Part{{Name: mms.Body, Type: kind}}
		more[0].Data, err = readAll(body, r.ContentLength, f.opts.MaxRequest)
	}
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return nil, tell(http.StatusRequestEntityTooLarge, "RequestEntityTooLargeException", fmt.Sprintf(
			"found a body of more than %d bytes; max_request_size in config.properties allows more", f.opts.MaxRequest))
	}
	if err != nil {
		return nil, badRequest(err.Error())
	}
	return append(parts, more...), nil
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
			return nil, fmt.Errorf("found more fields than a form may have, which are %d", maxFields)
		}
		data, err := io.ReadAll(p)
		if err != nil {
			return nil, err
		}
		kind, _, _ := mime.ParseMediaType(p.Header.Get("Content-Type"))
		parts = append(parts, mms.Part{Name: p.FormName(), Type: kind, Data: data})
	}
}

func readFields(body io.Reader) (parts []mms.Part, err error) {
	text, err := io.ReadAll(body)
	if err != nil {
		return nil, err
	}
	values, err := url.ParseQuery(string(text))
	if err != nil {
		return nil, err
	}
	for name, all := range values {
		for _, v := range all {
			parts = append(parts, mms.Part{Name: name, Type: "text/plain", Data: []byte(v)})
		}
	}
	return parts, nil
}
