package kservehttp

import (
	"net/http"

	"github.com/shoal-serving/shoal/internal/kserve"
)

// handleSharedMemory adds the routes of shared memory. Shared memory is not supported, so
// they report that no regions exist.
func (h *handler) handleSharedMemory() {
	for _, kind := range []string{"system", "cuda"} {
		for _, region := range []string{"", "/region/{region}"} {
			path := "/v2/" + kind + "sharedmemory" + region
			h.handle(http.MethodGet, path+"/status", func(w http.ResponseWriter, r *http.Request) error {
				if region := r.PathValue("region"); region != "" {
					return kserve.UnknownRegionStatus(kind, region)
				}
				sendDocument(w, http.StatusOK, []byte("[]"))
				return nil
			})
			h.handle(http.MethodPost, path+"/register", noSharedMemory)
			h.handle(http.MethodPost, path+"/unregister", noSharedMemory)
		}
	}
}

func noSharedMemory(http.ResponseWriter, *http.Request) error { return kserve.ErrSharedMemory }
