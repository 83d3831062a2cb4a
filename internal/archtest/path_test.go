package archtest

import (
	"fmt"
	"go/ast"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// These head the parts of ARCHITECTURE.md that follow one request and one version, name
// by name. Names in prose go stale in silence, so these are checked.
const (
	pathSection = "The path of a request"
	lifeSection = "The life of a version"
)

// codeName matches `sched.New`, `sched.Scheduler.Submit` and `sched.New()`.
var codeName = regexp.MustCompile("`([a-z][a-z0-9]*)\\.(\\w+)(?:\\.(\\w+))?(?:\\(\\))?`")

// pathNamesWhatExists returns the rule for one text of ARCHITECTURE.md.
func pathNamesWhatExists(text string) rule {
	return func(folders []folder) (breaches []string) {
		declared := map[string][]string{} // by package name
		for _, f := range folders {
			declared[f.name()] = slices.Concat(declared[f.name()], declarations(f))
		}
		names := codeName.FindAllStringSubmatch(section(text, pathSection)+"\n"+section(text, lifeSection), -1)
		if names == nil {
			return []string{fmt.Sprintf("ARCHITECTURE.md names no code under %q: write there what a request passes, as `package.Type.Method`.", pathSection)}
		}
		for _, name := range names {
			pkg, decl := name[1], strings.TrimSuffix(name[2]+"."+name[3], ".")
			switch {
			case declared[pkg] == nil && ast.IsExported(name[2]):
				breaches = append(breaches, fmt.Sprintf(
					"ARCHITECTURE.md names %s, but no package here is called %s: follow the code, or leave the backticks off what is not ours.", name[0], pkg))
			case declared[pkg] != nil && !slices.Contains(declared[pkg], decl):
				breaches = append(breaches, fmt.Sprintf("ARCHITECTURE.md names %s, but %s declares no %s: follow the code.", name[0], pkg, decl))
			}
		}
		return breaches
	}
}

// section returns what stands under a heading, up to the next one that is not
// below it.
func section(text, heading string) string {
	var lines []string
	level := 0 // of the heading, once found
	for line := range strings.SplitSeq(text, "\n") {
		title := strings.TrimLeft(line, "#")
		switch depth := len(line) - len(title); {
		case level == 0 && depth > 0 && strings.HasSuffix(strings.TrimSpace(title), heading):
			level = depth
		case level > 0 && depth > 0 && depth <= level && strings.HasPrefix(title, " "):
			return strings.Join(lines, "\n")
		case level > 0:
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "\n")
}

// declarations returns the names that the code of a package declares: Func,
// Type, Type.Method, and Type.Field for the fields of structs and the methods
// of interfaces.
func declarations(f folder) []string {
	names := []string{}
	for _, file := range f.code() {
		for _, decl := range file.Decls {
			switch d := decl.(type) {
			case *ast.FuncDecl:
				names = append(names, receiver(d)+d.Name.Name)
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					names = append(names, specNames(spec)...)
				}
			}
		}
	}
	return names
}

// receiver returns the type of a method with a dot after it, or nothing for a
// function.
func receiver(d *ast.FuncDecl) string {
	if d.Recv == nil {
		return ""
	}
	typ := d.Recv.List[0].Type
	for {
		switch t := typ.(type) {
		case *ast.StarExpr:
			typ = t.X
		case *ast.IndexExpr: // a type with a parameter
			typ = t.X
		case *ast.IndexListExpr:
			typ = t.X
		case *ast.Ident:
			return t.Name + "."
		default:
			return "?."
		}
	}
}

func specNames(spec ast.Spec) (names []string) {
	switch s := spec.(type) {
	case *ast.ValueSpec:
		for _, name := range s.Names {
			names = append(names, name.Name)
		}
	case *ast.TypeSpec:
		names = append(names, s.Name.Name)
		var members *ast.FieldList
		switch t := s.Type.(type) {
		case *ast.StructType:
			members = t.Fields
		case *ast.InterfaceType:
			members = t.Methods
		default:
			return names
		}
		for _, member := range members.List {
			for _, name := range member.Names {
				names = append(names, s.Name.Name+"."+name.Name)
			}
		}
	}
	return names
}

func TestThePathOfARequestNamesWhatExists(t *testing.T) {
	text, err := os.ReadFile("../../ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	keeps(t, pathNamesWhatExists(string(text)))
}

func TestThePathOfARequestNamesWhatExistsBites(t *testing.T) {
	sources := files{"internal/sched/a.go": `package sched

type Scheduler[T any] struct{ queue []T }
type Runner interface{ Run() }

func New() {}
func (s *Scheduler[T]) Submit() {}
`}
	cases := []struct {
		name, text, want string
	}{
		{"all exist", "## The path of a request\n`sched.New()`, `sched.Scheduler.Submit`, `sched.Scheduler.queue`, `sched.Runner.Run`, `config.pbtxt`", ""},
		{
			"elsewhere it may dream",
			"# Now\n`sched.Old`\n## 2. The path of a request\n### First\n`sched.New`\n## Later\n`sched.Faster`",
			"",
		},
		{
			"a function is gone", "## The path of a request\n`sched.Start`",
			"ARCHITECTURE.md names `sched.Start`, but sched declares no Start: follow the code.",
		},
		{
			"a method is gone", "## The path of a request\n### First\n`sched.Scheduler.Close`",
			"ARCHITECTURE.md names `sched.Scheduler.Close`, but sched declares no Scheduler.Close: follow the code.",
		},
		{
			"a package is gone", "## The path of a request\n`queue.Push`",
			"ARCHITECTURE.md names `queue.Push`, but no package here is called queue: follow the code, or leave the backticks off what is not ours.",
		},
		{
			"the section is gone", "## The way of a request\n`sched.New`",
			"ARCHITECTURE.md names no code under \"The path of a request\": write there what a request passes, as `package.Type.Method`.",
		},
	}
	for _, c := range cases {
		bites(t, pathNamesWhatExists(c.text), []bite{{c.name, sources, c.want}})
	}
}
