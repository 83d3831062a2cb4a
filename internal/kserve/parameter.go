package kserve

import (
	"strings"

	"github.com/shoal-serving/shoal/internal/infer"
)

// A ParameterKind says what the value of a parameter is read as.
type ParameterKind uint8

// The kinds of parameters.
const (
	CustomParameter   ParameterKind = iota // a value of an [infer.Parameter], or nil if it is of no such type
	ReservedParameter                      // an error, unless the protocol has a use for the name; the value is ignored
	BoolParameter                          // a bool
	UintParameter                          // a uint64
	SequenceParameter                      // a uint64 or a string
)

var parameterKinds = map[string]ParameterKind{
	"priority": UintParameter, "timeout": UintParameter,
	"sequence_id": SequenceParameter, "sequence_start": BoolParameter, "sequence_end": BoolParameter,
}

// SetParameter sets a parameter of a request. Names that the protocol does not define are
// for models that look at them, except those that begin with triton_. read returns the
// value as what the kind says; its errors are in the words of its protocol.
func SetParameter(req *infer.Request, name string, read func(ParameterKind) (any, error)) error {
	kind := parameterKinds[name]
	if strings.HasPrefix(name, "triton_") {
		kind = ReservedParameter
	}
	value, err := read(kind)
	if err != nil {
		return err
	}
	switch name {
	case "priority":
		req.Priority = value.(uint64)
	case "timeout":
		req.Timeout = Microseconds(value.(uint64))
	case "sequence_id":
		return setSequence(req, value)
	case "sequence_start":
		setFlag(req, infer.SequenceStart, value.(bool))
	case "sequence_end":
		setFlag(req, infer.SequenceEnd, value.(bool))
	default:
		if kind == CustomParameter && value != nil {
			req.Parameters = append(req.Parameters, infer.Parameter{Name: name, Value: value})
		}
	}
	return nil
}

// setSequence sets which sequence a request belongs to, by its number or its name.
func setSequence(req *infer.Request, value any) error {
	number, ok := value.(uint64)
	if ok {
		req.Correlation = number
		return nil
	}
	req.CorrelationName = value.(string)
	const most = 128
	if len(req.CorrelationName) > most {
		return infer.Errorf(infer.Unsupported, "string correlation ID cannot be longer than %d characters", most)
	}
	return nil
}

func setFlag(req *infer.Request, flag uint32, set bool) {
	if set {
		req.Flags |= flag
	}
}
