package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/shoal-serving/shoal/internal/console"
	"github.com/shoal-serving/shoal/internal/suggest"
)

// topicKey is the annotation of a flag with the heading that help lists it under.
const topicKey = "topic"

// topic puts all flags that were defined since the last call under a heading of the help.
func topic(f *pflag.FlagSet, heading string) {
	f.VisitAll(func(flag *pflag.Flag) {
		if flag.Annotations[topicKey] == nil {
			flag.Annotations = map[string][]string{topicKey: {heading}}
		}
	})
}

// writeHelp writes the help of a command, wrapped to the width of the terminal.
func writeHelp(cmd *cobra.Command, w io.Writer) error {
	h := help{width: console.Width(w), paint: console.PaletteOf(w)}
	h.text(cmp.Or(cmd.Long, cmd.Short))
	h.heading("Usage")
	if cmd.Runnable() {
		h.line("  " + cmd.UseLine())
	}
	if cmd.HasAvailableSubCommands() {
		h.line("  " + cmd.CommandPath() + " COMMAND [flags]")
	}
	h.examples(cmd.Example)
	h.commands(cmd)
	h.flags(cmd)
	if cmd.HasAvailableSubCommands() {
		h.line("")
		h.text(fmt.Sprintf("%q shows the flags of a command.", cmd.CommandPath()+" COMMAND --help"))
	}
	if !cmd.HasParent() {
		h.text("The exit status is 0 if the command succeeded, 1 if it failed, and 2 if its flags or arguments are wrong.")
	}
	_, err := io.WriteString(w, h.out.String())
	return err
}

// A help builds the text of a command's help.
type help struct {
	width int
	paint console.Palette
	out   strings.Builder
}

func (h *help) line(text string) { h.out.WriteString(strings.TrimRight(text, " ") + "\n") }

func (h *help) heading(name string) { h.line("\n" + h.paint.Paint(console.Bold, name+":")) }

// text writes paragraphs, which are separated by empty lines.
func (h *help) text(text string) {
	for i, paragraph := range strings.Split(strings.TrimSpace(text), "\n\n") {
		if i > 0 {
			h.line("")
		}
		for _, line := range console.Wrap("", paragraph, h.width, 0) {
			h.line(line)
		}
	}
}

func (h *help) examples(text string) {
	if text == "" {
		return
	}
	h.heading("Examples")
	h.line(strings.TrimRight(text, "\n"))
}

func (h *help) commands(cmd *cobra.Command) {
	groups := cmd.Groups()
	if len(groups) == 0 {
		groups = []*cobra.Group{{Title: "Commands"}}
	}
	for _, g := range groups {
		var rows [][2]string
		for _, sub := range cmd.Commands() {
			if sub.IsAvailableCommand() && (sub.GroupID == g.ID || g.ID == "") {
				rows = append(rows, [2]string{sub.Name(), sub.Short})
			}
		}
		h.table(g.Title, rows)
	}
}

func (h *help) flags(cmd *cobra.Command) {
	var headings []string
	byHeading := map[string][][2]string{}
	add := func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		heading := "Flags"
		if t := f.Annotations[topicKey]; t != nil {
			heading = t[0]
		}
		if !slices.Contains(headings, heading) {
			headings = append(headings, heading)
		}
		byHeading[heading] = append(byHeading[heading], describeFlag(f))
	}
	cmd.Flags().SortFlags = false // in the order of their definition
	cmd.LocalFlags().VisitAll(add)
	for _, heading := range headings {
		h.table(heading, byHeading[heading])
	}
}

// describeFlag returns a flag with its value, and what it does, with its default.
func describeFlag(f *pflag.Flag) [2]string {
	value, usage := pflag.UnquoteUsage(f)
	name := "    --" + f.Name
	if f.Shorthand != "" {
		name = "-" + f.Shorthand + ", --" + f.Name
	}
	if value != "" {
		name += " " + value
	}
	switch f.DefValue {
	case "", "0", "false", "[]":
	default:
		usage += " (default " + f.DefValue + ")"
	}
	return [2]string{name, usage}
}

// maxNames is the widest column of names. Longer names have a line of their own.
const maxNames = 34

