package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"slices"
	"strings"
)

// A mutation is a small defect in one place of the code.
type mutation struct {
	id       string
	breaks   string   // what is wrong with the mutated code
	file     string   // that is changed, relative to the module
	tests    []string // directories of the packages whose tests should notice it
	function string   // that has the place, such as "worker.join"; "" means anywhere in the file
	old, new []string // lines without indentation
	harmless string   // why no test can or should notice it; "" if one must
}

// parseList reads a list of mutations. Its paragraphs are either the name of a file, with
// other packages that test it, or a mutation of that file:
//
//	== internal/servable/open.go internal/repository
//
//	V1 a failed load is retried once too often
//	in Env.openWithRetries
//	- for range e.opts.Retries + 1 {
//	+ for range e.opts.Retries + 2 {
//	harmless: only for a mutation that need not be noticed
//
// Lines that begin with "-" are replaced by those that begin with "+". Lines that begin with
// "|" stay, and only make the place unique.
func parseList(text string) (all []mutation, err error) {
	var file string
	var tests []string
	number, begin := 0, true
	for line := range strings.Lines(text) {
		number++
		line = strings.TrimRight(line, "\r\n")
		kind, rest, _ := strings.Cut(line, " ")
		last := len(all) - 1
		switch {
		case line == "":
			begin = true
			continue
		case kind == "#":
			continue
		case kind == "==":
			fields := strings.Fields(rest)
			file = fields[0]
			if tests = fields[1:]; len(tests) == 0 {
				tests = []string{path.Dir(file)}
			}
			continue
		case begin && file != "" && rest != "":
			all = append(all, mutation{id: kind, breaks: rest, file: file, tests: tests})
		case last < 0 || begin:
			return nil, fmt.Errorf("line %d: found %q, expected a file or a mutation", number, line)
		case kind == "in":
			all[last].function = rest
		case kind == "harmless:":
			all[last].harmless = rest
		case kind == "-":
			all[last].old = append(all[last].old, strings.TrimSpace(rest))
		case kind == "+":
			all[last].new = append(all[last].new, rest)
		case kind == "|":
			all[last].old, all[last].new = append(all[last].old, strings.TrimSpace(rest)), append(all[last].new, rest)
		default:
			return nil, fmt.Errorf("line %d: found %q, expected -, +, |, in or harmless: at its beginning", number, line)
		}
		begin = false
	}
	return all, nil
}

// packages returns the packages that test the mutation, as arguments of go test.
func (m *mutation) packages() (all []string) {
	for _, dir := range m.tests {
		all = append(all, "./"+dir)
	}
	return all
}

// apply returns the source with the mutation. The place must exist exactly once.
func (m *mutation) apply(source []byte) ([]byte, error) {
	lines := strings.Split(string(source), "\n")
	from, to, err := m.scope(source, len(lines))
	if err != nil {
		return nil, err
	}
	at := -1
	for i := from; i+len(m.old) <= to; i++ {
		if !slices.EqualFunc(lines[i:i+len(m.old)], m.old, func(a, b string) bool { return strings.TrimSpace(a) == b }) {
			continue
		}
		if at >= 0 {
			return nil, fmt.Errorf("%s: lines %d and %d of %s match, expected one place: name the function, or add lines", m.id, at+1, i+1, m.file)
		}
		at = i
	}
	if at < 0 || len(m.old) == 0 {
		return nil, fmt.Errorf("%s: %s has no lines %q", m.id, m.file, m.old)
	}
	return []byte(strings.Join(slices.Replace(lines, at, at+len(m.old), m.new...), "\n")), nil
}

// scope returns the range of the lines in which the place is.
func (m *mutation) scope(source []byte, lines int) (from, to int, err error) {
	if m.function == "" {
		return 0, lines, nil
	}
	files := token.NewFileSet()
	tree, err := parser.ParseFile(files, m.file, source, parser.SkipObjectResolution)
	if err != nil {
		return 0, 0, err
	}
	for _, d := range tree.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && name(f) == m.function {
			return files.Position(f.Pos()).Line - 1, files.Position(f.End()).Line, nil
		}
	}
	return 0, 0, fmt.Errorf("%s: %s has no function %s", m.id, m.file, m.function)
}

// name returns the name of a function, behind that of its receiver's type.
func name(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return f.Name.Name
	}
	kind := f.Recv.List[0].Type
	if star, ok := kind.(*ast.StarExpr); ok {
		kind = star.X
	}
	if generic, ok := kind.(*ast.IndexExpr); ok {
		kind = generic.X
	}
	if id, ok := kind.(*ast.Ident); ok {
		return id.Name + "." + f.Name.Name
	}
	return f.Name.Name
}

// parses reports whether a mutated source is still Go.
func parses(file string, source []byte) error {
	_, err := parser.ParseFile(token.NewFileSet(), file, bytes.NewReader(source), parser.SkipObjectResolution)
	return err
}
