package main

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/shoal-serving/shoal/internal/reference"
)

func TestTheReferenceOfFlagsIsCurrent(t *testing.T) {
	var topics []string
	byTopic := map[string]string{}
	var ignoredFlags, rejectedFlags []string
	flags := newServeCommand().Flags()
	flags.SortFlags = false
	eachFlag(flags, func(f *pflag.Flag) {
		r := tritonFlags[f.Name]
		switch r.kind {
		case ignored:
			ignoredFlags = append(ignoredFlags, reference.Item("`--"+f.Name+"`", r.says))
			return
		case rejected:
			rejectedFlags = append(rejectedFlags, reference.Item("`--"+f.Name+"`", r.says))
			return
		}
		heading := f.Annotations[topicKey][0]
		if byTopic[heading] == "" {
			topics = append(topics, heading)
		}
		_, usage := pflag.UnquoteUsage(f)
		if usage == "" {
			t.Errorf("--%s has no usage", f.Name)
		}
		term := "`--" + f.Name + "`"
		if r.kind == supported {
			term += " †"
		}
		if value := strings.Trim(f.DefValue, "[]"); value != "" {
			usage += fmt.Sprintf(" (default `%s`)", value)
		}
		byTopic[heading] += reference.Item(term, usage)
	})
	var out strings.Builder
	for _, heading := range topics {
		fmt.Fprintf(&out, "### %s\n\n%s\n", heading, byTopic[heading])
	}
	slices.Sort(ignoredFlags)
	slices.Sort(rejectedFlags)
	fmt.Fprintf(&out, "### Triton's flags without effect\n\nThe server starts, and logs a warning.\n\n%s\n", strings.Join(ignoredFlags, ""))
	fmt.Fprintf(&out, "### Triton's flags that are rejected\n\nThe server does not start, because ignoring the flag would change what it does.\n"+
		"A rejected flag at its default, such as `--grpc-use-ssl=false`, is accepted.\n\n%s", strings.Join(rejectedFlags, ""))
	reference.Section(t, "flags.md", "flags", out.String())
}

func TestTheReferenceOfCommandsIsCurrent(t *testing.T) {
	t.Setenv("COLUMNS", "96")
	var out strings.Builder
	var add func(cmd *cobra.Command)
	add = func(cmd *cobra.Command) {
		for _, sub := range cmd.Commands() {
			if !sub.IsAvailableCommand() || sub.Name() == "help" || sub.Name() == "completion" {
				continue
			}
			var help string
			if sub.Name() != "serve" {
				var text strings.Builder
				if err := writeHelp(sub, &text); err != nil {
					t.Fatal(err)
				}
				help = "```text\n" + strings.TrimSpace(text.String()) + "\n```\n"
			} else {
				help = reference.Paragraphs(sub.Long) + "```text\n" + sub.Example + "\n```\n\nIts flags are in [Flags and settings](flags.md).\n"
			}
			fmt.Fprintf(&out, "### %s\n\n%s.\n\n%s\n", sub.CommandPath(), sub.Short, help)
			add(sub)
		}
	}
	add(newRootCommand())
	reference.Section(t, "cli.md", "commands", out.String())
}

// TestTheReferenceOfTheLogIsCurrent lists every record that the server logs with a constant
// message, from the source.
func TestTheReferenceOfTheLogIsCurrent(t *testing.T) {
	records := map[string]map[string]bool{} // by message and level: the keys
	for _, top := range []string{".", "../../internal"} {
		err := filepath.WalkDir(top, func(path string, _ os.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err == nil {
				for _, decl := range file.Decls {
					addRecords(records, decl)
				}
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if len(records) < 20 {
		t.Fatalf("found only %d records: has the way to log changed?", len(records))
	}
	var out strings.Builder
	for _, record := range slices.Sorted(maps.Keys(records)) {
		keys := slices.Sorted(maps.Keys(records[record]))
		for i := range keys {
			keys[i] = "`" + keys[i] + "`"
		}
		message, level, _ := strings.Cut(record, "\x00")
		out.WriteString(reference.Item(fmt.Sprintf("`%s` (%s)", message, level), cmp.Or(strings.Join(keys, ", "), "no fields")))
	}
	reference.Section(t, "log.md", "records", out.String())
}

// addRecords adds the records that a function writes with calls such as
// log.Info("model loaded", "model", name) and log.LogAttrs(ctx, level, "setting", attrs...).
func addRecords(records map[string]map[string]bool, function ast.Node) {
	assigned := map[string][]ast.Expr{} // by variable: what it or its elements may be
	ast.Inspect(function, func(n ast.Node) bool {
		if a, ok := n.(*ast.AssignStmt); ok && len(a.Lhs) == len(a.Rhs) {
			for i, variable := range a.Lhs {
				assigned[lastName(variable)] = append(assigned[lastName(variable)], a.Rhs[i])
			}
		}
		return true
	})
	ast.Inspect(function, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		level, args := logged(call)
		if len(args) == 0 {
			return true
		}
		message, ok := stringLiteral(args[0])
		if !ok {
			return true
		}
		record := message + "\x00" + level
		if records[record] == nil {
			records[record] = map[string]bool{}
		}
		addKeys(records[record], args[1:], assigned)
		return true
	})
}

// logged returns the level of the record that a call writes, and its message and attributes.
// They are empty if it is no such call.
func logged(call *ast.CallExpr) (level string, args []ast.Expr) {
	method, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || slices.Contains([]string{"t", "http", "status"}, lastName(method.X)) { // which have an Error, too
		return "", nil
	}
	level, args = strings.TrimSuffix(method.Sel.Name, "Context"), call.Args
	switch {
	case level == "LogAttrs" && len(args) > 2:
		level, args = strings.TrimPrefix(lastName(args[1]), "Level"), args[2:]
	case level != method.Sel.Name && len(args) > 0:
		args = args[1:]
	}
	if !slices.Contains([]string{"Debug", "Info", "Warn", "Error"}, level) {
		return "", nil
	}
	return strings.ToUpper(level), args
}

// addKeys adds the keys of attributes, which are either keys and values in turn, or calls such as
// slog.String(key, value). Of a variable, and of append, those of all that it may have.
func addKeys(keys map[string]bool, attrs []ast.Expr, assigned map[string][]ast.Expr) {
	for i := 0; i < len(attrs); i++ {
		switch x := attrs[i].(type) {
		case *ast.BasicLit:
			if key, ok := stringLiteral(x); ok {
				keys[key] = true
			}
			i++ // its value
		case *ast.CompositeLit:
			addKeys(keys, x.Elts, assigned)
		case *ast.CallExpr:
			if lastName(x.Fun) == "append" {
				addKeys(keys, x.Args, assigned)
			} else if len(x.Args) > 0 {
				if key, ok := stringLiteral(x.Args[0]); ok {
					keys[key] = true
				}
			}
		case *ast.Ident:
			all := assigned[x.Name]
			delete(assigned, x.Name) // it is in its own append
			addKeys(keys, all, assigned)
			assigned[x.Name] = all
		}
	}
}

func lastName(x ast.Expr) string {
	switch x := x.(type) {
	case *ast.Ident:
		return x.Name
	case *ast.SelectorExpr:
		return x.Sel.Name
	}
	return ""
}

func stringLiteral(x ast.Expr) (string, bool) {
	lit, ok := x.(*ast.BasicLit)
	if !ok || lit.Kind != token.STRING {
		return "", false
	}
	s, err := strconv.Unquote(lit.Value)
	return s, err == nil
}
