package onnxtest

import (
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
)

// A Dense is a model that is too large to be checked in: tests write it when they need it.
// It computes y[N,Columns] = max(0, x[N,Rows] · w).
type Dense struct {
	Rows, Columns int

	// Weight returns the weights, row by row. Nil means that all are zero.
	Weight func(i int) float32

	// Layers is how many times it does so, each time with other weights. Above 1,
	// Rows must be Columns. 0 means once.
	Layers int

	// External puts the weights into files of their own beside the model's.
	External bool
}

// Write writes the model as dir/model.onnx.
func (d Dense) Write(t testing.TB, dir string) {
	t.Helper()
	graph := text(nil, 2, "dense")
	in, layers := "x", max(1, d.Layers)
	for i := range layers {
		name, out := fmt.Sprintf("w%d", i), fmt.Sprintf("y%d", i)
		if i == layers-1 {
			out = "y"
		}
		graph = message(graph, 1, node("MatMul", "h"+out, in, name))
		graph = message(graph, 1, node("Relu", out, "h"+out))
		graph = message(graph, 5, d.weights(t, dir, name))
		in = out
	}
	graph = message(graph, 11, port("x", d.Rows))
	graph = message(graph, 12, port("y", d.Columns))
	model := modelOf(graph)
	save(t, filepath.Join(dir, "model.onnx"), model, len(model))
}

// modelOf returns a model with the given graph.
func modelOf(graph []byte) []byte {
	model := varint(nil, 1, 8) // the version of the format
	model = message(model, 7, graph)
	return message(model, 8, varint(nil, 2, 17)) // that of the operators
}

func (d Dense) weights(t testing.TB, dir, name string) []byte {
	t.Helper()
	size := 4 * d.Rows * d.Columns
	var data []byte
	if d.Weight != nil {
		data = make([]byte, 0, size)
		for i := range size / 4 {
			data = binary.LittleEndian.AppendUint32(data, math.Float32bits(d.Weight(i)))
		}
	}
	b := varint(varint(nil, 1, d.Rows), 1, d.Columns)
	b = text(varint(b, 2, float), 8, name)
	if !d.External {
		return message(b, 9, append(data, make([]byte, size-len(data))...))
	}
	save(t, filepath.Join(dir, name), data, size)
	b = message(b, 13, text(text(nil, 1, "location"), 2, name))
	return varint(b, 14, 1)
}

// save writes data to a file and extends it to size, as a sparse file.
func save(t testing.TB, file string, data []byte, size int) {
	t.Helper()
	err := os.WriteFile(file, data, 0o644)
	if err == nil {
		err = os.Truncate(file, int64(size))
	}
	if err != nil {
		t.Fatal(err)
	}
}

const float = 1 // the type of elements

func node(operator, output string, inputs ...string) (b []byte) {
	for _, in := range inputs {
		b = text(b, 1, in)
	}
	return text(text(b, 2, output), 4, operator)
}

func port(name string, columns int) []byte {
	shape := message(nil, 1, text(nil, 2, "N"))
	shape = message(shape, 1, varint(nil, 1, columns))
	tensor := message(varint(nil, 1, float), 2, shape)
	return message(text(nil, 1, name), 2, message(nil, 1, tensor))
}

func varint(b []byte, field protowire.Number, value int) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), uint64(value))
}

func text(b []byte, field protowire.Number, value string) []byte {
	return protowire.AppendString(protowire.AppendTag(b, field, protowire.BytesType), value)
}

func message(b []byte, field protowire.Number, value []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, field, protowire.BytesType), value)
}
