package server

import (
	"time"

	"github.com/shoal-serving/shoal/internal/catalog"
	"github.com/shoal-serving/shoal/internal/explain"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/servable"
	"github.com/shoal-serving/shoal/internal/stats"
)

// Figures are the numbers of a loaded version.
type Figures struct {
	Model          string
	Version        int64
	Label          string            // the version's label; "" if it has none
	Tags           map[string]string // metric_tags of its configuration
	Scaled         bool              // its instances are workers that clients scale
	Instances      int               // instances that it should have
	AliveInstances int               // instances that can run requests
	Stats          stats.Snapshot
	Exemplars      stats.Exemplars
	Waiting        int             // requests in the queue now
	LoadTime       time.Duration   // including the warm-up
	Memory         int64           // bytes that the model holds; 0 means unknown
	Cached         bool            // its responses are cached
	CombineUnsafe  bool            // rows of several requests must not share a batch
	Policy         *explain.Policy // nil if the policy does not learn
	Slots          *explain.Slots  // nil if requests do not belong to sequences
}

// Figures returns the figures of every loaded version, ordered by name and number.
func (s *Server) Figures() []Figures {
	var all []Figures
	for _, v := range s.AllVersions() {
		f := figuresOf(v)
		f.Cached, f.Exemplars = s.cached(v), v.Stats.Exemplars()
		if e, ok := v.Scheduler.Explain(); ok {
			f.Policy = &e
		}
		all = append(all, f)
	}
	return all
}

// figuresOf returns the figures of a version without its exemplars and those of its policy.
func figuresOf(v *servable.Version) Figures {
	f := Figures{
		Model: v.Config.Name, Version: v.Number(), Label: v.Source.Label, Tags: v.Config.Proto.GetMetricTags(), Scaled: v.Source.Workers != nil, Instances: v.Config.Instances, AliveInstances: v.Alive(),
		Stats: v.Stats.Snapshot(), Waiting: v.Scheduler.Waiting(), Slots: v.Scheduler.Slots(), LoadTime: v.LoadTime, Memory: v.Memory, CombineUnsafe: v.Config.CombineUnsafeReason != "",
	}
	if f.Scaled {
		f.Instances, _ = v.Scale()
	}
	return f
}

// A Live describes a version of a model, whether it serves or not.
type Live struct {
	catalog.IndexEntry
	Instances int      // that it should have
	Figures   *Figures // without exemplars and those of the policy; nil if the version does not serve
}

// Live describes all versions except those that were unloaded.
func (s *Server) Live() []Live {
	states := s.states()
	all := make([]Live, 0, len(states))
	for _, st := range states {
		l := Live{IndexEntry: st.IndexEntry}
		if v := st.serves; v != nil {
			f := figuresOf(v)
			l.Figures, l.Instances = &f, f.Instances
		}
		all = append(all, l)
	}
	return all
}

// Counters returns the counters of a version that serves. Version "" means the default one. A
// version that takes the place of another has other counters.
func (s *Server) Counters(model, version string) (*stats.Counters, error) {
	v, err := s.Find(model, version)
	if err != nil {
		return nil, err
	}
	return v.Stats, nil
}

// UnknownModel returns the number of requests for models and versions that do not serve, by
// the code of the answer.
func (s *Server) UnknownModel() (byCode [infer.NumCodes]uint64) {
	for code := range byCode {
		byCode[code] = s.unknown[code].Load()
	}
	return byCode
}
