package client_test

import (
	"bytes"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/printer"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoal-serving/shoal/internal/reference"
)

func TestTheReferenceHasEveryDeclaration(t *testing.T) {
	fset := token.NewFileSet()
	var files []*ast.File
	names, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		file, err := parser.ParseFile(fset, name, text, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
	}
	p, err := doc.NewFromFiles(fset, files, "github.com/shoal-serving/shoal/client")
	if err != nil {
		t.Fatal(err)
	}
	w := &apiWriter{fset: fset, pkg: p}
	w.values(p.Consts)
	w.values(p.Vars)
	w.funcs(p.Funcs)
	for _, typ := range p.Types {
		w.item("type "+typ.Name, typ.Decl, typ.Doc)
		w.values(typ.Consts)
		w.funcs(typ.Funcs)
		w.funcs(typ.Methods)
	}
	reference.Section(t, "go-client.md", "api", w.out.String())
}

// An apiWriter writes declarations with their comments as Markdown.
type apiWriter struct {
	fset *token.FileSet
	pkg  *doc.Package
	out  strings.Builder
}

func (w *apiWriter) values(all []*doc.Value) {
	for _, v := range all {
		w.item(strings.Join(v.Names, ", "), v.Decl, v.Doc)
	}
}

func (w *apiWriter) funcs(all []*doc.Func) {
	for _, f := range all {
		name := f.Name
		if f.Recv != "" {
			name = strings.Trim(f.Recv, "*") + "." + name
		}
		w.item("func "+name, f.Decl, f.Doc)
	}
}

func (w *apiWriter) item(title string, decl ast.Decl, text string) {
	if len(title) > 60 {
		title = title[:strings.Index(title, ",")] + ", …"
	}
	var code bytes.Buffer
	if err := (&printer.Config{Mode: printer.UseSpaces, Tabwidth: 4}).Fprint(&code, w.fset, decl); err != nil {
		panic(err) // writing to a buffer never fails
	}
	w.out.WriteString("### " + title + "\n\n```go\n" + fold(code.String()) + "\n```\n\n")
	parsed := w.pkg.Parser().Parse(text)
	w.out.WriteString(reference.Paragraphs(string(w.pkg.Printer().Text(parsed))))
}

// fold breaks lines that are too long for the page at a comma.
func fold(code string) string {
	lines := strings.Split(code, "\n")
	for i, line := range lines {
		if len(line) > 96 {
			if at := strings.LastIndex(line[:96], ", "); at > 0 {
				lines[i] = line[:at+1] + "\n    " + line[at+2:]
			}
		}
	}
	return strings.Join(lines, "\n")
}
