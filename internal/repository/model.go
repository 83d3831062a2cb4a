package repository

import (
	"context"
	"maps"
	"slices"
	"strconv"

	"github.com/shoal-serving/shoal/internal/infer"
)

// A model is what is remembered of a name. All but turn and name are guarded by
// the repository's lock.
type model struct {
	name string
	turn chan struct{} // size 1: who has put a token in may change the model

	wanted bool // it should serve: it was there at the start, or has served, and was not unloaded
	states map[int64]status
	halt   context.CancelCauseFunc // ends the load that is under way; nil if none is

	over look     // for the poll
	with Override // of the last load
	at   stamp    // of the disk at the last load
}

// A status is that of one version.
type status struct {
	state  State
	reason string // why it is not ready, or why the last load failed that would have replaced it
}

// A State says what a version is doing, in Triton's words.
type State string

// The states of a version.
const (
	Loading     State = "LOADING"
	Ready       State = "READY"
	Unloading   State = "UNLOADING"
	Unavailable State = "UNAVAILABLE"
)

func (m *model) loading() bool {
	for _, s := range m.states {
		if s.state == Loading {
			return true
		}
	}
	return false
}

// take waits for the caller's turn to change a model, which the caller ends, and
// returns what is remembered of the name; nil if the repository is closing. What was
// forgotten while it waited is remembered anew.
func (r *Repository) take(name string) *model {
	for {
		r.mu.Lock()
		m := r.claimLocked(name)
		r.mu.Unlock()
		select {
		case m.turn <- struct{}{}:
		case <-r.closing:
			return nil
		}
		if r.remembers(m) {
			return m
		}
		<-m.turn
	}
}

// remembers reports whether m has not been forgotten; see refuse.
func (r *Repository) remembers(m *model) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.models[m.name] == m
}

// claimLocked returns what is remembered of a name, which is nothing at first.
func (r *Repository) claimLocked(name string) *model {
	m := r.models[name]
	if m == nil {
		m = &model{name: name, turn: make(chan struct{}, 1), states: map[int64]status{}}
		r.models[name] = m
	}
	return m
}

// begin runs f beside, unless the repository is closing.
func (r *Repository) begin(f func()) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return false
	}
	r.work.Go(f)
	return true
}

// An Entry is one line of the index.
type Entry struct {
	Name    string
	Version string // "" if the model has not been loaded yet
	State   State
	Reason  string
}

// Index lists the models that are on disk or loaded, with the states of their
// versions, or only what is ready.
func (r *Repository) Index(ready bool) []Entry {
	names := map[string]bool{}
	onDisk, _ := scan(r.opts.Paths) // what cannot be read is not listed
	for name := range onDisk {
		names[name] = true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, m := range r.models {
		for _, s := range m.states {
			names[name] = names[name] || s.state != Unavailable
		}
	}
	var index []Entry
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if names[name] {
			index = append(index, r.models[name].index(name, (*r.serving.Load())[name], ready)...)
		}
	}
	return index
}

// index returns the lines of one model, of which the versions in serving are loaded. m
// is nil if it was never asked for. A version that is loaded but whose instances cannot
// be started is unavailable.
func (m *model) index(name string, serving []*Version, ready bool) []Entry {
	if (m == nil || len(m.states) == 0) && !ready {
		return []Entry{{Name: name}}
	}
	if m == nil {
		return nil
	}
	var lines []Entry
	for _, n := range slices.Sorted(maps.Keys(m.states)) {
		s := m.states[n]
		if i := slices.IndexFunc(serving, func(v *Version) bool { return v.Number == n }); i >= 0 && s.state == Ready {
			if err := serving[i].Scheduler.Outage(); err != nil {
				s = status{state: Unavailable, reason: err.Error()}
			}
		}
		if !ready || s.state == Ready {
			lines = append(lines, Entry{Name: name, Version: strconv.FormatInt(n, 10), State: s.state, Reason: s.reason})
		}
	}
	return lines
}

// notAllowed answers clients that want to change which models are loaded where
// that is not theirs to say.
func (r *Repository) notAllowed() error {
	if r.opts.Mode == Explicit {
		return nil
	}
	return infer.Errorf(infer.Unavailable, "clients cannot load or unload models of this server; start it with --model-control-mode=explicit").
		Because(infer.LoadNotAllowed, "", "")
}
