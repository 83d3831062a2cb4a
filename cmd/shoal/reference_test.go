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
			if sub.Flags().Lookup("model-repository") == nil || sub.Name() == "doctor" {
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
				ast.Inspect(file, func(n ast.Node) bool {
					if call, ok := n.(*ast.CallExpr); ok {
						addRecord(records, call)
					}
					return true
				})
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

// addRecord adds the record that a call such as log.Info("model loaded", "model", name) writes.
func addRecord(records map[string]map[string]bool, call *ast.CallExpr) {
	method, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || !strings.HasSuffix(strings.ToLower(lastName(method.X)), "log") {
		return
	}
	level, args := strings.TrimSuffix(method.Sel.Name, "Context"), call.Args
	if level != method.Sel.Name && len(args) > 0 {
		args = args[1:]
	}
	if !slices.Contains([]string{"Debug", "Info", "Warn", "Error"}, level) || len(args) == 0 {
		return
	}
	message, ok := stringLiteral(args[0])
	if !ok {
		return
	}
	record := message + "\x00" + strings.ToUpper(level)
	if records[record] == nil {
		records[record] = map[string]bool{}
	}
	for i := 1; i < len(args); i += 2 {
		if key, ok := stringLiteral(args[i]); ok {
			records[record][key] = true
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
