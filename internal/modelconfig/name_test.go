package modelconfig

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

func TestNamesAreNarrow(t *testing.T) {
	for name, want := range map[string]bool{
		"a": true, "7": true, "Resnet-50_v1.5": true, "a..b": true, "a.": true, strings.Repeat("n", 128): true,
		"": false, strings.Repeat("n", 129): false, ".": false, "..": false, ".hidden": false, "-flag": false, "_a": false,
		"a/b": false, "../a": false, "/a": false, `a\b`: false, `C:\a`: false, "a:b": false, "a b": false, "a\x00": false, "a\n": false,
		"é": false, "a\xff": false, "$(id)": false, "a;b": false, "%2e%2e": false,
	} {
		if got := ValidName(name); got != want {
			t.Errorf("%q: %t", name, got)
		}
	}
}

// No valid name leaves the directory that it is joined to, or has a special meaning to a
// shell.
func FuzzValidNamesStayInside(f *testing.F) {
	for _, name := range []string{"a", "..", "a/../..", "/etc/passwd", `..\..`, "a\x00/..", "C:", "~root", "a.b-c_D9", "-rf", "\n"} {
		f.Add(name)
	}
	pattern := regexp.MustCompile(`\A[A-Za-z0-9][A-Za-z0-9._-]{0,127}\z`)
	f.Fuzz(func(t *testing.T, name string) {
		if got := ValidName(name); got != pattern.MatchString(name) {
			t.Fatalf("%q is valid: %t", name, got)
		} else if !got {
			return
		}
		root := filepath.FromSlash("/models/root")
		joined := filepath.Join(root, name)
		if !filepath.IsLocal(name) || filepath.Dir(joined) != root || filepath.Base(joined) != name {
			t.Errorf("%q leads to %q", name, joined)
		}
	})
}
