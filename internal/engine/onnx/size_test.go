package onnx

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
)

// nested returns the file of a model whose node has a graph whose node has a graph, and so on.
func nested(levels int) (file []byte) {
	wrap := func(field protowire.Number) {
		file = append(protowire.AppendVarint(protowire.AppendTag(nil, field, protowire.BytesType), uint64(len(file))), file...)
	}
	for range levels {
		wrap(6) // the graph of an attribute
		wrap(5) // the attribute of a node
		wrap(1) // the node of a graph
	}
	wrap(7)
	return file
}

func TestAModelNestedTooDeepIsAnErrorAndNotAnOverflow(t *testing.T) {
	for levels, want := range map[int]string{20: "", 1000: "not an ONNX model"} {
		file := filepath.Join(t.TempDir(), "model.onnx")
		if err := os.WriteFile(file, nested(levels), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := scan(file)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%d graphs within each other: %v, want %q", levels, err, want)
		}
	}
}
