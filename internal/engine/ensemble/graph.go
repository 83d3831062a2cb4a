package ensemble

import (
	"fmt"
	"maps"
	"slices"

	"github.com/shoal-serving/shoal/internal/modelconfig"
	"github.com/shoal-serving/shoal/tensor"
)

// A graph is what an ensemble does with a request. Its tensors have numbers; the first ones
// are the inputs of the ensemble, in the order of its configuration.
type graph struct {
	name    string
	batched bool     // the tensors of clients have a batch dimension
	inputs  []string // names, in the order of the configuration; each has the number of its index
	outputs []output // in the order of the configuration
	tensors int
	makers  []int  // by tensor: the step that makes it; -1 for inputs of the ensemble
	steps   []step // each after those that make its inputs
}

// An output is a tensor that the ensemble returns.
type output struct {
	name   string
	tensor int
	rank   int // without the batch dimension
}

// A step is a request to a member.
type step struct {
	model   string
	version string // "" means the one that the member's policy selects
	batched bool   // the member has a batch dimension
	ordered bool   // the member has sequences, or has a member that does
	inputs  []port // in the order of the member's configuration
	outputs []port
	wanted  []string // the names of outputs
}

// A port connects an input or output of a member to a tensor of the graph.
type port struct {
	name   string
	tensor int
	rank   int // of the member's tensor, without the batch dimension
}

// newGraph returns the graph of a configuration, whose shape has been checked. It checks
// that names, types, dimensions and batch sizes of the members fit together.
func newGraph(cfg *modelconfig.Config, member func(model, version string) (*modelconfig.Config, error)) (*graph, error) {
	b := builder{cfg: cfg, graph: &graph{name: cfg.Name, batched: cfg.MaxBatchSize > 0}, numbers: map[string]int{}, seen: map[string]bool{}}
	for _, in := range cfg.Inputs {
		in.Dims = in.RowDims() // as steps get it: the request was reshaped before
		b.describe(in.Name, in, cfg.MaxBatchSize > 0, "an input of the ensemble")
		b.graph.inputs = append(b.graph.inputs, in.Name)
	}
	for i := range cfg.Steps {
		if err := b.addStep(i, member); err != nil {
			return nil, err
		}
	}
	for i, out := range cfg.Outputs {
		out.Dims = out.RowDims() // as a step makes it; the answer is reshaped afterwards
		field := fmt.Sprintf("output[%d]", i)
		if err := b.match(out.Name, out, cfg.MaxBatchSize > 0, field); err != nil {
			return nil, err
		}
		b.graph.outputs = append(b.graph.outputs, output{out.Name, b.numbers[out.Name], len(out.Dims)})
	}
	b.graph.tensors = len(b.known)
	b.graph.makers = slices.Repeat([]int{-1}, b.graph.tensors)
	for i := range b.graph.steps {
		for _, p := range b.graph.steps[i].outputs {
			b.graph.makers[p.tensor] = i
		}
	}
	return b.graph, nil
}

// A builder has the tensors of a graph that is being made.
type builder struct {
	cfg     *modelconfig.Config
	graph   *graph
	numbers map[string]int // by name
	known   []description
	seen    map[string]bool // scratch: models that were looked at, or are being looked at
}

// A description is what is known of a tensor from where it is made.
type description struct {
	modelconfig.Tensor
	batched bool   // it has a batch dimension before its Dims
	by      string // what made it, for errors
}

func (b *builder) describe(name string, t modelconfig.Tensor, batched bool, by string) int {
	b.numbers[name] = len(b.known)
	b.known = append(b.known, description{t, batched, by})
	return len(b.known) - 1
}

// hasSequences reports whether the answers of a model depend on earlier requests, because it has
// sequences or is an ensemble of such models. While models are replaced, ensembles may contain
// each other for a moment.
func (b *builder) hasSequences(cfg *modelconfig.Config, member func(model, version string) (*modelconfig.Config, error)) bool {
	return cfg.Sequence != nil || slices.ContainsFunc(cfg.Steps, func(s modelconfig.Step) bool {
		if b.seen[s.Model] {
			return false
		}
		b.seen[s.Model] = true
		defer delete(b.seen, s.Model)
		inner, err := member(s.Model, s.VersionName())
		return err == nil && b.hasSequences(inner, member)
	})
}

// leadsBack reports whether a model that serves has the ensemble as a step, or a step of its does.
func (b *builder) leadsBack(cfg *modelconfig.Config, member func(model, version string) (*modelconfig.Config, error)) bool {
	return slices.ContainsFunc(cfg.Steps, func(s modelconfig.Step) bool {
		if s.Model == b.cfg.Name || b.seen[s.Model] {
			return s.Model == b.cfg.Name
		}
		b.seen[s.Model] = true
		inner, err := member(s.Model, s.VersionName())
		return err == nil && b.leadsBack(inner, member)
	})
}

