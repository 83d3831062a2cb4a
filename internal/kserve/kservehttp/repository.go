package kservehttp

import (
	"net/http"

	"github.com/shoal-serving/shoal/internal/budget"
	"github.com/shoal-serving/shoal/internal/kserve"
)

// handleRepository adds the routes of the repository API. Those that name a repository
// exist only to return a meaningful error.
func (h *handler) handleRepository() {
	for suffix, do := range map[string]action{
		"/index":                 h.repositoryIndex,
		"/models/{model}/load":   h.load,
		"/models/{model}/unload": h.unload,
	} {
		h.handle(http.MethodPost, "/v2/repository"+suffix, do)
		h.handle(http.MethodPost, "/v2/repository/{repository}"+suffix, namedRepository)
	}
}

func namedRepository(http.ResponseWriter, *http.Request) error { return kserve.ErrRepositoryName }

type indexEntry struct {
	Name    string `json:"name"`
	Version string `json:"version,omitzero"`
	State   string `json:"state,omitzero"`
	Reason  string `json:"reason,omitzero"`
}

func (h *handler) repositoryIndex(w http.ResponseWriter, r *http.Request) error {
	ready, err := read(h, w, r, kserve.DecodeIndex)
	if err != nil {
		return err
	}
	var entries []indexEntry
	for _, e := range kserve.Index(r.Context(), h.control, ready) {
		entries = append(entries, indexEntry(e))
	}
	return h.sendJSON(w, entries)
}

func (h *handler) load(w http.ResponseWriter, r *http.Request) error {
	charge := h.opts.Budget.Open(notInference)
	defer charge.Close() // files that were sent stay in memory until the model is loaded
	opts, err := readCharged(h, w, r, &charge, kserve.DecodeLoad)
	if err != nil {
		return err
	}
	if opts.Epoch, err = kserve.ParseEpoch(r.Header.Get(kserve.EpochHeader)); err != nil {
		return err
	}
	err = h.control.Load(r.Context(), r.PathValue("model"), opts)
	if kserve.LoadFailed(err) {
		w.Header().Set(kserve.LoadFailedHeader, "true")
	}
	return err
}

func (h *handler) unload(w http.ResponseWriter, r *http.Request) error {
	opts, err := read(h, w, r, kserve.DecodeUnload)
	if err != nil {
		return err
	}
	if opts.Epoch, err = kserve.ParseEpoch(r.Header.Get(kserve.EpochHeader)); err != nil {
		return err
	}
	return h.control.Unload(r.Context(), r.PathValue("model"), opts)
}

// read decodes the body of a request with decode, which must not retain it.
func read[T any](h *handler, w http.ResponseWriter, r *http.Request, decode func(body []byte, limits *kserve.Limits) (T, error)) (T, error) {
	charge := h.opts.Budget.Open(notInference)
	defer charge.Close()
	return readCharged(h, w, r, &charge, decode)
}

// notInference is the key of the charge of all requests that are not inferences.
const notInference = ""

// readCharged is read with a charge that stays open.
func readCharged[T any](h *handler, w http.ResponseWriter, r *http.Request, charge *budget.Charge, decode func(body []byte, limits *kserve.Limits) (T, error)) (T, error) {
	body, err := h.readBody(w, r, charge)
	if err != nil {
		var none T
		return none, err
	}
	defer body.Release()
	return decode(body.B, &h.opts.Limits)
}
