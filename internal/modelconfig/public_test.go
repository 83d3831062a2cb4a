package modelconfig

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/shoal-serving/shoal/internal/script"
)

// available are the backends that a server has.
var available = []string{"ensemble", "onnxruntime", "python", "pytorch", "simulated"}

// The configurations are written after those of public projects: what people use, and in
// which words. Each loads, with a warning for each setting without effect, or is refused.
func TestConfigurationsThatPeopleWriteLoadOrNameTheWayAround(t *testing.T) {
	blocks := 0
	script.Run(t, "testdata/public.txt", func(t *testing.T) func([]string) string {
		return func(lines []string) string {
			blocks++
			c, err := Parse("config.pbtxt", []byte(strings.Join(lines, "\n")))
			if err == nil && c.Backend != "" && !slices.Contains(available, c.Backend) {
				err = c.UnsupportedBackend(available)
			}
			if err != nil {
				if !refusal.MatchString(err.Error()) {
					t.Errorf("%v: want the file, the line, the field, and what to do instead", err)
				}
				return "refused: " + err.Error()
			}
			out := "loads"
			for _, f := range c.Findings() {
				out += "\n" + f.String()
			}
			return out
		}
	})
	if blocks < 40 {
		t.Errorf("%d configurations, want at least 40", blocks)
	}
}

// A refusal has the position, the field, and behind a semicolon what to do.
var refusal = regexp.MustCompile(`^config\.pbtxt:\d+(:\d+)?: [a-z_]+(\[\d+\])?(\.[a-z_]+)*: .+; \S.+`)

func TestEveryFieldIsInAConfigurationThatPeopleWrite(t *testing.T) {
	text, err := os.ReadFile("testdata/public.txt")
	if err != nil {
		t.Fatal(err)
	}
	written := map[string]bool{}
	for block := range strings.SplitSeq(string(text), "\n\n") {
		config, _, _ := strings.Cut(block, "----")
		c, _ := Parse("config.pbtxt", []byte(config)) // a rejected field comes with the configuration
		if c != nil {
			eachWritten(c.Proto.ProtoReflect(), "", func(path string) { written[path] = true })
		}
	}
	written["batch_output.kind"] = true // it has one value, which cannot be told from none
	for path := range rules {
		if !written[path] {
			t.Errorf("no configuration in testdata/public.txt has %s", path)
		}
	}
}

// eachWritten calls f with the path of each field that a message has.
func eachWritten(m protoreflect.Message, prefix string, f func(path string)) {
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		path := fmt.Sprintf("%s%s", prefix, fd.Name())
		f(path)
		inside := func(v protoreflect.Value) { eachWritten(v.Message(), path+".", f) }
		switch {
		case fd.IsMap() && fd.MapValue().Message() != nil:
			v.Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool { inside(v); return true })
		case fd.IsMap() || fd.Message() == nil:
		case fd.IsList():
			for i := range v.List().Len() {
				inside(v.List().Get(i))
			}
		default:
			inside(v)
		}
		return true
	})
}
