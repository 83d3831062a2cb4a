package modelconfig

import (
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
		if inner != nil && rules[path].kind == Supported {
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
			t.Errorf("%s has no kind: give it one in kinds.go, and a line in docs/reference/configuration.md", path)
		case (r.what == "") != (r.kind == Supported):
			t.Errorf("%s is %v and says %q: a reason is for those that are not carried out", path, r.kind, r.what)
		case r.instead == "" && r.kind == Rejected:
			t.Errorf("%s is rejected, and nothing says what to do instead", path)
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
