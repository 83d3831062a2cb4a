package scenario

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/shoal-serving/shoal/internal/simulate"
)

// Limits that only a mistake in the file exceeds.
const (
	maxInstances = 1024
	maxClients   = 100_000
	maxRequests  = 100_000_000
	maxLevels    = 1024
	maxRows      = 1_000_000
)

var errEmpty = errors.New("the file is empty: a scenario needs a model, and arrivals or a load")

// Load reads a scenario from a YAML file. Its error lists all mistakes in the file, each
// with its line.
func Load(file string) (*simulate.Scenario, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	return Parse(file, text)
}

// Parse parses a scenario from the text of a YAML file. The file name is used in errors.
func Parse(file string, text []byte) (*simulate.Scenario, error) {
	dec := yaml.NewDecoder(bytes.NewReader(text))
	var doc, more yaml.Node
	if err := dec.Decode(&doc); errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: %w", file, errEmpty)
	} else if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if len(doc.Content) != 1 {
		return nil, fmt.Errorf("%s: %w", file, errEmpty)
	}
	if err := dec.Decode(&more); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: the file has more than one YAML document: put each scenario into a file of its own", file)
	}
	r := &reader{file: file, shapes: map[string]uint64{}}
	r.scenario(doc.Content[0])
	if len(r.errs) > 0 {
		return nil, errors.Join(r.errs...)
	}
	return &r.out, nil
}

// A reader converts the nodes of a document to a scenario. It continues after a mistake,
// so that it can report all of them.
type reader struct {
	file string
	errs []error
	out  simulate.Scenario

	single  bool // the file has model instead of models
	device  simulate.Setting
	models  []served
	traffic []simulate.Traffic
	loads   []*yaml.Node // nodes of the traffic
	shapes  map[string]uint64
}

func (r *reader) errorf(n *yaml.Node, format string, args ...any) {
	err := fmt.Errorf("%s:%d: %w", r.file, n.Line, fmt.Errorf(format, args...))
	// A setting's common fields are read for each model.
	if !slices.ContainsFunc(r.errs, func(other error) bool { return other.Error() == err.Error() }) {
		r.errs = append(r.errs, err)
	}
}

func (r *reader) scenario(n *yaml.Node) {
	s := &r.out
	var model, models, settings *yaml.Node
	r.mapping(n, "a scenario", fields{
		{"title", func(n *yaml.Node) { s.Title = r.text(n) }},
		{"text", func(n *yaml.Node) { s.Text = strings.TrimSpace(r.text(n)) }},
		{"unit", func(n *yaml.Node) { s.Unit = r.unit(n) }},
		{"model", func(n *yaml.Node) { model = n }},
		{"models", func(n *yaml.Node) { models = n }},
		{"device", func(n *yaml.Node) { r.readDevice(n, &r.device) }},
		{"arrivals", nil}, // read after the models, which they refer to
		{"load", nil},
		{"settings", func(n *yaml.Node) { settings = n }},
	})
	switch {
	case model != nil && models != nil:
		r.errorf(models, "a scenario has either model or models")
	case model != nil:
		r.single = true
		r.models = []served{r.model(model)}
	case models != nil:
		r.list(models, "models", func(n *yaml.Node) { r.models = append(r.models, r.model(n)) })
	default:
		r.errorf(n, "a scenario needs a model: write model with max_batch_size and takes")
	}
	r.mapping(n, "", fields{
		{"arrivals", r.arrivals},
		{"load", r.load},
	})
	switch {
	case len(r.errs) > 0:
		return // settings depend on what could not be read
	case settings == nil:
		r.setting(&yaml.Node{Kind: yaml.MappingNode, Line: n.Line})
	default:
		r.list(settings, "settings", r.setting)
	}
}

var unitName = regexp.MustCompile(`^[A-Z][A-Za-z]*$`)

