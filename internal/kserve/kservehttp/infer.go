package kservehttp

import (
	"net/http"
	"strconv"
	"sync"

	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/kserve"
)

var responses = sync.Pool{New: func() any { return new(infer.Response) }}

// infer runs a model. The context of r ends when the client leaves, and so
// does the request then.
func (h *handler) infer(w http.ResponseWriter, r *http.Request) error {
	req, err := h.decode(r)
	if err != nil {
		return err
	}
	defer req.Memory.Release()
	req.Client = kserve.ClientOf(r.RemoteAddr)
	resp := responses.Get().(*infer.Response)
	defer responses.Put(resp)
	if err := h.backend.Infer(r.Context(), &req.Request, resp); err != nil {
		return err
	}
	defer resp.Release()
	return send(w, req, resp)
}

func (h *handler) decode(r *http.Request) (*kserve.Request, error) {
	if encoding := r.Header.Get("Content-Encoding"); encoding != "" && encoding != "identity" {
		return nil, infer.Errorf(infer.Unsupported, "Unsupported compression type")
	}
	body, err := readBody(r, h.opts.MaxBytes)
	if err != nil {
		return nil, err
	}
	defer body.Release() // the request holds on to it, if it is made of it
	return kserve.DecodeRequest(body, kserve.DecodeOptions{
		Model:      r.PathValue("model"),
		Version:    r.PathValue("version"),
		JSONLength: r.Header.Get(kserve.JSONLengthHeader),
		MaxBytes:   h.opts.MaxBytes,
	})
}

// scratch is memory for the JSON part of answers.
var scratch = sync.Pool{New: func() any { return new([]byte) }}

// maxScratch is the most that is kept for the next answer.
const maxScratch = 1 << 20

func send(w http.ResponseWriter, req *kserve.Request, resp *infer.Response) error {
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
	header.Set("Content-Type", "application/json")
	if binary {
		header.Set("Content-Type", "application/octet-stream")
		header.Set(kserve.JSONLengthHeader, strconv.Itoa(len(doc)))
	}
	header.Set("Content-Length", strconv.Itoa(size))
	// Errors of Write mean that the client has left, and nobody is to be told.
	_, _ = w.Write(doc)
	for data := range req.Binary(resp) {
		_, _ = w.Write(data)
	}
	return nil
}
