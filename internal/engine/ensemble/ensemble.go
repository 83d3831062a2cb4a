// Package ensemble runs models that are made of other models. A request to an ensemble is a
// graph of requests to its members, each of which is batched with other requests of that
// member, whether they come from clients or from ensembles.
//
// Tensors pass from step to step by reference: a step reads the memory in which another
// step's response lies.
package ensemble

import (
	"context"
	"log/slog"

	"github.com/shoal-serving/shoal/internal/engine"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/modelconfig"
	"github.com/shoal-serving/shoal/tensor"
)

// Name is the name of the backend.
const Name = modelconfig.EnsembleBackend

// Instances is how many requests of one ensemble run at the same time. An instance costs a
// goroutine that waits; more requests than these wait in the queue of the ensemble.
const Instances = 256

// Members are the models that ensembles call.
type Members interface {
	// Call runs a request, as Call of an [engine.ModelCaller].
	Call(ctx context.Context, req *infer.Request, resp *infer.Response) error
	// Pin selects versions of models that serve at the same time. Requests with the returned value
	// as their Pinned use them. They stay open until release is called.
	Pin(members []infer.ModelVersion) (pinned any, release func())
	// ModelReady reports whether a version takes requests. Version "" means the default one.
	ModelReady(model, version string) bool
	// MemberConfig returns the configuration of a loaded version, which the caller must not
	// modify. Version "" means the default one.
	MemberConfig(model, version string) (*modelconfig.Config, error)
}

// An Engine loads ensembles. The members must be loaded before.
type Engine struct {
	Members Members
	Log     *slog.Logger
}

// Load implements [engine.Engine]. It checks the graph against the configurations of the
// members.
func (e *Engine) Load(ctx context.Context, src engine.Source) (engine.Model, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	g, err := newGraph(src.Config, e.Members.MemberConfig)
	if err != nil {
		return nil, err
	}
	m := &model{engine: e, graph: g, tally: tally{steps: make([]stepTally, len(g.steps))}}
	m.only = &instance{m}
	return m, nil
}

// A model is a loaded ensemble.
type model struct {
	engine *Engine
	graph  *graph
	tally  tally
	only   *instance // that all callers of Instance get
}

// Retries implements [engine.RetryPolicy]: the members retry.
func (*model) Retries() (inParts, afterDeath bool) { return false, false }

// Rehearses implements [engine.RetryPolicy]: the members are measured, not the ensemble.
func (*model) Rehearses() bool { return false }

// Instance implements [engine.Model]. It always returns the same one, which has no state, so that
// the members are checked once for all of them.
func (m *model) Instance(context.Context) (engine.Instance, error) { return m.only, nil }

func (*model) Close() error { return nil }

// An instance runs requests. It has no state.
type instance struct{ *model }

var (
	_ engine.PerRequest    = (*instance)(nil)
	_ engine.HealthChecker = (*instance)(nil)
	_ engine.RetryPolicy   = (*model)(nil)
)

// Run implements [engine.Instance].
func (i *instance) Run(ctx context.Context, in []tensor.Tensor, out *engine.Outputs) error {
	return i.run(ctx, &infer.Request{Inputs: in}, out)
}

// RunEach implements [engine.PerRequest]. Requests of an ensemble do not share batches, so
// there is one; its members share theirs.
func (i *instance) RunEach(ctx context.Context, calls []engine.Call) error {
	for k := range calls {
		c := &calls[k]
		c.Err = i.run(ctx, c.Request, &c.Outputs)
	}
	err := ctx.Err()
	for k := range calls {
		if err != nil { // it came when all steps had ended
			calls[k].Outputs.Memory.Release()
			calls[k].Outputs.Memory = nil
		}
	}
	return err
}

// Ready implements [engine.HealthChecker]: an ensemble is ready if all its members are, and theirs.
// It asks only models without steps, and each once: while models are replaced, ensembles may contain
// each other for a moment.
func (i *instance) Ready() bool {
	var members []infer.ModelVersion
	for k := range i.graph.steps {
		members = append(members, infer.ModelVersion{Model: i.graph.steps[k].model, Version: i.graph.steps[k].version})
	}
	seen := map[infer.ModelVersion]bool{}
	for len(members) > 0 {
		m := members[0]
		members = members[1:]
		if seen[m] {
			continue
		}
		seen[m] = true
		cfg, err := i.engine.Members.MemberConfig(m.Model, m.Version)
		switch {
		case err == nil && len(cfg.Steps) > 0:
			for k := range cfg.Steps {
				members = append(members, infer.ModelVersion{Model: cfg.Steps[k].Model, Version: cfg.Steps[k].VersionName()})
			}
		case !i.engine.Members.ModelReady(m.Model, m.Version):
			return false
		}
	}
	return true
}

func (*instance) Close() error { return nil }
