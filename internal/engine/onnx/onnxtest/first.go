package onnxtest

import (
	"path/filepath"
	"testing"
)

// A First is a model that takes hardly any time, however large its rows are: it returns the
// first number of each row x[N,Columns] as y[N,1], and reads no other.
type First struct{ Columns int }

// Write writes the model as dir/model.onnx.
func (f First) Write(t testing.TB, dir string) {
	t.Helper()
	const integer, attributeInteger = 7, 2
	axis := varint(varint(text(nil, 1, "axis"), 3, 1), 20, attributeInteger)
	index := message(text(varint(varint(nil, 1, 1), 2, integer), 8, "index"), 9, make([]byte, 8))
	graph := text(nil, 2, "first")
	graph = message(graph, 1, message(node("Gather", "y", "x", "index"), 5, axis))
	graph = message(graph, 5, index)
	graph = message(graph, 11, port("x", f.Columns))
	graph = message(graph, 12, port("y", 1))
	model := modelOf(graph)
	save(t, filepath.Join(dir, "model.onnx"), model, len(model))
}
