package modelconfig

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/shoal-serving/shoal/internal/infer"
)

// EnsembleBackend is the backend of ensembles, whose requests are run by other models.
const EnsembleBackend = "ensemble"

// A Step of an ensemble is a request to another model, its member.
type Step struct {
	Model   string
	Version int64 // -1 and 0 mean the one that the member's policy selects

	// Inputs and Outputs have names of the ensemble's tensors by names of the member's.
	Inputs, Outputs map[string]string

	index int // in the file
}

// VersionName returns the version as a request names it: "" means the one that the member's policy
// selects.
func (s *Step) VersionName() string {
	if s.Version <= 0 {
		return ""
	}
	return strconv.FormatInt(s.Version, 10)
}

// Field returns the name of a field of the step, for errors.
func (s *Step) Field(name string) string { return stepField(s.index, name) }

// stepField returns the name of a field of step i, for errors.
func stepField(i int, field string) string {
	return fmt.Sprintf("ensemble_scheduling.step[%d].%s", i, field)
}

// readEnsemble reads the steps of an ensemble, sorts them so that each follows those that
// make its inputs, and checks the graph as far as that does not need the members.
func (c *Config) readEnsemble() error {
	written := c.Proto.GetEnsembleScheduling()
	if c.Backend != EnsembleBackend {
		if written != nil {
			return invalid("ensemble_scheduling", `only ensembles have steps; set platform: "ensemble"`)
		}
		return nil
	}
	if err := c.checkEnsembleFields(); err != nil {
		return err
	}
	for i, p := range written.GetStep() {
		switch {
		case p.GetModelName() == "":
			return bad(stepField(i, "model_name"), "no name", "the name of a model")
		case p.GetModelVersion() < -1:
			return bad(stepField(i, "model_version"), p.GetModelVersion(), "a version of the model, or -1 for the one that its policy selects")
		case len(p.GetInputMap()) == 0:
			return bad(stepField(i, "input_map"), "no entry", "one for each input of model %q", p.GetModelName())
		case len(p.GetOutputMap()) == 0:
			return bad(stepField(i, "output_map"), "no entry", "one for each output of model %q that the ensemble uses", p.GetModelName())
		}
		c.Steps = append(c.Steps, Step{Model: p.GetModelName(), Version: p.GetModelVersion(), Inputs: p.GetInputMap(), Outputs: p.GetOutputMap(), index: i})
	}
	return c.checkGraph()
}

// checkEnsembleFields returns an error for a field that an ensemble cannot have, because it
// runs nothing itself.
func (c *Config) checkEnsembleFields() error {
	p := c.Proto
	for _, f := range []struct {
		field string
		set   bool
	}{
		{"instance_group", len(p.GetInstanceGroup()) > 0},
		{"optimization", p.GetOptimization() != nil},
		{"model_warmup", len(p.GetModelWarmup()) > 0},
		{"dynamic_batching", p.GetDynamicBatching() != nil},
		{"batch_input", len(p.GetBatchInput()) > 0},
		{"batch_output", len(p.GetBatchOutput()) > 0},
	} {
		if f.set {
			return invalid(f.field, "an ensemble computes nothing itself; remove it, and set it in the configurations of the models that are its steps")
		}
	}
	switch {
	case len(c.Inputs) == 0:
		return invalid("platform", "an ensemble has to list its inputs; add input")
	case len(c.Outputs) == 0:
		return invalid("platform", "an ensemble has to list its outputs; add output")
	case len(p.GetEnsembleScheduling().GetStep()) == 0:
		return invalid("platform", "an ensemble needs at least one step; add ensemble_scheduling")
	case c.Decoupled:
		return &mistake{infer.Unsupported, "model_transaction_policy.decoupled", "ensembles answer a request once; decoupled ones are not supported yet"}
	}
	return nil
}

// checkGraph checks that each tensor of the ensemble is made once, before it is used, and
// that none is left over. It sorts the steps.
func (c *Config) checkGraph() error {
	maker := map[string]int{} // steps by the tensors that they make; -1 is the request
	for _, in := range c.Inputs {
		maker[in.Name] = -1
	}
	for i, s := range c.Steps {
		for _, name := range sortedKeys(s.Outputs) {
			made := s.Outputs[name]
			switch other, twice := maker[made]; {
			case twice && other < 0:
				return invalid(stepField(i, "output_map"), "tensor %q is an input of the ensemble, and cannot be an output of a step", made)
			case twice:
				return invalid(stepField(i, "output_map"), "tensor %q is already an output of step %d; each tensor is made by one step", made, other)
			}
			maker[made] = i
		}
	}
	used := map[string]bool{}
	for i, s := range c.Steps {
		for _, name := range sortedKeys(s.Inputs) {
			if _, ok := maker[s.Inputs[name]]; !ok {
				return invalid(stepField(i, "input_map"), "tensor %q is neither an input of the ensemble nor an output of a step", s.Inputs[name])
			}
			used[s.Inputs[name]] = true
		}
	}
	for i, out := range c.Outputs {
		if _, ok := maker[out.Name]; !ok {
			return invalid(fmt.Sprintf("output[%d]", i), "no step makes %q; add it to the output_map of one", out.Name)
		}
		used[out.Name] = true
	}
	for i, in := range c.Inputs {
		if !used[in.Name] {
			return invalid(fmt.Sprintf("input[%d]", i), "no step uses %q; add it to the input_map of one, or remove it", in.Name)
		}
	}
	for i, s := range c.Steps {
		for _, name := range sortedKeys(s.Outputs) {
			if !used[s.Outputs[name]] {
				return invalid(stepField(i, "output_map"), "tensor %q is used by no step, and is not an output of the ensemble; remove it", s.Outputs[name])
			}
		}
	}
	return c.sortSteps(maker)
}

// sortSteps puts each step behind those that make its inputs. maker has the steps by the
// tensors that they make.
func (c *Config) sortSteps(maker map[string]int) error {
	var sorted []Step
	done := make([]bool, len(c.Steps))
	ready := func(s Step) bool {
		for _, from := range s.Inputs {
			if m := maker[from]; m >= 0 && !done[m] {
				return false
			}
		}
		return true
	}
	for len(sorted) < len(c.Steps) {
		next := -1
		for i, s := range c.Steps {
			if !done[i] && ready(s) {
				next = i
				break
			}
		}
		if next < 0 {
			first := slices.Index(done, false)
			return invalid(stepField(first, "input_map"), "the steps wait for each other: the inputs of model %q depend on its own outputs", c.Steps[first].Model)
		}
		done[next] = true
		sorted = append(sorted, c.Steps[next])
	}
	c.Steps = sorted
	return nil
}

func sortedKeys(m map[string]string) []string { return slices.Sorted(maps.Keys(m)) }

// Members returns the names of the models that an ensemble calls, each once.
func (c *Config) Members() []string {
	var names []string
	for _, s := range c.Steps {
		if !slices.Contains(names, s.Model) {
			names = append(names, s.Model)
		}
	}
	return names
}
