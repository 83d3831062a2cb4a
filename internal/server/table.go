package server

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/shoal-serving/shoal/internal/catalog"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/servable"
	"github.com/shoal-serving/shoal/internal/suggest"
)

// A model is an entry of the table. The server's lock guards all fields but name and turn.
type model struct {
	name string
	turn chan struct{} // size 1: the goroutine whose token is in it may change the model

	owner    string // the source that loads it; "" if none has
	expected bool   // expected to serve: present at startup or loaded since, and not unloaded
	states   map[int64]status
	draining []*servable.Version     // have left the table, and are not closed yet
	cancel   context.CancelCauseFunc // cancels the current load; nil if there is none
	waiting  int                     // loads that wait for their turn
	unloads  uint64                  // calls of Unload, which cancel the loads that came before
}

// A status is that of one version.
type status struct {
	state  State
	reason string // why it is not ready, or why the load failed that would have replaced it
}

// A State is the state of a version, as the repository index reports it.
type State string

// The states of a version.
const (
	StateLoading     State = "LOADING"
	StateReady       State = "READY"
	StateUnloading   State = "UNLOADING"
	StateUnavailable State = "UNAVAILABLE"
)

func (m *model) loading() bool {
	for _, s := range m.states {
		if s.state == StateLoading {
			return true
		}
	}
	return false
}

// A serving is what answers the requests for one model. It is replaced, never changed.
type serving struct {
	versions       []*servable.Version // ascending
	defaultVersion int64               // number of the default version; 0 means the newest
}

func (s serving) find(version string) *servable.Version {
	if len(s.versions) == 0 {
		return nil
	}
	if version == "" && s.defaultVersion == 0 {
		return s.versions[len(s.versions)-1]
	}
	number := s.defaultVersion
	if version != "" {
		for _, v := range s.versions {
			if v.Source.Label == version {
				return v
			}
		}
		var err error
		if number, err = strconv.ParseInt(version, 10, 64); err != nil {
			return nil
		}
	}
	return s.numbered(number)
}

// numbered returns the version with a number; nil if it does not serve. Labels of other versions may
// look like it.
func (s serving) numbered(number int64) *servable.Version {
	for _, v := range s.versions {
		if v.Number() == number {
			return v
		}
	}
	return nil
}

// of returns the version of an entry of the index, which has numbers.
func (s serving) of(e *catalog.IndexEntry) *servable.Version {
	number, err := strconv.ParseInt(e.Version, 10, 64)
	if err != nil {
		return nil
	}
	return s.numbered(number)
}

// Find returns a version of a model, by its number or its label. Version "" means the
// default one, which is the newest unless [Server.SetDefault] was called.
func (s *Server) Find(name, version string) (*servable.Version, error) {
	if v := (*s.serving.Load())[name].find(version); v != nil {
		return v, nil
	}
	return nil, s.missing(name, version)
}

// missing returns the error for a version that does not serve. The reason is in the index,
// and not in the error: it is for operators, not for clients.
func (s *Server) missing(name, version string) error {
	if err := s.notServing(name, version); err != nil {
		return err
	}
	return s.unknownModel(name, version) // without the lock: it compares names
}

// notServing is missing for a model that exists, or may exist; nil means that there is none.
func (s *Server) notServing(name, version string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.models[name]
	switch {
	case m == nil && !s.started:
		// A client that gets 404 does not ask again.
		err := infer.Errorf(infer.Unavailable, "the server is starting, and does not know yet whether it has a model %q", name).WithReason(infer.ModelLoading, name, "")
		err.RetryAfter = startRetry
		return err
	case m == nil:
		return nil
	case version == "" && (m.loading() || len(m.states) == 0 && len(m.turn) > 0): // its first load reads files
		return infer.Errorf(infer.Unavailable, "model %q is being loaded", name).WithReason(infer.ModelLoading, name, "")
	case version == "":
		return infer.Errorf(infer.NotFound, "no version of model %q is loaded", name).WithReason(infer.NoVersionServes, name, "")
	}
	n, err := strconv.ParseInt(version, 10, 64)
	if _, known := m.states[n]; err != nil || !known {
		return infer.Errorf(infer.NotFound, "model %q has no version %q", name, version).WithReason(infer.UnknownVersion, name, version)
	}
	return infer.Errorf(infer.Unavailable, "version %s of model %q is not ready", version, name).WithReason(infer.VersionNotReady, name, version)
}

// startRetry is when a client should ask again that asked before the models were listed.
const startRetry = time.Second

// unknownModel returns the error for a model that does not exist. The hint is the model that
// was probably meant, unless callers have rights: they may not know the names of all models.
func (s *Server) unknownModel(name, version string) error {
	err := infer.Errorf(infer.NotFound, "there is no model %q", name).WithReason(infer.UnknownModel, name, version)
	serving := *s.serving.Load()
	if s.gate.Required() || len(serving) > maxCompared {
		return err
	}
	names := slices.Sorted(maps.Keys(serving))
	switch meant := suggest.Nearest(name, names); {
	case meant != "":
		return err.WithHint("did you mean '%s'?", meant)
	case len(names) == 0:
		return err.WithHint("no model is loaded")
	case len(names) <= maxListed:
		return err.WithHint("the server has %s", strings.Join(names, ", "))
	}
	return err
}

