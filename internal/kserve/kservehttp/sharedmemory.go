package kservehttp

import (
	"net/http"

	"github.com/shoal-serving/shoal/internal/kserve"
)

// handleSharedMemory adds the routes of shared memory: of the system, and of GPUs, which is
// not supported.
func (h *handler) handleSharedMemory() {
	for _, region := range []string{"", "/region/{region}"} {
		system, cuda := "/v2/systemsharedmemory"+region, "/v2/cudasharedmemory"+region
		h.handle(http.MethodGet, system+"/status", h.regionStatus)
		h.handle(http.MethodPost, system+"/register", h.registerRegion)
		h.handle(http.MethodPost, system+"/unregister", func(_ http.ResponseWriter, r *http.Request) error {
			return kserve.UnregisterRegion(r.Context(), h.catalog, h.opts.Regions, r.PathValue("region"))
		})
		h.handle(http.MethodGet, cuda+"/status", func(w http.ResponseWriter, r *http.Request) error {
			if err := kserve.CUDARegionStatus(r.Context(), h.catalog, r.PathValue("region")); err != nil {
				return err
			}
			return h.sendRegions(w, nil)
		})
		h.handle(http.MethodPost, cuda+"/register", func(_ http.ResponseWriter, r *http.Request) error {
			return kserve.RegisterCUDARegion(r.Context(), h.catalog, h.opts.Regions, r.PathValue("region"))
		})
		h.handle(http.MethodPost, cuda+"/unregister", func(_ http.ResponseWriter, r *http.Request) error {
			return kserve.UnregisterCUDARegion(r.Context(), h.catalog, h.opts.Regions, r.PathValue("region"))
		})
	}
}

func (h *handler) regionStatus(w http.ResponseWriter, r *http.Request) error {
	regions, err := kserve.RegionStatus(r.Context(), h.catalog, h.opts.Regions, r.PathValue("region"))
	if err != nil {
		return err
	}
	return h.sendRegions(w, regions)
}

func (h *handler) sendRegions(w http.ResponseWriter, regions []kserve.Region) error {
	type entry struct {
		Name   string `json:"name"`
		Key    string `json:"key"`
		Offset uint64 `json:"offset"`
		Size   uint64 `json:"byte_size"`
	}
	entries := []entry{}
	for _, r := range regions {
		entries = append(entries, entry(r))
	}
	return h.sendJSON(w, entries)
}

func (h *handler) registerRegion(w http.ResponseWriter, r *http.Request) error {
	name := r.PathValue("region")
	if h.opts.Regions == nil { // the body does not matter
		return kserve.RegisterRegion(r.Context(), h.catalog, nil, kserve.Region{Name: name})
	}
	region, err := read(h, w, r, func(body []byte, limits *kserve.Limits) (kserve.Region, error) {
		return kserve.DecodeRegister(name, body, limits)
	})
	if err != nil {
		return err
	}
	return kserve.RegisterRegion(r.Context(), h.catalog, h.opts.Regions, region)
}
