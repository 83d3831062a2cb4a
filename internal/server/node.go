package server

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/shoal-serving/shoal/internal/catalog"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/modelconfig"
	"github.com/shoal-serving/shoal/internal/node"
	"github.com/shoal-serving/shoal/internal/servable"
	"github.com/shoal-serving/shoal/internal/stats"
	"github.com/shoal-serving/shoal/tensor"
)

// NodeModels describes all versions except those that were unloaded, for [node.Page].
func (s *Server) NodeModels() []node.Model {
	states := s.states()
	all, totals := make([]node.Model, len(states)), make([]stats.Totals, len(states)) // one allocation for thousands
	for i := range states {
		st, m := &states[i], &all[i]
		m.Name, m.Version, m.State, m.Reason = st.Name, st.Version, st.State, st.Reason
		if st.serves == nil {
			continue
		}
		m.Stats = &totals[i]
		describe(m, st.serves)
		if s.demand != nil { // readers add them up, and compare the sum with the memory for models
			m.Bytes = cmp.Or(s.demand.Counted(st.Name)/st.versions, m.Bytes)
		}
	}
	return all
}

// A versionState is an entry of the index, without paths in its reason.
type versionState struct {
	catalog.IndexEntry
	serves   *servable.Version // nil if it does not serve
	versions int64             // of its model that serve
}

// states returns the states of all versions except those that were unloaded, ordered by name and
// number.
func (s *Server) states() (all []versionState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	serving := *s.serving.Load()
	for _, name := range slices.Sorted(maps.Keys(s.models)) {
		serves := serving[name]
		for _, e := range s.models[name].index(name, serves.versions, false) {
			if e.State != "" && (e.State != string(StateUnavailable) || e.Reason != ReasonUnloaded) {
				if e.Reason != "" {
					e.Reason = infer.WithoutPaths(name, e.Reason)
				}
				all = append(all, versionState{e, serves.of(&e), int64(len(serves.versions))})
			}
		}
	}
	return all
}

// describe adds what is known of a version that serves.
func describe(m *node.Model, v *servable.Version) {
	*m.Stats = v.Stats.Totals()
	m.Digest, m.Bytes, m.LoadTime, m.Objective = fmt.Sprintf("%016x", v.Source.Fingerprint), v.Memory, v.LoadTime, v.Stats.Objective
	m.Requests, m.Failures, m.Queue = m.Stats.Success+m.Stats.Fail, m.Stats.Fail, v.Scheduler.Waiting()
	m.Busy = time.Duration(m.Stats.EngineTimes.Nanos)
	if policy, ok := v.Scheduler.Explain(); ok {
		m.Efficient = policy.TargetRows
		for _, size := range policy.Curve {
			m.Curve = append(m.Curve, node.Point{Rows: size.Rows, Takes: size.Expected})
		}
	}
}

// NodeFigures returns what the versions of a model have done, for [node.Options].
func (s *Server) NodeFigures(model string) []node.Figures {
	all := []node.Figures{}
	for _, v := range (*s.serving.Load())[model].versions {
		snapshot := v.Stats.Snapshot()
		f := node.Figures{Version: strconv.FormatInt(v.Number(), 10), Requests: snapshot.Success.Count + snapshot.Fail.Count, Failures: snapshot.Fail.Count}
		for _, code := range notOfTheVersion {
			f.Failures -= snapshot.Failed[code]
			f.Requests -= snapshot.Failed[code]
		}
		times, misshapen, unavailable := v.Stats.Latencies()
		f.Requests += unavailable
		f.Failures += misshapen + unavailable
		for _, l := range times {
			f.Times = append(f.Times, node.Bucket(l))
		}
		all = append(all, f)
	}
	return all
}

// asDeclared reports whether outputs have the types and shapes of the configuration.
func asDeclared(cfg *modelconfig.Config, outputs []tensor.Tensor) bool {
	rows := min(cfg.MaxBatchSize, 1) // dimensions before those of the configuration
	return !slices.ContainsFunc(outputs, func(t tensor.Tensor) bool {
		i := slices.IndexFunc(cfg.Outputs, func(o modelconfig.Tensor) bool { return o.Name == t.Name })
		if i < 0 || len(cfg.Outputs[i].Dims) == 0 {
			return false
		}
		spec := &cfg.Outputs[i]
		return t.Type != spec.Type || len(t.Shape) != rows+len(spec.Dims) ||
			!slices.EqualFunc(t.Shape[rows:], spec.Dims, func(got, want int64) bool { return want < 0 || got == want })
	})
}

// notOfTheVersion are failures that say nothing about the version of a model. Of those that were
// unavailable count adds the ones that do.
var notOfTheVersion = []infer.Code{infer.Cancelled, infer.Forbidden, infer.Unauthenticated, infer.Unavailable}
