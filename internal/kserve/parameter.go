package kserve

import (
	"strings"

	"github.com/shoal-serving/shoal/internal/infer"
)

// A ParameterKind is the type of value that SetParameter requires for a parameter.
type ParameterKind uint8

// Kinds of parameters.
const (
	CustomParameter   ParameterKind = iota // a value of an [infer.Parameter], or nil if it has another type
	ReservedParameter                      // an error, unless the protocol has a use for the name; the value is ignored
	BoolParameter                          // a bool
	UintParameter                          // a uint64
	SequenceParameter                      // a uint64 or a string
)

var parameterKinds = map[string]ParameterKind{
	"priority": UintParameter, "timeout": UintParameter,
	"sequence_id": SequenceParameter, "sequence_start": BoolParameter, "sequence_end": BoolParameter,
}

var sequenceFlags = map[string]uint32{"sequence_start": infer.SequenceStart, "sequence_end": infer.SequenceEnd}

// maxSequenceName is the maximum length of a sequence's name in bytes, as in Triton.
const maxSequenceName = 128

// SetParameter sets a parameter of a request. Parameters that the protocol does not define
// are passed on to the model, except those whose names begin with triton_. read returns
// the value with the type for the given kind, or an error of its protocol.
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
		req.Correlation, _ = value.(uint64)
		req.CorrelationName, _ = value.(string)
		if len(req.CorrelationName) > maxSequenceName {
			return infer.Errorf(infer.Unsupported, "string correlation ID cannot be longer than %d characters", maxSequenceName)
		}
	case "sequence_start", "sequence_end":
		if value.(bool) {
			req.Flags |= sequenceFlags[name]
		}
	default:
		if kind == CustomParameter && value != nil {
			req.Parameters = append(req.Parameters, infer.Parameter{Name: name, Value: value})
		}
	}
	return nil
}
