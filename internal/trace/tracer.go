package trace

import (
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Settings say which requests are traced.
type Settings struct {
	On bool
	// Rate is n if one of n requests is traced. 0 means only those whose clients trace them.
	Rate uint64
	// Count is how many more requests are traced. -1 means that there is no limit. Requests
	// whose clients trace them do not count.
	Count int64
}

// A Change changes settings. Fields that are nil stay as they are.
type Change struct {
	On    *bool
	Rate  *uint64
	Count *int64

	// Clear the settings instead: those of a model become those of all models, and those of all
	// models become the ones that the server was started with.
	ClearOn, ClearRate, ClearCount bool
}

// A Tracer decides which requests are traced. Its methods may be called concurrently. A nil
// Tracer traces none.
type Tracer struct {
	exporter Exporter
	initial  Settings
	samplers atomic.Pointer[samplers]

	mu        sync.Mutex // guards the following
	overrides map[string]override
}

// samplers are never changed, only replaced.
type samplers struct {
	all    *sampler
	models map[string]*sampler // of those with settings of their own
}

func (s *samplers) of(model string) *sampler {
	if len(s.models) > 0 {
		if own := s.models[model]; own != nil {
			return own
		}
	}
	return s.all
}

// An override has the settings that were changed.
type override struct {
	on    *bool
	rate  *uint64
	count *int64
}

// A sampler counts the requests that share settings.
type sampler struct {
	settings Settings
	seen     atomic.Uint64
	left     atomic.Int64 // traces; negative if there is no limit
}

// New returns a tracer. The exporter gets all spans.
func New(exporter Exporter, settings Settings) *Tracer {
	t := &Tracer{exporter: exporter, initial: settings, overrides: map[string]override{}}
	t.samplers.Store(&samplers{all: newSampler(settings)})
	return t
}

func newSampler(s Settings) *sampler {
	counts := &sampler{settings: s}
	counts.left.Store(s.Count)
	return counts
}

// sample decides on a request whose client does not say whether it traces.
func (s *sampler) sample() bool {
	if s.settings.Rate == 0 || s.settings.Rate > 1 && s.seen.Add(1)%s.settings.Rate != 0 {
		return false
	}
	for {
		left := s.left.Load()
		if left < 0 {
			return true
		}
		if left == 0 {
			return false
		}
		if s.left.CompareAndSwap(left, left-1) {
			return true
		}
	}
}

// On reports whether requests to a model may be traced. If not, the caller need not look for
// the context that Begin wants.
func (t *Tracer) On(model string) bool {
	return t != nil && t.samplers.Load().of(model).settings.On
}

// Begin returns the span of a request that has arrived, or nil if it is not traced.
// traceparent and tracestate are W3C's headers; "" if the client sent none. A client that
// traces its request decides for the server, too.
func (t *Tracer) Begin(protocol, model, traceparent, tracestate string) *Root {
	if t == nil {
		return nil
	}
	s := t.samplers.Load().of(model)
	if !s.settings.On {
		return nil
	}
	parent, sampled, given := Context{}, false, false
	if traceparent != "" {
		parent, sampled, given = ParseTraceparent(traceparent)
	}
	if given && !sampled || !given && !s.sample() {
		return nil
	}
	r := &Root{exporter: t.exporter, span: Span{Name: "InferRequest", Server: true, Start: time.Now(), Attributes: []Attribute{
		{ModelName, strings.Clone(model)}, // which may be a view of the client's message
		{Protocol, protocol},
	}}}
	r.span.Context.Span = newSpanID()
	if given {
		r.span.Trace, r.span.Parent, r.span.Remote, r.span.State = parent.Trace, parent.Span, true, strings.Clone(tracestate)
	} else {
		r.span.Trace = newID()
	}
	return r
}

// Continue returns the trace of a request that a model makes with a context that it got
// from the server, or nil if traceparent is not such a context.
func (t *Tracer) Continue(traceparent, tracestate string) *Request {
	parent, sampled, ok := ParseTraceparent(traceparent)
	if t == nil || !ok || !sampled {
		return nil
	}
	parent.State = tracestate
	return newRequest(t.exporter, parent)
}

// Settings returns the settings of a model, or those of all models if model is "". Count is
// what is left of it.
func (t *Tracer) Settings(model string) Settings {
	s := t.samplers.Load().of(model)
	now := s.settings
	now.Count = s.left.Load()
	return now
}

// Change changes the settings of a model, or those of all models if model is "". What a model
// does not set itself follows the settings of all models.
func (t *Tracer) Change(model string, c Change) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.samplers.Load()
	o := t.overrides[model]
	o.on = changed(o.on, c.On, c.ClearOn)
	o.rate = changed(o.rate, c.Rate, c.ClearRate)
	o.count = changed(o.count, c.Count, c.ClearCount)
	t.overrides[model] = o
	if o == (override{}) {
		delete(t.overrides, model)
	}
	counted := c.Count != nil || c.ClearCount
	next := &samplers{all: now.all, models: map[string]*sampler{}}
	if model == "" {
		next.all = newSampler(o.apply(t.initial)).goesOn(now.all, !counted)
	}
	for name, o := range t.overrides {
		switch {
		case name == "":
		case name == model || model == "":
			again := counted && (name == model || o.count == nil) // the change concerns its count
			next.models[name] = newSampler(o.apply(next.all.settings)).goesOn(now.of(name), !again)
		default:
			next.models[name] = now.models[name]
		}
	}
	t.samplers.Store(next)
}

// goesOn returns s, which has no more traces left than the one that it replaces, if that is wanted.
func (s *sampler) goesOn(before *sampler, wanted bool) *sampler {
	if wanted {
		s.left.Store(before.left.Load())
	}
	return s
}

func changed[T any](old, wanted *T, cleared bool) *T {
	switch {
	case cleared:
		return nil
	case wanted != nil:
		return wanted
	}
	return old
}

// apply returns s with what o overrides.
func (o override) apply(s Settings) Settings {
	if o.on != nil {
		s.On = *o.on
	}
	if o.rate != nil {
		s.Rate = *o.rate
	}
	if o.count != nil {
		s.Count = *o.count
	}
	return s
}
