package modelconfig

import (
	"os"
	"regexp"
	"slices"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/shoal-serving/shoal/internal/modelconfig/configpb"
)

// eachField calls f with the path of each field of a message, and of each field inside
// those that are carried out.
func eachField(m protoreflect.MessageDescriptor, prefix string, f func(path string)) {
	for i := range m.Fields().Len() {
		fd := m.Fields().Get(i)
		path := prefix + string(fd.Name())
		f(path)
		inner := fd.Message()
		if fd.IsMap() {
			inner = fd.MapValue().Message()
		}
		if inner != nil && rules[path].kind == supported {
			eachField(inner, path+".", f)
		}
	}
}

func TestEveryFieldHasAKind(t *testing.T) {
	seen := map[string]bool{}
	eachField((&configpb.ModelConfig{}).ProtoReflect().Descriptor(), "", func(path string) {
		seen[path] = true
		switch r, ok := rules[path]; {
		case !ok:
			t.Errorf("%s has no kind: give it one in kinds.go, and a line in docs/configuration.md", path)
		case (r.says == "") != (r.kind == supported):
			t.Errorf("%s is %v and says %q: a reason is for those that are not carried out", path, r.kind, r.says)
		}
	})
	for path := range rules {
		if !seen[path] {
			t.Errorf("%s has a kind, but there is no such field, or what it is inside is not carried out", path)
		}
	}
}

// The scanner recognizes maps by their keys.
func TestOnlyMapsHaveAFieldCalledKey(t *testing.T) {
	var walk func(m protoreflect.MessageDescriptor)
	walk = func(m protoreflect.MessageDescriptor) {
		if !m.IsMapEntry() && m.Fields().ByName("key") != nil {
			t.Errorf("%s has a field called key", m.FullName())
		}
		for i := range m.Fields().Len() {
			if inner := m.Fields().Get(i).Message(); inner != nil {
				walk(inner)
			}
		}
	}
	walk((&configpb.ModelConfig{}).ProtoReflect().Descriptor())
}

var documented = regexp.MustCompile("(?m)^\\| `([a-z_.]+)` \\| ([a-z ]+) \\| (.*) \\|$")

func TestTheManualSaysWhatBecomesOfEveryField(t *testing.T) {
	page, err := os.ReadFile("../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	told := map[string]rule{}
	for _, row := range documented.FindAllStringSubmatch(string(page), -1) {
		kinds := []string{supported.String(), ignored.String(), rejected.String()}
		told[row[1]] = rule{kind: kind(slices.Index(kinds, row[2]) + 1), says: row[3]}
	}
	for path, r := range rules {
		row, ok := told[path]
		if !ok || row.kind != r.kind || r.kind != supported && row.says != r.says {
			t.Errorf("docs/configuration.md: want the line\n| `%s` | %v | %s |", path, r.kind, r.says)
		}
		delete(told, path)
	}
	for path := range told {
		t.Errorf("docs/configuration.md: %s is not a field", path)
	}
}
