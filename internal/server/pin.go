package server

import (
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/servable"
)

// pins are versions that served at the same time, by the model and version that a request asks
// for. A nil version is one that did not serve. They are held, and not changed.
type pins map[pin]*servable.Version

type pin struct{ model, version string }

// Pin selects the versions of an ensemble's members that requests with the returned value as
// [infer.Request.Pinned] use, and those of ensembles among them. All are from one table, so that
// they served at the same time, and they stay open until the caller calls release.
func (s *Server) Pin(members []infer.ModelVersion) (pinned any, release func()) {
	for {
		if p, ok := hold(*s.serving.Load(), members); ok {
			return p, p.release
		}
		// A version was closed in the meantime, so there is another table without it.
	}
}

// hold holds the versions of members in a table. It reports false, and holds none, if one of
// them is being closed.
func hold(table map[string]serving, members []infer.ModelVersion) (p pins, ok bool) {
	p = make(pins, len(members))
	for len(members) > 0 {
		var nested []infer.ModelVersion
		for _, m := range members {
			at := pin{m.Model, m.Version}
			if _, known := p[at]; known {
				continue
			}
			v := table[m.Model].find(m.Version)
			if v != nil && !v.Hold() {
				p.release()
				return nil, false
			}
			p[at] = v
			if v != nil {
				nested = append(nested, stepsOf(v)...)
			}
		}
		members = nested
	}
	return p, true
}

// stepsOf returns the members of a version that is an ensemble.
func stepsOf(v *servable.Version) (members []infer.ModelVersion) {
	for i := range v.Config.Steps {
		step := &v.Config.Steps[i]
		members = append(members, infer.ModelVersion{Model: step.Model, Version: step.VersionName()})
	}
	return members
}

func (p pins) release() {
	for _, v := range p {
		if v != nil {
			v.Unhold()
		}
	}
}
