// Package reference keeps the generated parts of docs/reference equal to the code. A test
// renders the text of a section from the tables of its package, and [Section] compares it with
// the page. `make reference` writes the sections instead.
package reference

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoal-serving/shoal/internal/console"
)

// width is the longest line of a generated section.
const width = 96

// Section fails the test if a section of docs/reference/page differs from want. A section is
// the text between the comments "<!-- generated: name -->" and "<!-- end of name -->". If the
// environment variable REFERENCE is "write", Section replaces the text instead.
func Section(t *testing.T, page, name, want string) {
	t.Helper()
	file := filepath.Join(root(t), "docs", "reference", page)
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(text), "<!-- generated: "+name+" -->\n")
	got, after, ended := strings.Cut(rest, "<!-- end of "+name+" -->\n")
	if !found || !ended {
		t.Fatalf("docs/reference/%s has no section <!-- generated: %s --> that ends with <!-- end of %s -->", page, name, name)
	}
	want = "\n" + strings.TrimSpace(want) + "\n\n"
	switch {
	case got == want:
	case os.Getenv("REFERENCE") == "write":
		text := before + "<!-- generated: " + name + " -->\n" + want + "<!-- end of " + name + " -->\n" + after
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("the section %s of docs/reference/%s is stale: run make reference\n%s", name, page, firstDifference(got, want))
	}
}

// Document fails the test if the file docs/reference/name differs from want, or writes it.
func Document(t *testing.T, name, want string) {
	t.Helper()
	file := filepath.Join(root(t), "docs", "reference", name)
	if os.Getenv("REFERENCE") == "write" {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("docs/reference/%s is stale: run make reference\n%s", name, firstDifference(string(got), want))
	}
}

// Item returns an entry of a list: a term, and what it means, wrapped.
func Item(term, meaning string) string {
	return strings.Join(console.Wrap("- ", term+": "+meaning, width, 2), "\n") + "\n"
}

// Paragraphs wraps paragraphs that are separated by empty lines.
func Paragraphs(text string) string {
	var out strings.Builder
	for paragraph := range strings.SplitSeq(strings.TrimSpace(text), "\n\n") {
		out.WriteString(strings.Join(console.Wrap("", paragraph, width, 0), "\n") + "\n\n")
	}
	return out.String()
}

func firstDifference(got, want string) string {
	a, b := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return "has  " + a[i] + "\nwant " + b[i]
		}
	}
	return "one has more lines than the other"
}

// root returns the directory of the module.
func root(t *testing.T) string {
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			t.Fatal("the tests do not run inside the module")
		}
		dir = parent
	}
}