// unit reads a unit such as {X: 300ms}. Its name begins with a capital letter, which no
// duration contains.
func (r *reader) unit(n *yaml.Node) (u simulate.Unit) {
	n = resolve(n)
	if n.Kind != yaml.MappingNode || len(n.Content) != 2 || !unitName.MatchString(n.Content[0].Value) {
		r.errorf(n, "a unit must be a name that begins with a capital letter, with its length: {X: 300ms}")
		return u
	}
	length := r.time(n.Content[1])
	if length == 0 {
		r.errorf(n, "a unit must be longer than 0")
		return u
	}
	return simulate.Unit{Name: n.Content[0].Value, Length: length}
}

func (r *reader) readDevice(n *yaml.Node, set *simulate.Setting) {
	r.mapping(n, "a device", fields{
		{"slots", func(n *yaml.Node) { set.Slots = r.integer(n, 1, maxInstances) }},
		{"slowdown", func(n *yaml.Node) { set.Slowdown = r.slowdown(n) }},
	})
}

func (r *reader) slowdown(n *yaml.Node) (factors []float64) {
	r.list(n, "slowdown", func(n *yaml.Node) {
		factor := r.decimal(n)
		if factor < 1 || factor > 1e6 {
			r.errorf(n, "slowdown factors must be from 1 to 1000000: [1, 1.4] means that a batch takes 1.4 times as long while two run in parallel")
		}
		factors = append(factors, factor)
	})
	return factors
}

func (r *reader) setting(n *yaml.Node) {
	set := r.device
	models := slices.Clone(r.models)
	set.Traffic = slices.Clone(r.traffic)
	loads := slices.Clone(r.loads)
	r.mapping(n, "a setting", append(fields{
		{"name", func(n *yaml.Node) { set.Name = r.text(n) }},
		{"slots", func(n *yaml.Node) { set.Slots = r.integer(n, 0, maxInstances) }},
		{"load", func(n *yaml.Node) {
			for i := range set.Traffic {
				r.mapping(n, "the load of a setting", r.loadFields(&set.Traffic[i]))
				loads[i] = n
			}
			r.clientsOrRate(n)
			if len(set.Traffic) == 0 {
				r.errorf(n, "the setting changes the load, but the scenario has none")
			}
		}},
	}, r.fieldsOfAll(models)...))
	// Fields of a single model override those of all models.
	r.mapping(n, "", fields{{"models", func(n *yaml.Node) { r.overrides(n, models) }}})
	if set.Name == "" {
		set.Name = fmt.Sprintf("setting %d", len(r.out.Settings)+1)
	}
	if slices.ContainsFunc(r.out.Settings, func(other simulate.Setting) bool { return other.Name == set.Name }) {
		r.errorf(n, "duplicate setting name %q", set.Name)
	}
	for i := range models {
		m := models[i].setting(n, r)
		m.Config.TakeTurns = set.Slots > 0
		set.Models = append(set.Models, m)
	}
	for i, t := range set.Traffic {
		r.checkTraffic(loads[i], t, &models[t.Model])
	}
	if len(set.Traffic)+len(r.out.Arrivals)+len(r.out.Recorded) == 0 {
		r.errorf(n, "the scenario has no requests: add arrivals or load")
	}
	if err := checkPoints(set.Traffic); err != nil {
		r.errorf(n, "%w", err)
	}
	r.out.Settings = append(r.out.Settings, set)
}

// forAll lists the fields that configure how all models are served.
func (r *reader) fieldsOfAll(models []served) fields {
	var all fields
	for i, f := range r.servingFields(&served{}) {
		all = append(all, field{f.name, func(n *yaml.Node) {
			for m := range models {
				r.servingFields(&models[m])[i].read(n)
			}
		}})
	}
	return append(all, field{"models", nil})
}

// forEach reads the fields of a setting for single models, by name.
func (r *reader) overrides(n *yaml.Node, models []served) {
	n = resolve(n)
	if n.Kind != yaml.MappingNode {
		r.errorf(n, "models must map names of models to the fields to change, such as {NAME: {instances: 2}}")
		return
	}
	for i := 0; i < len(n.Content); i += 2 {
		m := &models[r.modelNamed(n.Content[i])]
		r.mapping(n.Content[i+1], "a model of a setting", r.servingFields(m))
	}
}
