package archtest

import (
	"fmt"
	"go/ast"
	"maps"
	"slices"
	"strings"
	"testing"
)

// contexts lists the types that implement context.Context. Each has a test that calls
// contexttest.Check: package context panics, and with it the server, if a context that
// has ended is ever without an error.
var contexts = []string{"internal/contexttest.held", "internal/kserve/kservegrpc.earlyDeadline"}

// contextsAreKnown finds types that embed a context, or that have its methods.
func contextsAreKnown(folders []folder) (breaches []string) {
	for _, f := range folders {
		found := map[string]ast.Node{}
		methods := map[string]int{}
		for _, file := range f.code() {
			ast.Inspect(file.File, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.TypeSpec:
					if s, ok := n.Type.(*ast.StructType); ok && embedsContext(s) {
						found[n.Name.Name] = n
					}
				case *ast.FuncDecl:
					if n.Recv != nil && slices.Contains([]string{"Deadline", "Done", "Err", "Value"}, n.Name.Name) {
						of := strings.TrimSuffix(receiver(n), ".")
						if methods[of]++; methods[of] == 4 {
							found[of] = n
						}
					}
				}
				return true
			})
		}
		for _, name := range slices.Sorted(maps.Keys(found)) {
			if !slices.Contains(contexts, f.path+"."+name) {
				breaches = append(breaches, fmt.Sprintf(
					"%s: %s.%s is a context: derive one with package context instead, or test it with contexttest.Check and name it in internal/archtest.",
					f.at(found[name]), f.path, name))
			}
		}
	}
	return breaches
}

func embedsContext(s *ast.StructType) bool {
	return slices.ContainsFunc(s.Fields.List, func(field *ast.Field) bool {
		of, ok := field.Type.(*ast.SelectorExpr)
		if !ok || len(field.Names) > 0 || of.Sel.Name != "Context" {
			return false
		}
		pkg, ok := of.X.(*ast.Ident)
		return ok && pkg.Name == "context"
	})
}

func TestContextsAreKnown(t *testing.T) { keeps(t, contextsAreKnown) }

func TestContextsAreKnownBites(t *testing.T) {
	bites(t, contextsAreKnown, []bite{
		{"a context in a field", files{"a/a.go": "package a\ntype b struct { ctx context.Context }"}, ""},
		{
			"embedded",
			files{"a/a.go": "package a\ntype b struct { context.Context }"},
			"a/a.go:2:6: a.b is a context: derive one with package context instead, or test it with contexttest.Check and name it in internal/archtest.",
		},
		{
			"written out",
			files{"a/a.go": "package a\nfunc (*b) Deadline() {}\nfunc (*b) Done() {}\nfunc (*b) Err() {}\nfunc (*b) Value() {}"},
			"a/a.go:5:1: a.b is a context: derive one with package context instead, or test it with contexttest.Check and name it in internal/archtest.",
		},
	})
}
