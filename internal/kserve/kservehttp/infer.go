package kservehttp

import (
	"errors"
	"io"
	"net/http"
	"strconv"
	"sync"

	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/kserve"
	"github.com/shoal-serving/shoal/tensor"
)

// infer runs a model. The context of r ends when the client leaves, and so
// does the request then.
func (h *handler) infer(w http.ResponseWriter, r *http.Request) error {
	req, err := h.decode(w, r)
	if err != nil {
		return err
	}
	defer req.Memory.Release()
	req.Client = kserve.ClientOf(r.RemoteAddr)
	if err := h.checkRaw(req); err != nil {
		return err
	}
	resp := kserve.GetResponse()
	defer kserve.PutResponse(resp)
	if err := kserve.Infer(r.Context(), h.backend, &req.Request, resp); err != nil {
		if errors.Is(err, infer.ErrMany) {
			return infer.Errorf(infer.Unsupported, "HTTP end point doesn't support models with decoupled transaction policy")
		}
		return err
	}
	defer resp.Release()
	return send(w, r, req, resp)
}

func (h *handler) decode(w http.ResponseWriter, r *http.Request) (*kserve.Request, error) {
	body, err := h.readBody(w, r)
	if infer.CodeOf(err) == infer.Unsupported {
		w.Header().Set("Accept-Encoding", "gzip, deflate")
	}
	if err != nil {
		return nil, err
	}
	defer body.Release() // the request holds on to it, if it is made of it
	return kserve.DecodeRequest(body, kserve.DecodeOptions{
		Model:      r.PathValue("model"),
		Version:    r.PathValue("version"),
		JSONLength: r.Header.Get(kserve.JSONLengthHeader),
		Limits:     h.opts.Limits,
	})
}

// checkRaw looks at a body without JSON, which is one string if the model's input
// has strings. Only the model tells.
func (h *handler) checkRaw(req *kserve.Request) error {
	if len(req.Inputs) != 1 || req.Inputs[0].Type != tensor.Invalid {
		return nil
	}
	over := h.opts.Limits.CheckString(int64(len(req.Inputs[0].Data)))
	if over == nil {
		return nil
	}
	m, err := h.catalog.Model(req.Model, req.Version)
	if err == nil && len(m.Inputs) == 1 && m.Inputs[0].Type == tensor.Bytes {
		return over
	}
	return err
}

func (h *handler) generate(_ http.ResponseWriter, r *http.Request) error {
	if _, err := h.catalog.Model(r.PathValue("model"), r.PathValue("version")); err != nil {
		return err
	}
	return kserve.ErrGenerate
}

// scratch is memory for the JSON part of answers.
var scratch = sync.Pool{New: func() any { return new([]byte) }}

// maxScratch is the most that is kept for the next answer.
const maxScratch = 1 << 20

// What answers say of their kind, made once. Nobody writes to it.
var (
	jsonType   = []string{"application/json"}
	binaryType = []string{"application/octet-stream"}
)

func send(w http.ResponseWriter, r *http.Request, req *kserve.Request, resp *infer.Response) error {
	memory := scratch.Get().(*[]byte)
	defer scratch.Put(memory)
	doc, err := req.AppendResponse((*memory)[:0], resp)
	if err != nil {
		return err
	}
	if cap(doc) <= maxScratch {
		*memory = doc
	}
	size, binary := len(doc), false
	for data := range req.Binary(resp) {
		size += len(data)
		binary = true
	}
	header := w.Header()
	header["Content-Type"] = jsonType
	if binary {
		header["Content-Type"] = binaryType
		header.Set(kserve.JSONLengthHeader, strconv.Itoa(len(doc)))
	}
	answer := func(w io.Writer) error { return write(w, doc, req, resp) }
	if encoding := answerEncoding(r.Header.Values("Accept-Encoding")); encoding != "" {
		header.Set("Content-Encoding", encoding)
		_ = deflate(w, encoding, answer) // fails only if the client has left
		return nil
	}
	header.Set("Content-Length", strconv.Itoa(size))
	connOf(r).together(w, answer)
	return nil
}

func write(w io.Writer, doc []byte, req *kserve.Request, resp *infer.Response) error {
	_, err := w.Write(doc)
	for data := range req.Binary(resp) {
		if err == nil {
			_, err = w.Write(data)
		}
	}
	return err
}
