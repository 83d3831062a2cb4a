package repository

import "runtime/debug"

// drain lets the requests of versions run that are here, and unloads them, beside
// everything else.
func (r *Repository) drain(m *model, versions []*Version) {
	for _, v := range versions {
		end := func() {
			if err := v.close(); err != nil {
				r.opts.Log.Error("model unloaded with an error", "model", m.name, "version", v.Number, "error", err)
			}
			debug.FreeOSMemory() // its own memory is given back; what Go kept for its requests is, too
			r.mu.Lock()
			defer r.mu.Unlock()
			if m.states[v.Number].state == Unloading {
				m.states[v.Number] = status{Unavailable, "unloaded"}
			}
			r.opts.Log.Info("model unloaded", "model", m.name, "version", v.Number)
		}
		if !r.begin(end) {
			end()
		}
	}
}

// Unload takes a model out of service: new requests are refused, those that are
// here run, and a load that is under way ends. It returns before they have run.
func (r *Repository) Unload(name string) error {
	if err := r.notAllowed(); err != nil {
		return err
	}
	r.unload(name)
	return nil
}

func (r *Repository) unload(name string) {
	r.mu.Lock()
	m := r.models[name]
	if m == nil {
		r.mu.Unlock()
		return // as in Triton: it is not loaded, which is what the client wants
	}
	m.wanted = false
	if m.halt != nil {
		m.halt(errUnloaded)
	}
	r.mu.Unlock()
	m.turn <- struct{}{} // soon: a load that was halted is ending
	defer func() { <-m.turn }()
	if !r.remembers(m) {
		return // its load failed, and there was nothing else
	}
	r.mu.Lock()
	old := r.Versions(name)
	for _, v := range old {
		m.states[v.Number] = status{state: Unloading}
	}
	m.wanted, m.with, m.at, m.over = false, Override{}, 0, look{}
	r.publishLocked(name, nil)
	r.mu.Unlock()
	r.drain(m, old)
}
