package kservegrpc

import (
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/shoal-serving/shoal/internal/kserve"
)

// A tally counts the contents of an encoded message, and rejects it if it exceeds the
// limits.
type tally struct {
	limits *kserve.Limits

	inputs, raws, outputs, parameters int
	decoded                           int64 // bytes of typed contents in memory
}

// countFields counts the fields of a message that is not an inference. None has more than
// a few besides its parameters.
func (t *tally) countFields(message []byte) error {
	return fields(message, func(field) error { return t.parameter(nil) })
}

// countSettings counts the values of the settings in a message with trace settings. An empty value takes
// eight times its size in memory.
func (t *tally) countSettings(message []byte) error {
	return within(message, 1, func(entry []byte) error {
		return within(entry, 2, t.countFields)
	})
}

// within calls each for the fields of a message that have a number and contain others.
func within(message []byte, number protowire.Number, each func(value []byte) error) error {
	return fields(message, func(f field) error {
		if f.number != number || f.kind != protowire.BytesType {
			return nil
		}
		return each(f.value)
	})
}

func (t *tally) parameter(entry []byte) error {
	t.parameters++
	if err := t.limits.CheckParameters(t.parameters); err != nil {
		return err
	}
	return t.limits.CheckText(len(entry))
}

func (t *tally) input() error {
	t.inputs++
	return t.limits.CheckInputs(t.inputs)
}

func (t *tally) raw() error {
	t.raws++
	return t.limits.CheckInputs(t.raws)
}

func (t *tally) output() error {
	t.outputs++
	return t.limits.CheckOutputs(t.outputs)
}

// stringHeader is the memory of a string in addition to its bytes: 24 in the message, and
// 4 in the tensor.
const stringHeader = 28

// elements is the number of elements in each field of typed contents, by field number.
type elements [9]int

// contents counts the elements of an input with typed contents. The fields have the types
// of [mismatch], in that order.
func (t *tally) contents(input []byte) (n elements, err error) {
	err = fields(input, func(f field) error {
		if f.number != 5 || f.kind != protowire.BytesType {
			return nil
		}
		return fields(f.value, func(f field) error {
			switch f.number {
			case 1:
				t.decoded += n.add(f, f.count(), 1)
			case 2, 4:
				t.decoded += n.add(f, f.count(), 4)
			case 3, 5:
				t.decoded += n.add(f, f.count(), 8)
			case 6: // same size in memory as on the wire, packed or not
				t.decoded += n.add(f, len(f.value)/4, 4)
			case 7:
				t.decoded += n.add(f, len(f.value)/8, 8)
			case 8:
				if err := t.limits.CheckString(int64(len(f.value))); err != nil {
					return err
				}
				t.decoded += n.add(f, 1, stringHeader+len(f.value))
			}
			return t.limits.CheckDecoded(t.decoded)
		})
	})
	return n, err
}

// add counts elements of a field, and returns their size in memory.
func (n *elements) add(f field, count, size int) int64 {
	n[f.number] += count
	return int64(count) * int64(size)
}
