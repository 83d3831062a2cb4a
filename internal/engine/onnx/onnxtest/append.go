package onnxtest

import (
	"encoding/binary"
	"math"
	"os"
	"testing"
)

// WriteAppend writes a model that appends two digits to a number: y[N,1] = 100 · x[N,1] + digits.
// A chain of such models shows which one was used in each of its steps.
func WriteAppend(t testing.TB, file string, digits int) {
	t.Helper()
	graph := text(nil, 2, "append")
	graph = message(graph, 1, node("Mul", "shifted", "x", "hundred"))
	graph = message(graph, 1, node("Add", "y", "shifted", "digits"))
	graph = message(graph, 5, number("hundred", 100))
	graph = message(graph, 5, number("digits", float32(digits)))
	graph = message(graph, 11, port("x", 1))
	graph = message(graph, 12, port("y", 1))
	if err := os.WriteFile(file, modelOf(graph), 0o644); err != nil {
		t.Fatal(err)
	}
}

// number returns a constant with one element.
func number(name string, value float32) []byte {
	b := text(varint(varint(nil, 1, 1), 2, float), 8, name)
	return message(b, 9, binary.LittleEndian.AppendUint32(nil, math.Float32bits(value)))
}
