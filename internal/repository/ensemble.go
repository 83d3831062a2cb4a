package repository

import (
	"cmp"
	"context"
	"fmt"
	"hash/fnv"
	"io"
	"slices"
	"strings"

	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/modelconfig"
	"github.com/shoal-serving/shoal/internal/panics"
	"github.com/shoal-serving/shoal/internal/servable"
)

// loadMembers loads the members of a model, if it is an ensemble, that have no version in
// service. around has the ensembles of which it is a member itself, the outermost first. All
// of the graph is looked at before a member is loaded, so that ensembles which contain each
// other do not wait for each other. The members that can be loaded are, as in Triton, and each is added
// to n first, so that it stays. When ctx ends, loadMembers returns its cause; the load
// of a member continues.
func (r *Repository) loadMembers(ctx context.Context, name string, with override, around []string, n *need) error {
	members := r.members(ctx, name, with)
	if len(around) == 0 && r.polls() {
		r.mu.Lock()
		r.claimLocked(name).members = members
		r.mu.Unlock()
	}
	around = append(around, name)
	if len(members) > 0 && r.demand != nil {
		// Their loads would wait for that of the ensemble, which holds one of a few places.
		return infer.Errorf(infer.Unsupported, "ensembles are not supported in mode demand yet; serve it with another --model-control-mode, or call the models from a Python model")
	}
	var first error
	for _, member := range members {
		if slices.Contains(around, member) {
			return infer.Errorf(infer.Invalid, "the ensemble is a step of itself: %s", strings.Join(append(around, member), " → "))
		}
		if err := r.loadMembers(ctx, member, override{}, around, n); err != nil {
			return err
		}
		r.addNeed(n, member)
		if len(r.server.Versions(member)) > 0 {
			continue
		}
		var err error
		select {
		case err = <-r.startChange(member, override{}, false, n.nested):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if err != nil {
			code := infer.CodeOf(err)
			if code == infer.NotFound {
				code = infer.Invalid // the ensemble exists
			}
			first = cmp.Or(first, error(infer.Errorf(code, "in ensemble '%s', %w", name, err)))
		}
	}
	return first
}

// A need is what a load in progress needs.
type need struct {
	ensemble string   // that is loaded
	members  []string // and theirs
	nested   bool     // it is loaded for another model, and so are its members
}

// addNeed adds a member to a need. The load removes the need at its end.
func (r *Repository) addNeed(n *need, member string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n.members = append(n.members, member)
	r.needs[n] = true
}

// members returns the members of an ensemble. It returns nil for any other model, and if
// the configuration cannot be read, which loading the model reports.
func (r *Repository) members(ctx context.Context, name string, with override) []string {
	if len(with.Files) > 0 {
		return membersOf(modelconfig.ParseJSON([]byte(with.Config)))
	}
	f, whole, err := r.source(name, with)
	if err != nil {
		return nil
	}
	local, files, err := r.fetch(ctx, f, nil)
	if err != nil {
		return nil
	}
	defer files.release()
	return membersOf((&desired{model: local, with: whole}).config())
}

func membersOf(cfg *modelconfig.Config, err error) []string {
	if err != nil {
		return nil
	}
	return cfg.Members()
}

// isEnsemble reports whether the files of a model are those of an ensemble. What is wrong with
// them is reported when the model is loaded.
func (r *Repository) isEnsemble(name string) (is bool) {
	defer func() {
		if cause := recover(); cause != nil { // in the parser of a configuration
			panics.Report(r.opts.Log, "poll", cause, "model", name)
		}
	}()
	return len(r.members(r.ctx, name, override{})) > 0
}

// retryEnsemblesLocked makes the next poll load the ensembles of which a model is a member: they
// were checked against another one, or could not be loaded without it.
func (r *Repository) retryEnsemblesLocked(member string) {
	for _, m := range r.models {
		if slices.Contains(m.members, member) {
			m.polled.tried = 0
		}
	}
}

// addMembers adds what an ensemble is checked against to its fingerprint, so that it is loaded
// again if a member has other tensors.
func (r *Repository) addMembers(d *desired) {
	if d.ensemble == nil {
		return
	}
	h := fnv.New64a()
	r.hashMembers(h, d.ensemble, []string{d.model.name})
	for n := range d.versions {
		d.versions[n] += fingerprint(h.Sum64())
	}
}

// hashMembers hashes the members of an ensemble, and theirs. around is as in loadMembers. A member
// that is missing is reported when the ensemble is opened.
func (r *Repository) hashMembers(h io.Writer, cfg *modelconfig.Config, around []string) {
	for i := range cfg.Steps {
		step := &cfg.Steps[i]
		member, err := r.server.MemberConfig(step.Model, step.VersionName())
		if err != nil || slices.Contains(around, step.Model) {
			continue
		}
		_, _ = fmt.Fprintf(h, "%q %d %t %t %+v %+v\n", step.Model, member.MaxBatchSize, member.Decoupled, member.Sequence != nil, member.Inputs, member.Outputs)
		r.hashMembers(h, member, append(around, step.Model))
	}
}

// servingMembers returns the members of the versions of a model that serve.
func (r *Repository) servingMembers(name string) (members []string) {
	for _, v := range r.server.Versions(name) {
		members = append(members, v.Config.Members()...)
	}
	return members
}

// unneeded reports whether a model was loaded only because it is a member of an ensemble that is
// unloaded now, and no other one that serves or is being loaded has it. Such members are unloaded with
// their ensemble, as in Triton.
func (r *Repository) unneeded(member, unloaded string) bool {
	r.mu.Lock()
	m := r.models[member]
	loaded := m != nil && !m.asked
	for n := range r.needs {
		// The unload has cancelled loads of its own ensemble, which may not have returned yet.
		loaded = loaded && (n.ensemble == unloaded || !slices.Contains(n.members, member))
	}
	r.mu.Unlock()
	return loaded && !slices.ContainsFunc(r.server.AllVersions(), func(v *servable.Version) bool {
		return slices.Contains(v.Config.Members(), member)
	})
}
