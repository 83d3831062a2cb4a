package kserve

import (
	"cmp"
	"context"
	"slices"
	"strconv"

	"github.com/shoal-serving/shoal/internal/access"
	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/trace"
)

// TraceHeaders returns W3C's headers of a trace, "" if there are none. The names of header are in
// HTTP's canonical form, so that a request without them costs one lookup.
func TraceHeaders(header map[string][]string) (traceparent, tracestate string) {
	parent := header["Traceparent"]
	if len(parent) == 0 {
		return "", ""
	}
	return parent[0], FirstValue(header["Tracestate"])
}

// EndTrace ends the span of a request that was answered with err.
func EndTrace(span *trace.Root, err error) {
	if span != nil {
		span.End(TraceClass(err))
	}
}

// TraceClass returns the class of an error, as spans have it. Unlike the text of an error it has
// nothing of the request.
func TraceClass(err error) string {
	if err == nil {
		return ""
	}
	return infer.CodeOf(err).String()
}

// A TraceSetting is one of Triton's settings for tracing requests.
type TraceSetting struct {
	Name  string
	Value string
}

// Trace settings.
const (
	TraceLevel   = "trace_level" // the only one that is a list
	traceRate    = "trace_rate"
	traceCount   = "trace_count"
	logFrequency = "log_frequency"
	traceFile    = "trace_file"
	traceMode    = "trace_mode"
)

// Values of trace settings.
const (
	traceOff        = "OFF"
	traceTimestamps = "TIMESTAMPS"
)

// untraced are the settings of a server that does not trace, in Triton's order.
var untraced = []TraceSetting{{TraceLevel, traceOff}, {traceRate, "1000"}, {traceCount, "-1"}, {logFrequency, "0"}, {traceFile, ""}, {traceMode, "triton"}}

// traceSettings returns the settings of a model, or those of all models if model is "".
func traceSettings(t *trace.Tracer, model string) []TraceSetting {
	if t == nil {
		return untraced
	}
	s := t.Settings(model)
	level := traceOff
	if s.On {
		level = traceTimestamps
	}
	return []TraceSetting{
		{TraceLevel, level},
		{traceRate, strconv.FormatUint(s.Rate, 10)},
		{traceCount, strconv.FormatInt(s.Count, 10)},
		{logFrequency, "0"},
		{traceFile, ""},
		{traceMode, "opentelemetry"},
	}
}

// readTraceChange returns the change that wanted asks for, or an error if it is not possible. A
// setting without values is cleared. Unknown names are ignored, as in Triton. If t is nil, the
// server does not trace, and only values that equal the current ones are accepted.
func readTraceChange(t *trace.Tracer, wanted map[string][]string) (c trace.Change, err error) {
	if _, ok := wanted[traceFile]; ok {
		return c, infer.Errorf(infer.Unsupported, "trace file location can not be updated through network protocol")
	}
	if t == nil {
		return c, checkUntraced(wanted)
	}
	for _, s := range traceSettings(t, "") {
		if s.Name != logFrequency && s.Name != traceMode {
			continue
		}
		for _, value := range wanted[s.Name] {
			if value != s.Value {
				return c, infer.Errorf(infer.Unsupported, "%s can not be updated: found '%s', expected '%s', which the server was started with", s.Name, value, s.Value)
			}
		}
	}
	if levels, ok := wanted[TraceLevel]; ok {
		c.On, c.ClearOn, err = readLevels(levels)
	}
	if values, ok := wanted[traceRate]; ok && err == nil {
		c.Rate, c.ClearRate, err = readNumber(traceRate, values, func(text string) (uint64, error) { return strconv.ParseUint(text, 10, 32) })
	}
	if values, ok := wanted[traceCount]; ok && err == nil {
		c.Count, c.ClearCount, err = readNumber(traceCount, values, func(text string) (int64, error) {
			n, err := strconv.ParseInt(text, 10, 32)
			if n < -1 {
				err = strconv.ErrRange
			}
			return n, err
		})
	}
	return c, err
}

func checkUntraced(wanted map[string][]string) error {
	for _, level := range wanted[TraceLevel] {
		if slices.Contains([]string{traceTimestamps, "TENSORS", "MIN", "MAX"}, level) {
			return infer.Errorf(infer.Invalid, "Attempting to set invalid trace setting :trace file name is not given")
		}
	}
	for _, s := range untraced[1:] {
		for _, value := range wanted[s.Name] {
			if value != s.Value {
				return infer.Errorf(infer.Unsupported, "%s can not be updated: found '%s', expected '%s', because nothing is traced", s.Name, value, s.Value)
			}
		}
	}
	return nil
}

// readLevels reads the levels of a change. MIN and MAX are older names of TIMESTAMPS; unknown
// levels are ignored, as in Triton.
func readLevels(levels []string) (on *bool, cleared bool, err error) {
	for _, level := range levels {
		switch level {
		case "TENSORS":
			return nil, false, infer.Errorf(infer.Unsupported, "trace_level 'TENSORS' is not supported: traces have no data of requests")
		case traceTimestamps, "MIN", "MAX":
			on = new(true)
		case traceOff:
			on = cmp.Or(on, new(false))
		}
	}
	return on, len(levels) == 0, nil
}

func readNumber[T any](name string, values []string, parse func(string) (T, error)) (n *T, cleared bool, err error) {
	if len(values) == 0 {
		return nil, true, nil
	}
	value, err := parse(values[0])
	if err != nil || len(values) > 1 {
		return nil, false, infer.Errorf(infer.Invalid, "invalid value for '%s': found %q, expected one whole number", name, values)
	}
	return &value, false, nil
}

// ChangeTrace changes the trace settings of a model, or of all models if model is "", for a
// caller that may, and returns the settings. Wanted is nil to read them. t is nil if the server
// does not trace.
func ChangeTrace(ctx context.Context, c Catalog, t *trace.Tracer, model string, wanted map[string][]string) ([]TraceSetting, error) {
	known := func() error {
		if model != "" && !c.ModelReady(model, "") {
			return UntracedModel(model)
		}
		return nil
	}
	if wanted == nil {
		if err := c.Authorize(ctx, access.Observe, ""); err != nil {
			return nil, err
		}
		return traceSettings(t, model), known()
	}
	err := c.Change(ctx, access.Change{Action: access.Configure, What: "change trace settings", Model: model}, func() error {
		change, err := readTraceChange(t, wanted)
		if err != nil {
			return err
		}
		if err := known(); err != nil {
			return err
		}
		if t != nil {
			t.Change(model, change)
		}
		return nil
	})
	return traceSettings(t, model), err
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
		if !slices.ContainsFunc(untraced, func(s TraceSetting) bool { return s.Name == name }) {
			return d.skip()
		}
		wanted[name] = nil
		if d.json.PeekKind() == 'n' {
			return d.skip() // null clears the setting
		}
		add := func() error {
			value, err := d.string(name)
			wanted[name] = append(wanted[name], value)
			return cmp.Or(err, limits.CheckParameters(len(wanted[name])))
		}
		if name == TraceLevel {
			return d.elements(name, add)
		}
		return add()
	})
	return wanted, err
}
