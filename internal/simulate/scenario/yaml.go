package scenario

import (
	"math"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// fields are the allowed keys of a mapping, in the order in which they are read.
type fields []field

type field struct {
	name string
	read func(*yaml.Node) // nil if it is read elsewhere
}

// object reads a mapping. It reports unknown fields, unless what is empty, in which case
// another reader has reported them.
func (r *reader) mapping(n *yaml.Node, what string, fields fields) {
	n = resolve(n)
	if n.Kind != yaml.MappingNode {
		if what != "" {
			r.errorf(n, "%s must be a mapping with the fields %s", what, fields.names())
		}
		return
	}
	found := map[string]*yaml.Node{}
	for i := 0; i < len(n.Content); i += 2 {
		key := n.Content[i]
		if what != "" {
			switch {
			case !slices.ContainsFunc(fields, func(f field) bool { return f.name == key.Value }):
				r.errorf(key, "%s has no field %q; its fields are %s", what, key.Value, fields.names())
			case found[key.Value] != nil:
				r.errorf(key, "duplicate field %q", key.Value)
			}
		}
		found[key.Value] = n.Content[i+1]
	}
	for _, f := range fields {
		if value := found[f.name]; value != nil && f.read != nil {
			f.read(value)
		}
	}
}

func (f fields) names() string {
	var names []string
	for _, field := range f {
		names = append(names, field.name)
	}
	return strings.Join(names, ", ")
}

func (r *reader) list(n *yaml.Node, what string, read func(*yaml.Node)) {
	n = resolve(n)
	if n.Kind != yaml.SequenceNode || len(n.Content) == 0 {
		r.errorf(n, "%s must be a list with at least one entry", what)
		return
	}
	for _, entry := range n.Content {
		read(entry)
	}
}

// some reads one value or a list of values.
func (r *reader) oneOrMore(n *yaml.Node, read func(*yaml.Node)) {
	if n = resolve(n); n.Kind == yaml.SequenceNode {
		r.list(n, "the value", read)
		return
	}
	read(n)
}

func resolve(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

func (r *reader) text(n *yaml.Node) string {
	if n = resolve(n); n.Kind != yaml.ScalarNode || n.Tag == "!!null" {
		r.errorf(n, "expected a text")
		return ""
	}
	return n.Value
}

func (r *reader) time(n *yaml.Node) time.Duration {
	n = resolve(n)
	d, err := parseTime(n.Value, r.out.Unit)
	if err != nil {
		r.errorf(n, "%w", err)
	}
	return d
}

func (r *reader) integer(n *yaml.Node, lowest, highest int) int {
	n = resolve(n)
	var v int
	if err := n.Decode(&v); err != nil || n.Tag != "!!int" || v < lowest || v > highest {
		r.errorf(n, "%q is not a whole number from %d to %d", n.Value, lowest, highest)
		return lowest
	}
	return v
}

func (r *reader) decimal(n *yaml.Node) float64 {
	n = resolve(n)
	var v float64
	if err := n.Decode(&v); err != nil || math.IsNaN(v) || math.IsInf(v, 0) {
		r.errorf(n, "%q is not a number", n.Value)
		return 1
	}
	return v
}

func (r *reader) boolean(n *yaml.Node) bool { return r.choice(n, "true", "false") == "true" }

func (r *reader) choice(n *yaml.Node, known ...string) string {
	n = resolve(n)
	if !slices.Contains(known, n.Value) {
		r.errorf(n, "%q is not one of %s", n.Value, strings.Join(known, ", "))
		return known[0]
	}
	return n.Value
}
