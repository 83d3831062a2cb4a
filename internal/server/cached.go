package server

import (
	"slices"
	"strconv"
	"time"

	"github.com/shoal-serving/shoal/internal/cache"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/servable"
)

// A lookup is what the cache knows of a request.
type lookup struct {
	asked bool // the cache was asked
	hit   bool // and had the response
	key   cache.Key
	took  time.Duration

	versions []uint64 // of an ensemble: those in the key
}

// cached reports whether responses of a version are cached.
func (s *Server) cached(v *servable.Version) bool { return s.cache != nil && v.Config.CacheResponses }

// lookUp answers a request from the cache, and reports whether it did. Version in.version answers
// the request, which was checked.
func (s *Server) lookUp(in *inference, resp *infer.Response) bool {
	v, req := in.version, in.req
	in.lookup = lookup{}
	if !s.cached(v) {
		return false
	}
	began := time.Now()
	var space [8]uint64
	pinned, _ := req.Pinned.(pins)
	versions := s.appendVersions(space[:0], v, pinned)
	key := cache.KeyOf(versions, sharers(v, req), req)
	hit := s.cache.Get(key, resp)
	now := time.Now()
	in.lookup = lookup{asked: true, hit: hit, key: key, took: now.Sub(began)}
	if !hit && len(v.Config.Steps) > 0 {
		in.lookup.versions = slices.Clone(versions)
	}
	if hit {
		resp.Times = infer.Timeline{Queued: now, Taken: now, RunStarted: now, RunEnded: now, Split: now}
		if req.Queued != nil {
			req.Queued()
		}
	}
	return hit
}

// appendVersions appends the numbers of the versions that answer requests to v: its own and, if it
// is an ensemble, those of its members, which are pinned if it is itself a member. While models are
// replaced, ensembles may contain each other for a moment.
func (s *Server) appendVersions(all []uint64, v *servable.Version, pinned pins) []uint64 {
	if slices.Contains(all, v.ID) {
		return all
	}
	all = append(all, v.ID)
	for _, m := range stepsOf(v) {
		member, known := pinned[pin{m.Model, m.Version}]
		if !known {
			member = (*s.serving.Load())[m.Model].find(m.Version)
		}
		if member != nil {
			all = s.appendVersions(all, member, pinned)
		}
	}
	return all
}

// keep puts the response to a request into the cache, if its version is cached.
func (s *Server) keep(in *inference, resp *infer.Response) {
	if !in.lookup.asked {
		return
	}
	began := time.Now()
	if in.lookup.versions != nil && !s.stillServe(in) {
		in.version.Stats.CacheMiss(in.lookup.took + time.Since(began))
		return
	}
	outcome := s.cache.Put(in.lookup.key, resp)
	if outcome == cache.TooLarge {
		s.log.Debug("a response is larger than the cache", "model", in.req.Model, "version", in.version.Name())
	}
	if outcome != cache.Known {
		in.version.Stats.CacheMiss(in.lookup.took + time.Since(began))
	}
}

// stillServe reports whether the members of an ensemble are those that the key was made of. They
// are selected after the cache was asked, so that others may have answered.
func (s *Server) stillServe(in *inference) bool {
	pinned, _ := in.req.Pinned.(pins)
	var space [8]uint64
	return slices.Equal(in.lookup.versions, s.appendVersions(space[:0], in.version, pinned))
}

// sharers returns the names, tenants and rights of the callers that may share a response; none means all. A
// model that may call others does so with the rights of its caller, and another caller, or the same
// one with other rights, may not be allowed to see what it computed.
func sharers(v *servable.Version, req *infer.Request) []string {
	if v.Config.Backend == "onnxruntime" || req.Caller == nil {
		return nil
	}
	var all []string
	for _, p := range req.Caller.Principals {
		all = append(all, p.Name, p.Tenant, strconv.Itoa(len(p.Grants)))
		for _, g := range p.Grants {
			all = append(all, g.Role.String(), strconv.Itoa(len(g.Models)))
			all = append(all, g.Models...)
		}
	}
	return all
}