// addStep adds step i of the configuration.
func (b *builder) addStep(i int, member func(model, version string) (*modelconfig.Config, error)) error {
	from := &b.cfg.Steps[i]
	s := step{model: from.Model, version: from.VersionName()}
	cfg, err := member(s.model, s.version)
	if err != nil {
		return b.cfg.Invalid(from.Field("model_name"), "%v", err)
	}
	back := b.leadsBack(cfg, member)
	clear(b.seen)
	if back {
		return b.cfg.Invalid(from.Field("model_name"), "model %q, as it serves, has a step that leads back to this ensemble; load %q first if its files have changed", s.model, s.model)
	}
	s.batched = cfg.MaxBatchSize > 0
	s.ordered = b.hasSequences(cfg, member)
	switch {
	case s.ordered && b.cfg.CacheResponses:
		return b.cfg.Invalid("response_cache", "model %q has sequences, so that its answers depend on earlier requests", s.model)
	case cfg.Decoupled:
		return b.cfg.Unsupported(from.Field("model_name"), "model %q is decoupled, and ensembles with decoupled steps are not supported yet", s.model)
	case b.graph.batched && s.batched && cfg.MaxBatchSize < b.cfg.MaxBatchSize:
		return b.cfg.Wrong("max_batch_size", b.cfg.MaxBatchSize, "at most %d, the max_batch_size of model %q", cfg.MaxBatchSize, s.model)
	}
	if err := b.addInputs(&s, from, cfg); err != nil {
		return err
	}
	if err := b.addOutputs(&s, from, cfg); err != nil {
		return err
	}
	b.graph.steps = append(b.graph.steps, s)
	return nil
}

func (b *builder) addInputs(s *step, from *modelconfig.Step, cfg *modelconfig.Config) error {
	for _, in := range cfg.Inputs {
		name, mapped := from.Inputs[in.Name]
		switch {
		case mapped:
			if err := b.match(name, in, s.batched, from.Field("input_map")); err != nil {
				return err
			}
			s.inputs = append(s.inputs, port{in.Name, b.numbers[name], len(in.Dims)})
		case !in.Optional:
			return b.cfg.Invalid(from.Field("input_map"), "input %q of model %q is missing", in.Name, s.model)
		}
	}
	return b.checkNames(from.Inputs, cfg.Inputs, from.Field("input_map"), "input", s.model)
}

func (b *builder) addOutputs(s *step, from *modelconfig.Step, cfg *modelconfig.Config) error {
	for _, out := range cfg.Outputs {
		if name, mapped := from.Outputs[out.Name]; mapped {
			n := b.describe(name, out, s.batched, fmt.Sprintf("output %q of model %q", out.Name, s.model))
			s.outputs = append(s.outputs, port{out.Name, n, len(out.Dims)})
			s.wanted = append(s.wanted, out.Name)
		}
	}
	return b.checkNames(from.Outputs, cfg.Outputs, from.Field("output_map"), "output", s.model)
}

// checkNames returns an error for a name in a map that the member does not have.
func (b *builder) checkNames(names map[string]string, has []modelconfig.Tensor, field, kind, model string) error {
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if !slices.ContainsFunc(has, func(t modelconfig.Tensor) bool { return t.Name == name }) {
			return b.cfg.Invalid(field, "model %q has no %s %q", model, kind, name)
		}
	}
	return nil
}

// match returns an error unless a tensor can be used as one of the given type and
// dimensions.
func (b *builder) match(name string, as modelconfig.Tensor, batched bool, field string) error {
	is := &b.known[b.numbers[name]]
	if is.Type != as.Type {
		return b.cfg.Invalid(field, "tensor %q is %v, as %s, and cannot be used as %v %q", name, is.Type, is.by, as.Type, as.Name)
	}
	if !fits(whole(is.Dims, is.batched), whole(as.Dims, batched), is.batched == batched) {
		return b.cfg.Invalid(field, "tensor %q has the dimensions %v, as %s, and cannot be used as %q with %v", name, is.Dims, is.by, as.Name, as.Dims)
	}
	return nil
}

// whole returns dimensions with that of the batch.
func whole(dims []int64, batched bool) []int64 {
	if batched {
		return append([]int64{-1}, dims...)
	}
	return dims
}

// fits reports whether two sets of dimensions can be equal; -1 equals all. Unless exact,
// one of them may have a dimension before those of the other, which adapt adds or removes.
func fits(a, b []int64, exact bool) bool {
	if !exact && len(a) == len(b)+1 {
		a = a[1:]
	} else if !exact && len(b) == len(a)+1 {
		b = b[1:]
	}
	return slices.EqualFunc(a, b, func(x, y int64) bool { return x == y || x < 0 || y < 0 })
}

// adapt returns t with a rank: with a dimension of 1 before the others if one is missing,
// and without the first one if that is 1 and too many. Any other tensor stays as it is, and
// whatever takes it says what is wrong with it.
func adapt(t tensor.Tensor, rank int) tensor.Tensor {
	switch {
	case len(t.Shape) == rank-1:
		t.Shape = append([]int64{1}, t.Shape...)
	case len(t.Shape) == rank+1 && t.Shape[0] == 1:
		t.Shape = t.Shape[1:]
	}
	return t
}

// rankOf returns the rank of a tensor with or without a batch dimension.
func rankOf(rank int, batched bool) int {
	if batched {
		return rank + 1
	}
	return rank
}

// needed reports which steps have to run for the named outputs; none means all.
func (g *graph) needed(names []string) []bool {
	steps, tensors := make([]bool, len(g.steps)), make([]bool, g.tensors)
	for _, out := range g.outputs {
		tensors[out.tensor] = len(names) == 0 || slices.Contains(names, out.name)
	}
	for i := len(g.steps) - 1; i >= 0; i-- {
		s := &g.steps[i]
		steps[i] = slices.ContainsFunc(s.outputs, func(p port) bool { return tensors[p.tensor] })
		if steps[i] {
			for _, in := range s.inputs {
				tensors[in.tensor] = true
			}
		}
	}
	return steps
}
