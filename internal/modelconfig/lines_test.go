package modelconfig

import (
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/shoal-serving/shoal/internal/modelconfig/configpb"
	"github.com/shoal-serving/shoal/internal/script"
)

// A block is a text, and fields to look up, each after a question mark. The script omits
// comments at the start of a line, and blank lines.
func TestFieldsAreFoundOnTheirLines(t *testing.T) {
	script.Run(t, "testdata/lines.txt", func(*testing.T) func([]string) string {
		return func(lines []string) string {
			var text, fields []string
			for _, line := range lines {
				if field, ok := strings.CutPrefix(line, "? "); ok {
					fields = append(fields, field)
				} else {
					text = append(text, line)
				}
			}
			root := locate([]byte(strings.Join(text, "\n")))
			var out strings.Builder
			for _, field := range fields {
				line, exact := root.find(field)
				around := ""
				if !exact {
					around = " (around it)"
				}
				fmt.Fprintf(&out, "%s %d%s\n", field, line, around)
			}
			return out.String()
		}
	})
}

// eachSet calls f with the path of each field of m that is set. It descends into maps only
// if their keys are numbers: no others are looked up.
func eachSet(m protoreflect.Message, prefix string, f func(path string)) {
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		path := prefix + string(fd.Name())
		f(path)
		switch {
		case fd.IsMap():
			v.Map().Range(func(key protoreflect.MapKey, v protoreflect.Value) bool {
				if fd.MapKey().Kind() == protoreflect.Uint64Kind && key.Uint() > 0 {
					f(fmt.Sprintf("%s[%v]", path, key))
					eachSet(v.Message(), fmt.Sprintf("%s[%v].", path, key), f)
				}
				return true
			})
		case fd.IsList():
			for i := range v.List().Len() {
				element := fmt.Sprintf("%s[%d]", path, i)
				f(element)
				if fd.Message() != nil {
					eachSet(v.List().Get(i).Message(), element+".", f)
				}
			}
		case fd.Message() != nil:
			eachSet(v.Message(), path+".", f)
		}
		return true
	})
}

// For any text that the parser accepts, the scanner finds every field that is set.
func FuzzLines(f *testing.F) {
	for _, file := range []string{"testdata/parse.txt", "testdata/lines.txt"} {
		text, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		for block := range strings.SplitSeq(string(text), "\n\n") {
			input, _, _ := strings.Cut(block, "----")
			input, _, _ = strings.Cut(input, "? ")
			f.Add([]byte(input))
		}
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		root := locate(text)
		var m configpb.ModelConfig
		if prototext.Unmarshal(text, &m) != nil {
			return
		}
		last := 1 + strings.Count(string(text), "\n")
		eachSet(m.ProtoReflect(), "", func(path string) {
			if line, exact := root.find(path); !exact || line < 1 || line > last {
				t.Errorf("%s: line %d, exact %t", path, line, exact)
			}
		})
	})
}

func TestATextNestedTooDeepIsAnErrorAndNotAnOverflow(t *testing.T) {
	defer debug.SetMaxStack(debug.SetMaxStack(16 << 20)) // of 1 GiB
	_, err := Parse("config.pbtxt", []byte("x: 1\n"+strings.Repeat("a{", 100_000)))
	if err == nil || !strings.HasPrefix(err.Error(), "config.pbtxt:1:1: x: unknown field") {
		t.Errorf("found %v", err)
	}
	if n := locate([]byte(strings.Repeat("a{", 50) + "\nb: 1")); n.lineOf(strings.Repeat("a.", 50)+"b") != 2 {
		t.Error("a field of 50 messages has no line")
	}
}
