package archtest

import (
	"fmt"
	"go/ast"
	"go/token"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// policyList is the variable in the tests of package batching that lists all
// policies.
const policyList = "policies"

// everyPolicyIsAskedAgain checks that each type with a method Decide is in the list
// of the test that asks policies more than once.
func everyPolicyIsAskedAgain(folders []folder) (breaches []string) {
	var listed []string
	for _, f := range folders {
		if f.path == "internal/batching" {
			listed = keysOf(f, policyList)
		}
	}
	for _, f := range folders {
		if slices.Contains(forTests, f.path) {
			continue
		}
		for _, file := range f.code() {
			for _, decl := range file.Decls {
				fn, ok := decl.(*ast.FuncDecl)
				if !ok || fn.Name.Name != "Decide" || fn.Recv == nil {
					continue
				}
				if name := f.name() + "." + strings.TrimSuffix(receiver(fn), "."); !slices.Contains(listed, name) {
					breaches = append(breaches, fmt.Sprintf(
						"%s: %s is a policy that TestAskingAgainChangesNothing does not know: add it to %s in the tests of internal/batching.", f.at(fn), name, policyList))
				}
			}
		}
	}
	return breaches
}

// keysOf returns the string keys of a map that a test file declares.
func keysOf(f folder, variable string) (keys []string) {
	for _, file := range f.files {
		for _, decl := range file.Decls {
			vars, ok := decl.(*ast.GenDecl)
			if !ok || vars.Tok != token.VAR {
				continue
			}
			for _, spec := range vars.Specs {
				spec := spec.(*ast.ValueSpec)
				if spec.Names[0].Name != variable || len(spec.Values) != 1 {
					continue
				}
				ast.Inspect(spec.Values[0], func(n ast.Node) bool {
					if pair, ok := n.(*ast.KeyValueExpr); ok {
						if key, ok := pair.Key.(*ast.BasicLit); ok {
							name, _ := strconv.Unquote(key.Value) // the parser has accepted it
							keys = append(keys, name)
						}
					}
					return true
				})
			}
		}
	}
	return keys
}

func TestEveryPolicyIsAskedAgain(t *testing.T) { keeps(t, everyPolicyIsAskedAgain) }

func TestEveryPolicyIsAskedAgainBites(t *testing.T) {
	const list = `package batching_test; var policies = map[string]func(){"batching.Known": func() {}}`
	bites(t, everyPolicyIsAskedAgain, []bite{
		{"known", files{"internal/batching/a.go": "package batching; func (k *Known) Decide() {}", "internal/batching/a_test.go": list}, ""},
		{"in a test", files{"internal/batching/a_test.go": "package batching; func (k *Other) Decide() {}"}, ""},
		{"for tests", files{"test/matrix/a.go": "package matrix; func (k *Other) Decide() {}"}, ""},
		{
			"unknown",
			files{"internal/batching/a_test.go": list, "internal/batching/greedy/a.go": "package greedy; func (p Policy) Decide() {}"},
			"internal/batching/greedy/a.go:1:17: greedy.Policy is a policy that TestAskingAgainChangesNothing does not know: add it to policies in the tests of internal/batching.",
		},
	})
}
