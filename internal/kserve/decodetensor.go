package kserve

import (
	"fmt"
	"strings"

	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/tensor"
)

// An inputReader collects the members of an input, which may come in any order.
type inputReader struct {
	tensor.Tensor
	hasName bool
	hasType bool
	meant   tensor.Type // probably, if Type is Invalid
	text    []byte      // the data as JSON; nil if it has none
	single  bool        // text is one element, not an array
	offset  int64       // of text in the document
	binary  bool
	bytes   uint64 // of binary data
	shared  sharedReader
}

// A sharedReader collects the parameters of a tensor that is in shared memory.
type sharedReader struct {
	RegionSlice
	set bool // the region is set
}

// sharedParameter decodes a parameter of a tensor in shared memory.
func (d *decoder) sharedParameter(to *sharedReader, name []byte) (err error) {
	switch string(name) {
	case "shared_memory_region":
		to.set = true
		to.Region, err = d.string("shared_memory_region")
	case "shared_memory_offset":
		to.Offset, err = d.uint("shared_memory_offset")
	case "shared_memory_byte_size":
		to.Size, err = d.uint("shared_memory_byte_size")
	default:
		err = d.skip()
	}
	return err
}

func (d *decoder) input() error {
	if err := d.limits.CheckInputs(len(d.req.Inputs) + 1); err != nil {
		return err
	}
	var in inputReader
	err := d.members("inputs", func(name []byte) (err error) {
		switch string(name) {
		case "name":
			in.hasName = true
			in.Name, err = d.string("name")
		case "shape":
			in.Shape, err = d.shape()
		case "datatype":
			in.hasType = true
			in.Type, in.meant, err = d.datatype()
		case "data":
			in.text, in.offset, err = d.array()
		case "parameters":
			err = d.eachParameter(func(name []byte) error { return d.inputParameter(&in, name) })
		default:
			err = d.skip()
		}
		return err
	})
	if err == nil {
		err = d.addInput(&in)
	}
	return err
}

func (d *decoder) inputParameter(in *inputReader, name []byte) (err error) {
	switch string(name) {
	case "binary_data_size":
		in.binary = true
		in.bytes, err = d.uint("binary_data_size")
	default:
		err = d.sharedParameter(&in.shared, name)
	}
	return err
}

func (d *decoder) addInput(in *inputReader) error {
	switch {
	case !in.hasName:
		return missing("name")
	case in.Shape == nil:
		return missing("shape")
	case !in.hasType:
		return missing("datatype")
	case in.Type == tensor.Invalid:
		return infer.Errorf(infer.Invalid, "invalid datatype for input %s", in.Name).WithHint("%s", in.typeHint())
	}
	err := in.checkSource()
	switch {
	case err != nil:
	case in.binary:
		err = d.takeBinary(in)
	case in.shared.set:
		d.req.Shared.AddInput(len(d.req.Inputs), in.shared.RegionSlice)
	default:
		err = d.reserve(in)
	}
	d.req.Inputs = append(d.req.Inputs, in.Tensor)
	return err
}

// typeHint says which datatypes are valid.
func (in *inputReader) typeHint() string {
	var names []string
	for t := tensor.Bool; t <= tensor.BF16; t++ {
		names = append(names, t.String())
	}
	hint := "valid are " + strings.Join(names, ", ")
	if in.meant != tensor.Invalid {
		return fmt.Sprintf("did you mean %v? %s", in.meant, hint)
	}
	return hint
}

// checkSource returns an error unless the input's data comes from exactly one source.
func (in *inputReader) checkSource() error {
	sources := 0
	for _, set := range [...]bool{in.text != nil, in.binary, in.shared.set} {
		if set {
			sources++
		}
	}
	if sources == 1 {
		return nil
	}
	set := ""
	for _, source := range []struct {
		name string
		set  bool
	}{
		{"'data'", in.text != nil},
		{"'binary_data_size'", in.binary},
		{"'shared_memory_region'", in.shared.set},
	} {
		if source.set {
			set += " " + source.name
		}
	}
	if set == "" {
		set = "no field is set"
	} else {
		set = "set" + set
	}
	return infer.Errorf(infer.Invalid, "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "+
		"'shared_memory_region' in 'parameters'. But %s", set)
}

