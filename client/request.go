package client

import (
	"cmp"
	"maps"
	"math"
	"reflect"
	"slices"
	"time"
	"unicode/utf8"
)

// A Request asks for one run of a model. The client does not change it, so that one
// Request may be sent by several goroutines at once.
type Request struct {
	Model   string // its name
	Version string // such as "1"; empty lets the server choose
	ID      string // comes back as [Response.ID]; may be empty

	Inputs  []Tensor
	Outputs []string // the names of the outputs to return; empty means all

	// Classes asks for the classes with the highest values instead of the values of the
	// outputs, at most this many per row, best first. [Outputs] must name them. They are
	// returned as strings "value:index", or "value:index:label" if the model has labels.
	// Zero means values.
	Classes uint

	// Parameters are passed on to the model, except those that the protocol defines, such
	// as "sequence_id", "sequence_start" and "sequence_end". Values are booleans, numbers
	// and strings.
	Parameters map[string]any

	// Priority is where the request goes in the queue of a model that has priorities: 1 is
	// the highest. Zero means the default of the model.
	Priority uint64

	// Timeout is how long the request may wait in the queue of the server, or until it is
	// answered, as the configuration of the model says. It is sent in microseconds. Zero
	// means that none is sent.
	Timeout time.Duration
}

// A Response is the answer to a [Request].
type Response struct {
	Model   string
	Version string // that ran
	ID      string // of the request

	// Parameters are those that the model returned. Values are of type bool, int64,
	// uint64, float64 or string.
	Parameters map[string]any

	// Outputs have data that matches their type and shape. Their memory belongs to the
	// caller; outputs of one response may share an allocation.
	Outputs []Tensor

	// Final is whether no more responses to this request follow. It is false only for
	// responses of a [Stream].
	Final bool
}

// Output returns the output with the given name, and nil if there is none.
func (r *Response) Output(name string) *Tensor {
	i := slices.IndexFunc(r.Outputs, func(t Tensor) bool { return t.Name == name })
	if i < 0 {
		return nil
	}
	return &r.Outputs[i]
}

// check finds mistakes that are not worth a round trip, or that would make a message
// which the server reads in another way.
func (r *Request) check() error {
	if r.Model == "" {
		return invalid("the request names no model")
	}
	if r.Classes > 0 && len(r.Outputs) == 0 {
		return invalid("the request asks for classes and names no output")
	}
	for _, text := range [...]string{r.Model, r.Version, r.ID} {
		if !utf8.ValidString(text) {
			return notUTF8(text)
		}
	}
	for _, name := range r.Outputs {
		if !utf8.ValidString(name) {
			return notUTF8(name)
		}
	}
	for i := range r.Inputs {
		if !utf8.ValidString(r.Inputs[i].Name) {
			return notUTF8(r.Inputs[i].Name)
		}
		if err := r.Inputs[i].Check(); err != nil {
			return invalid("input %q: %v", r.Inputs[i].Name, err)
		}
	}
	return nil
}

// notUTF8 returns an error for a text that gRPC cannot send, and that JSON would change.
func notUTF8(text string) *Error { return invalid("%q is not UTF-8", text) }

// parameters returns those of the request with the fields that are sent as parameters.
// Values are of type bool, int64, uint64, float64 or string. A uint64 is more than an
// int64 can hold, since not all servers take one; of priority they do.
func (r *Request) parameters() (map[string]any, error) {
	all := make(map[string]any, len(r.Parameters)+2)
	for _, name := range slices.Sorted(maps.Keys(r.Parameters)) {
		value, ok := plainValue(reflect.ValueOf(r.Parameters[name]))
		if !ok {
			return nil, invalid("parameter %q is of type %T: expected a boolean, a finite number or a string", name, r.Parameters[name])
		}
		if !utf8.ValidString(name) {
			return nil, notUTF8(name)
		}
		if text, ok := value.(string); ok && !utf8.ValidString(text) {
			return nil, notUTF8(text)
		}
		all[name] = value
	}
	if r.Priority > 0 {
		all["priority"] = r.Priority
	}
	if r.Timeout > 0 {
		all["timeout"] = cmp.Or(r.Timeout.Microseconds(), 1) // 0 would be none
	}
	return all, nil
}

func plainValue(v reflect.Value) (any, bool) {
	switch {
	case !v.IsValid():
		return nil, false
	case v.Kind() == reflect.Bool:
		return v.Bool(), true
	case v.Kind() == reflect.String:
		return v.String(), true
	case v.CanInt():
		return v.Int(), true
	case v.CanUint() && v.Uint() <= math.MaxInt64:
		return int64(v.Uint()), true
	case v.CanUint():
		return v.Uint(), true
	case v.CanFloat():
		return v.Float(), !math.IsNaN(v.Float()) && !math.IsInf(v.Float(), 0)
	}
	return nil, false
}
