package modelconfig

import (
	"cmp"
	"slices"
	"strings"

	"github.com/shoal-serving/shoal/internal/infer"
)

// A Finding is a setting that is not carried out as in Triton, or that has no effect.
type Finding struct {
	Where   string // FILE:LINE, or FILE if the setting is omitted, or "" without a file
	Field   string // such as optimization.eager_batching or input[0].format
	Kind    Kind   // Unused, Ignored or Rejected
	What    string // what Shoal or Triton does with it
	Instead string // what to do in place of it; may be empty unless Kind is Rejected
}

// Text returns what happens to the setting, and what to do instead.
func (f Finding) Text() string {
	text := joinText(f.What, f.Instead)
	if f.Kind == Rejected {
		return text
	}
	return "has no effect: " + text
}

// String returns the finding as one line, in the format of errors.
func (f Finding) String() string {
	if f.Where == "" {
		return f.Field + ": " + f.Text()
	}
	return f.Where + ": " + f.Field + ": " + f.Text()
}

// Findings returns all findings in the order of the file. It needs the Backend, which the
// caller sets if the file omits it. A configuration with a Rejected finding cannot be used:
// Parse returns an error for the first of them, with the configuration.
func (c *Config) Findings() []Finding {
	var all []Finding
	lines := map[string]int{}
	visit(c.Proto.ProtoReflect(), step{}, func(field string, r rule) {
		if r.only == "" || r.only != c.Backend {
			all = append(all, c.finding(field, r))
		}
	})
	for i, p := range c.Proto.GetModelWarmup() {
		if p.GetBatchSize() == 0 {
			all = append(all, c.finding(warmupField(i), emptySample))
		}
	}
	for _, f := range all {
		lines[f.Field] = c.root.lineOf(f.Field)
	}
	slices.SortStableFunc(all, func(a, b Finding) int { return cmp.Compare(lines[a.Field], lines[b.Field]) })
	return all
}

// WithoutCache returns the finding that response_cache has no effect on a server without a cache.
func (c *Config) WithoutCache() Finding {
	return c.finding("response_cache.enable", rule{kind: Unused, what: "neither this server nor Triton has a cache with its default flags", instead: "start it with --cache-config local,size=BYTES"})
}

func (c *Config) finding(field string, r rule) Finding {
	return Finding{
		Where: strings.TrimSuffix(c.where(field), ": "), Field: field,
		Kind: r.kind, What: r.what, Instead: r.instead,
	}
}

// checkSupport returns an error for the first rejected field, in the order of the file.
func (c *Config) checkSupport() error {
	for _, f := range c.Findings() {
		if f.Kind == Rejected {
			return &mistake{infer.Unsupported, f.Field, f.Text()}
		}
	}
	return nil
}

// joinText returns what happens and what to do instead as one sentence.
func joinText(what, instead string) string {
	if instead == "" {
		return what
	}
	return what + "; " + instead
}