func (h *help) table(heading string, rows [][2]string) {
	if len(rows) == 0 {
		return
	}
	h.heading(heading)
	names := 0
	for _, r := range rows {
		if n := len(r[0]); n <= maxNames {
			names = max(names, n)
		}
	}
	if h.width < console.DefaultWidth {
		names = min(names, 24)
	}
	column := 2 + names + 2
	for _, r := range rows {
		prefix := fmt.Sprintf("  %-*s  ", names, r[0])
		if len(r[0]) > names {
			h.line("  " + r[0])
			prefix = strings.Repeat(" ", column)
		}
		for _, line := range console.Wrap(prefix, r[1], h.width, column) {
			h.line(line)
		}
	}
}

// flagAliases are flags of other programs, and the flags that do the same here.
var flagAliases = map[string][]string{
	"port":        {"http-port", "url"},
	"host":        {"address", "url"},
	"bind":        {"address"},
	"server":      {"url"},
	"repository":  {"model-repository"},
	"model-path":  {"model-repository"},
	"path":        {"model-repository"},
	"config":      {"settings"},
	"config-file": {"settings"},
	"concurrency": {"concurrency-range"},
	"rate":        {"request-rate-range"},
	"watch":       {"reload"},
	"verbose":     {"log-verbose"},
	"log-level":   {"log-verbose"},
	"output":      {"json", "html"},
}

// suggestFlag returns the flag of a command that name is most likely meant to be, or "".
func suggestFlag(flags *pflag.FlagSet, name string) string {
	for _, alias := range flagAliases[name] {
		if flags.Lookup(alias) != nil {
			return alias
		}
	}
	var names []string
	flags.VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			names = append(names, f.Name)
		}
	})
	return suggest.Nearest(name, names)
}

// usageError returns an error about flags as a misuse, with a suggestion for a flag that
// does not exist.
func usageError(cmd *cobra.Command, err error) error {
	bad, ok := errors.AsType[*pflag.NotExistError](err)
	if !ok {
		return misuse{flagError(err)}
	}
	if group := bad.GetSpecifiedShortnames(); group != "" {
		return misuse{fmt.Errorf("unknown flag -%s; %q lists all flags", bad.GetSpecifiedName(), cmd.CommandPath()+" --help")}
	}
	if s := suggestFlag(cmd.Flags(), bad.GetSpecifiedName()); s != "" {
		return misuse{fmt.Errorf("unknown flag --%s; did you mean --%s?", bad.GetSpecifiedName(), s)}
	}
	return misuse{fmt.Errorf("unknown flag --%s; %q lists all flags", bad.GetSpecifiedName(), cmd.CommandPath()+" --help")}
}

// commandAliases are commands of other programs, and the commands that do the same here.
var commandAliases = map[string]string{
	"list": "ls", "models": "ls", "ps": "ls", "status": "health", "ready": "health", "predict": "infer", "run": "infer", "query": "infer",
	"start": "serve", "benchmark": "bench", "perf": "bench", "check": "doctor", "why": "explain",
}

// needsCommand runs a command that only has others: it writes their help, or says that one of them
// does not exist.
func needsCommand(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return unknownCommand(cmd, args[0])
	}
	return writeHelp(cmd, cmd.OutOrStdout())
}

// unknownCommand returns an error for an argument that should be a command.
func unknownCommand(cmd *cobra.Command, name string) error {
	var names []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			names = append(names, c.Name())
		}
	}
	hint := commandAliases[name]
	if hint == "" || cmd.HasParent() {
		hint = suggest.Nearest(name, names)
	}
	if _, err := os.Stat(name); err == nil && !cmd.HasParent() {
		hint = "serve " + name // a path of models
	}
	if hint != "" {
		return misuse{fmt.Errorf("unknown command %q; did you mean \"%s %s\"?", name, cmd.CommandPath(), hint)}
	}
	return misuse{fmt.Errorf("unknown command %q; %q lists all commands", name, cmd.CommandPath()+" --help")}
}

// arguments returns a check that there are between low and high arguments; a high of -1
// means any number. missing says what to do if there are too few.
func arguments(low, high int, missing string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < low:
			return misuse{errors.New(missing)}
		case high >= 0 && len(args) > high:
			return misuse{fmt.Errorf("unexpected argument %q; %q shows the usage", args[high], cmd.CommandPath()+" --help")}
		}
		return nil
	}
}

// exclusive returns an error if more than one of the flags is given.
func exclusive(flags *pflag.FlagSet, names ...string) error {
	var given []string
	for _, name := range names {
		if flags.Changed(name) {
			given = append(given, "--"+name)
		}
	}
	if len(given) < 2 {
		return nil
	}
	return fmt.Errorf("%s cannot be combined with %s", given[0], strings.Join(given[1:], " or "))
}
