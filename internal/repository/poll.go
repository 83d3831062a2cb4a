package repository

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"
)

// settling is the time until the next check after a change: a file that is still being
// written is larger or newer by then.
const settling = time.Second

// poll loads, reloads and unloads models when their files are added, changed and removed.
func (r *Repository) poll() {
	wait := r.opts.Poll
	trouble := ""
	for {
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-r.closing:
			timer.Stop()
			return
		}
		unsettled, err := r.lookAround()
		wait = r.opts.Poll
		if unsettled {
			wait = min(wait, settling)
		}
		trouble = r.logTrouble(trouble, err)
	}
}

// logTrouble logs when the repository becomes unreadable, and when it is readable again.
func (r *Repository) logTrouble(before string, err error) string {
	now := ""
	if err != nil {
		now = err.Error()
	}
	switch {
	case now == before:
	case now == "":
		r.opts.Log.Info("the model repository can be read again")
	default:
		r.opts.Log.Error("the model repository cannot be read, or a part of it; models that are loaded stay, and nothing is loaded or unloaded there until it can", "error", err)
	}
	return now
}

// lookAround compares the files on disk with those of the last check, and reports whether a
// change still has to settle. If a path cannot be read, it does nothing: models there were
// not removed. If an entry of a path cannot, it does nothing about its model, and about the others
// what it does otherwise.
func (r *Repository) lookAround() (unsettled bool, err error) {
	there, err := r.list(true)
	if err != nil {
		return false, err
	}
	if r.demand != nil {
		r.demand.list(slices.Collect(maps.Keys(there)))
	}
	inMemory := r.demand.warmModels()
	var changed, gone []string
	var unknown []error
	r.mu.Lock()
	for name, f := range there {
		if f.unknown {
			unknown = append(unknown, f.err)
		}
		if r.demand == nil {
			r.claimLocked(name)
		}
	}
	for name, m := range r.models {
		f, now := there[name], fingerprint(0)
		switch {
		case r.demand != nil && !inMemory[name]:
			continue // the next request looks at its files
		case f != nil && f.unknown:
			continue
		case f != nil:
			now = f.whole()
		case !m.wanted:
			continue // it has not served, or was unloaded
		}
		switch m.polled.judge(f != nil, now) {
		case leave:
		case settle:
			unsettled = true
		case reload:
			changed = append(changed, name)
		case unload:
			gone = append(gone, name)
		}
	}
	r.mu.Unlock()
	for _, name := range gone {
		r.begin(func() {
			wait, _ := r.unload(name)
			wait()
		})
	}
	r.follow(changed)
	slices.SortFunc(unknown, func(a, b error) int { return cmp.Compare(a.Error(), b.Error()) }) // so that the same trouble has the same text
	return unsettled, errors.Join(unknown...)
}

// follow begins to load models whose files have changed. Ensembles wait for the others, which may
// be their members: they are checked against those that serve.
func (r *Repository) follow(changed []string) {
	var others sync.WaitGroup
	others.Add(len(changed))
	for _, name := range changed {
		done := sync.OnceFunc(others.Done)
		if !r.begin(func() {
			defer done()
			if r.isEnsemble(name) {
				done()
				others.Wait()
			}
			_ = r.reload(name, override{}, false) // the log and the index say what is wrong
		}) {
			done()
		}
	}
}
