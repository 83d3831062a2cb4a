package modelconfig

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/shoal-serving/shoal/internal/modelconfig/configpb"
	"github.com/shoal-serving/shoal/internal/plainjson"
	"github.com/shoal-serving/shoal/internal/script"
	"github.com/shoal-serving/shoal/tensor"
)

func TestTheConfigurationIsPrintedAsTritonPrintsIt(t *testing.T) {
	for _, name := range []string{"identity", "two"} {
		text, err := os.ReadFile(filepath.Join("testdata", "recorded", name+".pbtxt"))
		if err != nil {
			t.Fatal(err)
		}
		want, err := os.ReadFile(filepath.Join("testdata", "recorded", name+".json"))
		if err != nil {
			t.Fatal(err)
		}
		c, err := Parse("config.pbtxt", text)
		if err != nil {
			t.Fatal(err)
		}
		if got := plainjson.Append(nil, c.Effective()); string(got) != strings.TrimSpace(string(want)) {
			t.Errorf("%s:\n%s\nwant\n%s", name, got, want)
		}
	}
}

// Each block is a configuration. It is printed with one line for each top-level field.
func TestConfigurationsArePrinted(t *testing.T) {
	script.Run(t, "testdata/effective.txt", func(t *testing.T) func([]string) string {
		return func(lines []string) string {
			c, err := Parse("config.pbtxt", []byte(strings.Join(lines, "\n")))
			if err != nil {
				return err.Error()
			}
			if len(c.Inputs) == 0 {
				model := Description{
					Batchable: true,
					Inputs:    []Port{{Name: "X", Type: tensor.FP32, Dims: []int64{-1, 3}}},
					Outputs:   []Port{{Name: "Y", Type: tensor.Bytes, Dims: []int64{-1, 1}}},
				}
				if err := c.Complete(model); err != nil {
					return err.Error()
				}
			}
			printed := plainjson.Append(nil, c.Effective())
			checkReadable(t, printed)
			return topLevel(printed)
		}
	})
}

// checkReadable parses the output with an independent parser, and prints it again.
func checkReadable(t *testing.T, printed []byte) {
	t.Helper()
	var read configpb.ModelConfig
	if err := protojson.Unmarshal(printed, &read); err != nil {
		t.Errorf("%v in %s", err, printed)
	}
	if again := plainjson.Append(nil, &read); !bytes.Equal(again, printed) {
		t.Errorf("read as\n%s\nwant\n%s", again, printed)
	}
}

// topLevel inserts line breaks before the fields of the outermost JSON object.
func topLevel(printed []byte) string {
	var out strings.Builder
	depth, text := 0, false
	for i, b := range printed {
		switch {
		case b == '"' && printed[i-1] != '\\':
			text = !text
		case text:
		case b == '{' || b == '[':
			depth++
		case b == '}' || b == ']':
			depth--
		}
		out.WriteByte(b)
		if b == ',' && depth == 1 && !text {
			out.WriteByte('\n')
		}
	}
	return out.String()
}