// takeBinary assigns an input its part of the binary data.
func (d *decoder) takeBinary(in *inputReader) error {
	if in.bytes > uint64(len(d.rest)) {
		return infer.Errorf(infer.Invalid, "unexpected size for input '%s', expecting %d additional bytes for model '%s'",
			in.Name, in.bytes-uint64(len(d.rest)), d.req.Model)
	}
	in.Data = d.rest[:in.bytes:in.bytes]
	d.rest = d.rest[in.bytes:]
	return d.limits.CheckStrings(&in.Tensor)
}

// checkJSONType returns an error if the type of an input cannot be sent as JSON.
func (in *inputReader) checkJSONType() error {
	if in.Type == tensor.FP16 || in.Type == tensor.BF16 {
		return infer.Errorf(infer.Invalid, "receiving %v data via JSON is not supported. Please use the binary data format for input %s",
			in.Type, in.Name)
	}
	return nil
}

// reserve computes how much memory an input sent as a JSON array needs, and its offset,
// without allocating.
func (d *decoder) reserve(in *inputReader) error {
	if err := in.checkJSONType(); err != nil {
		return err
	}
	n, err := tensor.Elements(in.Shape)
	if err != nil {
		return unparsable("shape", err.Error())
	}
	// An element takes at least one character, and another one as the separator.
	if n > int64(len(in.text))/2 {
		return unparsable("data", tritonReason(errCount, in.Type)).WithHint("%s", countHint(&in.Tensor, n, in.text))
	}
	return d.reserveElements(in, n)
}

// reserveElements is reserve for a known number of elements, which text may have.
func (d *decoder) reserveElements(in *inputReader, n int64) (err error) {
	size := n*4 + int64(len(in.text)) // no string is longer than its JSON text
	if in.Type != tensor.Bytes {
		if size, err = tensor.ByteSize(in.Type, in.Shape); err != nil {
			return unparsable("shape", err.Error())
		}
	}
	p := pending{input: len(d.req.Inputs), text: in.text, offset: in.offset, elements: n, single: in.single, at: d.size, size: size}
	d.pending = append(d.pending, p)
	d.size += (size + 7) &^ 7 // keeps the next one aligned for any type
	return d.limits.CheckDecoded(d.size)
}

// An outputReader collects the members of a requested output.
type outputReader struct {
	name    string
	hasName bool
	binary  bool
	classes uint64
	shared  sharedReader
}

func (d *decoder) output() error {
	if err := d.limits.CheckOutputs(len(d.req.Outputs) + 1); err != nil {
		return err
	}
	var out outputReader
	err := d.members("outputs", func(name []byte) (err error) {
		switch string(name) {
		case "name":
			out.hasName = true
			out.name, err = d.string("name")
		case "parameters":
			err = d.eachParameter(func(name []byte) error { return d.outputParameter(&out, name) })
		default:
			err = d.skip()
		}
		return err
	})
	switch {
	case err != nil:
		return err
	case !out.hasName:
		return missing("name")
	case out.shared.set && out.classes > 0:
		return infer.Errorf(infer.Invalid, "Output can't set both 'shared_memory_region' and 'classification'")
	case out.shared.set && out.binary:
		return infer.Errorf(infer.Invalid, "Output can't set both 'shared_memory_region' and 'binary_data'")
	case out.shared.set:
		d.req.Shared.AddOutput(out.name, out.shared.RegionSlice)
	}
	d.classes.AddOutput(&d.req.Request, out.name, out.classes)
	d.req.binaryOutputs = append(d.req.binaryOutputs, out.binary)
	return nil
}

func (d *decoder) outputParameter(out *outputReader, name []byte) (err error) {
	switch string(name) {
	case "binary_data":
		out.binary, err = d.bool("binary_data")
	case "classification":
		out.classes, err = d.uint("classification")
	default:
		err = d.sharedParameter(&out.shared, name)
	}
	return err
}