const (
	maxListed   = 10  // models that an error lists
	maxCompared = 200 // models whose names are compared with an unknown one: each takes some microseconds, and clients may ask often
)

// Versions returns those of a model that serve, ascending.
func (s *Server) Versions(name string) []*servable.Version { return (*s.serving.Load())[name].versions }

// AllVersions returns every version that serves, ordered by name and number.
func (s *Server) AllVersions() []*servable.Version {
	var all []*servable.Version
	table := *s.serving.Load()
	for _, name := range slices.Sorted(maps.Keys(table)) {
		all = append(all, table[name].versions...)
	}
	return all
}

// SetDefault makes a version the one that answers requests without a version. It has no effect
// if the version does not serve: it may have been unloaded meanwhile.
func (s *Server) SetDefault(name string, number int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := (*s.serving.Load())[name]; now.numbered(number) != nil {
		s.publishLocked(name, serving{now.versions, number})
	}
}

// Owner returns the source that loaded a model; "" if none has.
func (s *Server) Owner(name string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m := s.models[name]; m != nil {
		return m.owner
	}
	return ""
}

// publishLocked replaces what answers the requests for a model.
func (s *Server) publishLocked(name string, now serving) {
	next := maps.Clone(*s.serving.Load())
	if len(now.versions) > 0 {
		next[name] = now
	} else {
		delete(next, name)
	}
	s.serving.Store(&next)
	s.changedLocked()
}

// takeTurn waits for the caller's turn to load a model, and returns its entry, or nil if the
// server is closing, and the entry's unloads from before it waited. The caller ends its turn by
// receiving from turn. The entry stays in the table while a load waits, so that Unload finds it.
func (s *Server) takeTurn(name string) (m *model, unloads uint64) {
	s.mu.Lock()
	m = s.models[name]
	if m == nil {
		m = &model{name: name, turn: make(chan struct{}, 1), states: map[int64]status{}}
		s.models[name] = m
	}
	m.waiting++
	unloads = m.unloads
	s.mu.Unlock()
	select {
	case m.turn <- struct{}{}:
	case <-s.closing:
		return nil, 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	m.waiting--
	return m, unloads
}

// inTable reports whether m is still in the table.
func (s *Server) inTable(m *model) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.models[m.name] == m
}

// doNotExpect lets the server be ready without a model that it cannot run, unless a version
// of the model serves.
func (s *Server) doNotExpect(m *model) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m.expected = m.expected && len(m.states) > 0
}

// forget removes a model that never served and is not expected to, unless a load of it waits.
func (s *Server) forget(m *model) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(m.states) == 0 && !m.expected && m.waiting == 0 {
		delete(s.models, m.name)
	}
}

// disown lets any source load a model that does not serve after its load failed.
func (s *Server) disown(m *model) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.Versions(m.name)) == 0 {
		m.owner = ""
	}
}

// Index lists the loaded models, and the known ones that a source adds, with the states of
// their versions. If ready, it lists only versions that are ready.
func (s *Server) Index(ready bool, known ...string) []catalog.IndexEntry {
	names := map[string]bool{}
	for _, name := range known {
		names[name] = true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, m := range s.models {
		for _, st := range m.states {
			names[name] = names[name] || st.state != StateUnavailable
		}
	}
	var index []catalog.IndexEntry
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if names[name] {
			index = append(index, s.models[name].index(name, s.Versions(name), ready)...)
		}
	}
	return index
}

// index returns the entries of one model, given its versions that serve. m is nil for a
// model that was never loaded. A version whose instances cannot be started is unavailable.
func (m *model) index(name string, serving []*servable.Version, ready bool) []catalog.IndexEntry {
	if (m == nil || len(m.states) == 0) && !ready {
		return []catalog.IndexEntry{{Name: name}}
	}
	if m == nil {
		return nil
	}
	var lines []catalog.IndexEntry
	var room [4]int64 // few models have more versions: the page of a node asks for those of thousands
	numbers := slices.AppendSeq(room[:0], maps.Keys(m.states))
	slices.Sort(numbers)
	for _, n := range numbers {
		st := m.states[n]
		if i := slices.IndexFunc(serving, func(v *servable.Version) bool { return v.Number() == n }); i >= 0 && st.state == StateReady {
			if err := serving[i].Scheduler.Outage(); err != nil {
				st = status{state: StateUnavailable, reason: err.Error()}
			}
		}
		if !ready || st.state == StateReady {
			lines = append(lines, catalog.IndexEntry{Name: name, Version: strconv.FormatInt(n, 10), State: string(st.state), Reason: st.reason})
		}
	}
	return lines
}
