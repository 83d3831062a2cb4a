package archtest

import (
	"fmt"
	"go/ast"
	"io/fs"
	"os"
	"path"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"
)

// testName matches `TestSomething` and `TestSomething/script`.
var testName = regexp.MustCompile("`((?:Test|Fuzz)[A-Z]\\w*)(?:/(\\w+))?`")

// claim matches an item of a list that says whether something is as in Triton.
var claim = regexp.MustCompile(`(?m)^- ((?:.|\n  )*?): \*\*(yes|no|different|better|in part)\*\*((?:.|\n  )*)`)

// claimsAreShown returns the rule for one text of docs/reference/triton-compatibility.md: the tests
// that it names exist, and every claim names one, unless it is that there is
// nothing to show. root has the scripts.
func claimsAreShown(text string, root fs.FS) rule {
	return func(folders []folder) (breaches []string) {
		places := map[string][]string{} // the folders of a test
		for _, f := range folders {
			for _, name := range tests(f) {
				places[name] = append(places[name], f.path)
			}
		}
		for _, row := range claim.FindAllStringSubmatch(text, -1) {
			if row[2] != "no" && !testName.MatchString(row[3]) {
				breaches = append(breaches, fmt.Sprintf("docs/reference/triton-compatibility.md says %s of %s: name the test that shows it.", row[2], strings.ReplaceAll(row[1], "\n ", "")))
			}
		}
		for _, name := range testName.FindAllStringSubmatch(text, -1) {
			switch {
			case places[name[1]] == nil:
				breaches = append(breaches, fmt.Sprintf("docs/reference/triton-compatibility.md names %s, but there is no such test: follow the code.", name[0]))
			case name[2] != "" && !hasScript(root, places[name[1]], name[2]):
				breaches = append(breaches, fmt.Sprintf("docs/reference/triton-compatibility.md names %s, but that test has no script of this name: follow testdata.", name[0]))
			}
		}
		return breaches
	}
}

// tests returns the names of the tests and fuzz targets of a package.
func tests(f folder) (names []string) {
	for _, file := range f.files {
		for _, decl := range file.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok && file.test && fn.Recv == nil {
				names = append(names, fn.Name.Name)
			}
		}
	}
	return names
}

func hasScript(root fs.FS, folders []string, name string) bool {
	for _, folder := range folders {
		if _, err := fs.Stat(root, path.Join(folder, "testdata", name+".txt")); err == nil {
			return true
		}
	}
	return false
}

func TestWhatIsSaidOfTritonIsShown(t *testing.T) {
	text, err := os.ReadFile("../../docs/reference/triton-compatibility.md")
	if err != nil {
		t.Fatal(err)
	}
	if n := len(claim.FindAllString(string(text), -1)); n < 40 {
		t.Errorf("docs/reference/triton-compatibility.md has %d claims: is its form another?", n)
	}
	keeps(t, claimsAreShown(string(text), os.DirFS("../..")))
}

func TestWhatIsSaidOfTritonIsShownBites(t *testing.T) {
	sources := files{"a/a_test.go": "package a\n\nfunc TestRoutes() {}\n\nfunc FuzzNumbers() {}\n", "a/a.go": "package a\n\nfunc TestNothing() {}\n"}
	scripts := fstest.MapFS{"a/testdata/infer.txt": {}}
	for _, c := range []struct{ name, rows, want string }{
		{"all is shown", "- x: **yes**. Test: `TestRoutes/infer`.\n- y: **different**, why.\n  Tests: `FuzzNumbers`,\n  `TestRoutes`.\n- z: **no**.", ""},
		{"a claim alone", "- x,\n  GET: **better**, so it is.\n\n`TestRoutes`", "docs/reference/triton-compatibility.md says better of x, GET: name the test that shows it."},
		{"a test is gone", "- x: **yes**. Test: `TestGone`.", "docs/reference/triton-compatibility.md names `TestGone`, but there is no such test: follow the code."},
		{"it is no test", "- x: **yes**. Test: `TestNothing`.", "docs/reference/triton-compatibility.md names `TestNothing`, but there is no such test: follow the code."},
		{"a script is gone", "- x: **no**. `TestRoutes/gone`", "docs/reference/triton-compatibility.md names `TestRoutes/gone`, but that test has no script of this name: follow testdata."},
	} {
		bites(t, claimsAreShown(strings.TrimSpace(c.rows), scripts), []bite{{c.name, sources, c.want}})
	}
}
