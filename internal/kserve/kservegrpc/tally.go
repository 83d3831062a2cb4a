package kservegrpc

import (
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/kserve"
)

// A tally counts what a message holds while it is still as it was sent. Nothing
// is taken out of it.
type tally struct {
	limits *kserve.Limits

	inputs, raw, outputs, parameters int
	decoded                          int64 // bytes that typed contents take in memory
}

// A field is one field of a message. Its value has no length before it.
type field struct {
	number protowire.Number
	kind   protowire.Type
	value  []byte
}

// fields calls each for the fields of a message. One of another kind than its
// number stands for is left to the caller, which passes over it as the codec does.
func fields(message []byte, each func(f field) error) error {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return unreadable(n)
		}
		message = message[n:]
		f := field{number: number, kind: kind}
		if kind == protowire.BytesType {
			f.value, n = protowire.ConsumeBytes(message)
		} else if n = protowire.ConsumeFieldValue(number, kind, message); n >= 0 {
			f.value = message[:n]
		}
		if n < 0 {
			return unreadable(n)
		}
		if err := each(f); err != nil {
			return err
		}
		message = message[n:]
	}
	return nil
}

func unreadable(n int) error {
	return infer.Errorf(infer.Invalid, "the message cannot be read: %w", protowire.ParseError(n))
}

// other counts the fields of a message that is no inference. None has more than a
// few besides its parameters.
func (t *tally) other(message []byte) error {
	return fields(message, func(field) error { return t.parameter(nil) })
}

func (t *tally) request(message []byte) error {
	return fields(message, func(f field) error {
		if f.kind != protowire.BytesType {
			return nil
		}
		switch f.number {
		case 1, 2, 3: // model_name, model_version, id
			return t.limits.CheckText(len(f.value))
		case 4:
			return t.parameter(f.value)
		case 5:
			return t.input(f.value)
		case 6:
			return t.output(f.value)
		case 7: // raw_input_contents
			t.raw++
			return t.limits.CheckInputs(t.raw)
		}
		return nil
	})
}

func (t *tally) parameter(entry []byte) error {
	t.parameters++
	if err := t.limits.CheckParameters(t.parameters); err != nil {
		return err
	}
	return t.limits.CheckText(len(entry))
}

func (t *tally) input(message []byte) error {
	t.inputs++
	if err := t.limits.CheckInputs(t.inputs); err != nil {
		return err
	}
	dims := 0
	return fields(message, func(f field) error {
		switch {
		case f.number == 3: // shape
			dims += f.numbers()
			return t.limits.CheckDims(dims)
		case f.kind != protowire.BytesType:
			return nil
		}
		switch f.number {
		case 1, 2: // name, datatype
			return t.limits.CheckText(len(f.value))
		case 4:
			return t.parameter(f.value)
		case 5:
			return t.contents(f.value)
		}
		return nil
	})
}

func (t *tally) output(message []byte) error {
	t.outputs++
	if err := t.limits.CheckOutputs(t.outputs); err != nil {
		return err
	}
	return fields(message, func(f field) error {
		switch {
		case f.kind != protowire.BytesType:
			return nil
		case f.number == 1: // name
			return t.limits.CheckText(len(f.value))
		case f.number == 2:
			return t.parameter(f.value)
		}
		return nil
	})
}

// stringHeader is what a string takes besides its bytes: 24 in the message that
// holds it, and 4 in the tensor that is made of it.
const stringHeader = 28

// contents counts the elements of typed contents. Its fields have the types of
// [mismatch], in that order.
func (t *tally) contents(message []byte) error {
	return fields(message, func(f field) error {
		switch f.number {
		case 1:
			t.decoded += int64(f.numbers())
		case 2, 4:
			t.decoded += 4 * int64(f.numbers())
		case 3, 5:
			t.decoded += 8 * int64(f.numbers())
		case 6, 7:
			t.decoded += int64(len(f.value)) // as long as they are sent, packed or not
		case 8:
			if err := t.limits.CheckString(int64(len(f.value))); err != nil {
				return err
			}
			t.decoded += stringHeader + int64(len(f.value))
		}
		return t.limits.CheckDecoded(t.decoded)
	})
}

// numbers returns how many integers a field holds, packed or not: each ends with
// the first byte whose highest bit is not set.
func (f *field) numbers() int {
	n := 0
	for _, b := range f.value {
		n += int(^b >> 7)
	}
	return n
}
