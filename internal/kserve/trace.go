package kserve

import (
	"context"
	"slices"

	"github.com/shoal-serving/shoal/internal/access"
	"github.com/shoal-serving/shoal/internal/infer"
)

// A TraceSetting is one of Triton's settings for tracing requests.
type TraceSetting struct {
	Name  string
	Value string
}

// Trace settings with special rules.
const (
	TraceLevel = "trace_level" // the only one that is a list
	traceFile  = "trace_file"
)

// TraceSettings are the settings of a server that does not trace, in Triton's order.
var TraceSettings = []TraceSetting{
	{TraceLevel, "OFF"}, {"trace_rate", "1000"}, {"trace_count", "-1"}, {"log_frequency", "0"}, {traceFile, ""}, {"trace_mode", "triton"},
}

// CheckTrace returns an error if trace settings cannot be changed to wanted. Values that
// equal the current ones are accepted, and so is clearing a setting, which then has no
// values. Unknown names and levels are ignored, as in Triton.
func CheckTrace(wanted map[string][]string) error {
	if _, ok := wanted[traceFile]; ok {
		return infer.Errorf(infer.Unsupported, "trace file location can not be updated through network protocol")
	}
	for _, level := range wanted[TraceLevel] {
		if slices.Contains([]string{"TIMESTAMPS", "TENSORS", "MIN", "MAX"}, level) {
			return infer.Errorf(infer.Invalid, "Attempting to set invalid trace setting :trace file name is not given")
		}
	}
	for _, s := range TraceSettings[1:] {
		for _, value := range wanted[s.Name] {
			if value != s.Value {
				return infer.Errorf(infer.Unsupported, "%s can not be updated: found '%s', expected '%s', because nothing is traced", s.Name, value, s.Value)
			}
		}
	}
	return nil
}

// ChangeTrace changes the trace settings of a model, or of all models if model is "", for a
// caller that may. Wanted is nil to read them. They are [TraceSettings] always.
func ChangeTrace(ctx context.Context, c Catalog, model string, wanted map[string][]string) error {
	known := func() error {
		if model != "" && !c.ModelReady(model, "") {
			return UntracedModel(model)
		}
		return nil
	}
	if wanted == nil {
		if err := c.Authorize(ctx, access.Observe, ""); err != nil {
			return err
		}
		return known()
	}
	return c.Change(ctx, access.Change{Action: access.Configure, What: "change trace settings", Model: model}, func() error {
		if err := CheckTrace(wanted); err != nil {
			return err
		}
		return known()
	})
}

// UntracedModel returns the error for the trace settings of a model that accepts no
// requests.
func UntracedModel(model string) error {
	return infer.Errorf(infer.Invalid, "Request for unknown model : %s", model)
}

// DecodeTrace decodes the body of an HTTP request that changes trace settings, into the
// values of each setting.
func DecodeTrace(body []byte, limits *Limits) (wanted map[string][]string, err error) {
	wanted = map[string][]string{}
	err = decodeMembers(body, limits, func(d *document, name string) error {
		if !slices.ContainsFunc(TraceSettings, func(s TraceSetting) bool { return s.Name == name }) {
			return d.skip()
		}
		wanted[name] = nil
		if d.json.PeekKind() == 'n' {
			return d.skip() // null clears the setting
		}
		add := func() error {
			value, err := d.string(name)
			wanted[name] = append(wanted[name], value)
			return err
		}
		if name == TraceLevel {
			return d.elements(name, add)
		}
		return add()
	})
	return wanted, err
}
