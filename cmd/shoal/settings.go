package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"github.com/shoal-serving/shoal/internal/engine/onnx/onnxruntime"
)

// Every flag is a setting, which may be given as a flag, in the environment or in a file.
// Only the settings that lead to others are known by name here.
const (
	prefix         = "SHOAL_"
	settingsFlag   = "settings"
	repositoryFlag = "model-repository"
)

// variable returns the name of the environment variable of a flag.
func variable(flag string) string {
	return prefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// A source is where a setting's value comes from.
type source string

const (
	fromFlag        source = "flag"
	fromEnvironment source = "environment"
	fromFile        source = "file"
	fromDefault     source = "default"
)

// sourceOf returns the source that a setting is taken from, given those that have it.
func sourceOf(flag, environment, file bool) source {
	switch {
	case flag:
		return fromFlag
	case environment:
		return fromEnvironment
	case file:
		return fromFile
	}
	return fromDefault
}

// A setting is the value of a flag that is in effect.
type setting struct {
	name, value string
	source      source
	at          string // where it is written, such as models.yaml:3; empty for a default
}

// A line is the entry of a settings file for one flag.
type line struct {
	at   string   // file and line
	text []string // one value, or the entries of a list
}

var errUnfit = errors.New("invalid value")

// settle gives each flag that is not on the command line its value from the
// environment or from the lines of a file, and returns all settings by name.
func settle(flags *pflag.FlagSet, environment map[string]string, file map[string]line) ([]setting, error) {
	var all []setting
	var errs []error
	eachFlag(flags, func(f *pflag.Flag) {
		env, inEnv := environment[variable(f.Name)]
		written, inFile := file[f.Name]
		s := setting{name: f.Name, source: sourceOf(f.Changed, inEnv, inFile)}
		switch s.source {
		case fromFlag:
			s.at = "--" + f.Name
		case fromEnvironment:
			s.at = variable(f.Name)
			if f.Value.Set(env) != nil {
				errs = append(errs, unfit(s.at, f, env))
			}
		case fromFile:
			s.at = written.at
			if set(f.Value, written.text) != nil {
				errs = append(errs, unfit(s.at+": "+f.Name, f, strings.Join(written.text, ",")))
			}
		case fromDefault:
		}
		s.value = textOf(f.Value)
		all = append(all, s)
	})
	return all, errors.Join(errs...)
}

// eachFlag calls do with each flag that is a setting, by name.
func eachFlag(flags *pflag.FlagSet, do func(*pflag.Flag)) {
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Name != "help" {
			do(f)
		}
	})
}

// textOf returns a value as it would be written behind a flag.
func textOf(v pflag.Value) string {
	if list, ok := v.(pflag.SliceValue); ok {
		return strings.Join(list.GetSlice(), ",")
	}
	return v.String()
}

// set takes entries of a list as they are: given as a flag they would be split at
// commas.
func set(v pflag.Value, text []string) error {
	if list, ok := v.(pflag.SliceValue); ok {
		return list.Replace(text)
	}
	return v.Set(text[0])
}

func unfit(where string, f *pflag.Flag, found string) error {
	return fmt.Errorf("%s: %q is not valid: expected %s", where, found, expects(f.Value))
}

// expects describes the values of a flag.
func expects(v pflag.Value) string {
	switch v := v.(type) {
	case *choice:
		return "one of " + strings.Join(v.of, ", ")
	case *roleFlag:
		return "one of " + strings.ReplaceAll(v.Type(), "|", ", ")
	}
	switch v.Type() {
	case "bool", "true|false":
		return "true or false"
	case "int", "int64":
		return "a whole number"
	case "uint", "uint64":
		return "a whole number that is not negative"
	case "uintSlice":
		return "whole numbers that are not negative, such as 1,10,50,100"
	case "float64":
		return "a number"
	case "duration":
		return "a time with its unit, such as 500ms, 10s or 1h"
	case "stringToString":
		return "KEY=VALUE"
	case "size":
		return "a number of bytes, such as 16GiB"
	case "regexp":
		return "a regular expression, such as ^x-"
	}
	if _, ok := v.(pflag.SliceValue); ok {
		return "a string, or a list of strings"
	}
	return "a string"
}

// flagError describes what is wrong with a flag as what is wrong with a setting.
func flagError(err error) error {
	if bad, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		return unfit("--"+bad.GetFlag().Name, bad.GetFlag(), bad.GetValue())
	}
	if bad, ok := errors.AsType[*pflag.ValueRequiredError](err); ok {
		return fmt.Errorf("--%s needs a value: expected %s", bad.GetFlag().Name, expects(bad.GetFlag().Value))
	}
	return err
}

// readLines reads the text of a settings file for flags. It continues after a mistake, so
// that the error reports all of them.
func readLines(file string, text []byte, flags *pflag.FlagSet) (map[string]line, error) {
	dec := yaml.NewDecoder(bytes.NewReader(text))
	var doc, more yaml.Node
	if err := dec.Decode(&doc); errors.Is(err, io.EOF) {
		return nil, nil // all of it may be comments
	} else if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if err := dec.Decode(&more); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: the file has more than one YAML document; expected one", file)
	}
	root := doc.Content[0]
	if root.Kind != yaml.MappingNode {
		return nil, fmt.Errorf("%s:%d: found %s; expected flag names with their values, such as http-port: 8000", file, root.Line, describe(root))
	}
	lines := map[string]line{}
	var errs []error
	for i := 0; i < len(root.Content); i += 2 {
		key, value := root.Content[i], root.Content[i+1]
		at := fmt.Sprintf("%s:%d", file, key.Line)
		values, err := readValue(flags.Lookup(key.Value), value)
		if name := suggestFlag(flags, key.Value); errors.Is(err, errUnknownKey) && name != "" && name != settingsFlag {
			err = fmt.Errorf("unknown setting; did you mean %s?", name)
		}
		switch first, twice := lines[key.Value]; {
		case err != nil:
			errs = append(errs, fmt.Errorf("%s: %s: %w", at, key.Value, err))
		case twice:
			errs = append(errs, fmt.Errorf("%s: %s: the key is set twice; the first is at %s", at, key.Value, first.at))
		default:
			lines[key.Value] = line{at, values}
		}
	}
	return lines, errors.Join(errs...)
}

var errUnknownKey = errors.New(`unknown setting; keys are flag names without dashes, see "shoal serve --help"`)

// readValue returns the text of a value that fits the type of its flag.
func readValue(f *pflag.Flag, n *yaml.Node) ([]string, error) {
	if f == nil || f.Name == settingsFlag || f.Name == "help" {
		return nil, errUnknownKey
	}
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	entries := []*yaml.Node{n}
	if _, ok := f.Value.(pflag.SliceValue); ok && n.Kind == yaml.SequenceNode {
		entries = n.Content
	}
	values := []string{}
	for _, entry := range entries {
		if !fits(f.Value, entry) {
			return nil, fmt.Errorf("%s is not valid: expected %s", describe(entry), expects(f.Value))
		}
		values = append(values, entry.Value)
	}
	return values, nil
}

func fits(v pflag.Value, n *yaml.Node) bool {
	if n.Kind != yaml.ScalarNode || n.Tag == "!!null" {
		return false
	}
	if _, ok := v.(*foreign); ok {
		return true
	}
	switch v.Type() {
	case "bool", "true|false":
		return n.Tag == "!!bool"
	case "int", "int64":
		return n.Tag == "!!int"
	case "size":
		return n.Tag == "!!int" || n.Tag == "!!str"
	}
	return n.Tag == "!!str"
}

// describe describes a value of a settings file.
func describe(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.MappingNode:
		return "a map"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case n.Tag == "!!null":
		return "nothing"
	case n.Tag == "!!str":
		return fmt.Sprintf("%q", n.Value)
	}
	return n.Value
}

// settled are the settings of all sources.
type settled struct {
	settings []setting
	unknown  []string // environment variables that look like settings, but are not
}

// readSettings reads all sources of the settings for flags that have been parsed. paths are
// the positional arguments, which mean the same as --model-repository.
func readSettings(flags *pflag.FlagSet, paths, environ []string) (*settled, error) {
	repositories := flags.Lookup(repositoryFlag)
	for _, path := range paths {
		if err := repositories.Value.(pflag.SliceValue).Append(path); err != nil {
			return nil, err
		}
		repositories.Changed = true
	}
	environment, unknown := readEnvironment(flags, environ)
	file, err := readFile(flags, environment)
	if err != nil {
		return nil, err
	}
	settings, err := settle(flags, environment, file)
	if err != nil {
		return nil, err
	}
	return &settled{settings, unknown}, checkForeign(settings)
}

// readEnvironment returns the variables that are settings, and the names of those
// that look as if they were meant to be. An empty variable counts as unset.
func readEnvironment(flags *pflag.FlagSet, environ []string) (environment map[string]string, unknown []string) {
	known := []string{onnxruntime.Variable, "SHOAL_BINARY", tokenVariable} // for the Python package and for clients
	eachFlag(flags, func(f *pflag.Flag) { known = append(known, variable(f.Name)) })
	environment = map[string]string{}
	for _, entry := range environ {
		name, value, _ := strings.Cut(entry, "=")
		switch {
		case !strings.HasPrefix(name, prefix) || value == "":
		case slices.Contains(known, name):
			environment[name] = value
		default:
			unknown = append(unknown, name)
		}
	}
	slices.Sort(unknown)
	return environment, unknown
}

func readFile(flags *pflag.FlagSet, environment map[string]string) (map[string]line, error) {
	f := flags.Lookup(settingsFlag)
	file := f.Value.String()
	if !f.Changed {
		file = environment[variable(settingsFlag)]
	}
	if file == "" {
		return nil, nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("settings: %w", err)
	}
	return readLines(file, text, flags)
}

// log logs the settings that are not defaults in one record, and every setting in a record
// of its own for debugging. It warns of settings that have no effect.
func (s *settled) log(ctx context.Context, log *slog.Logger) {
	changed := []slog.Attr{slog.String("version", version)}
	var from []any
	for _, one := range s.settings {
		rule := tritonFlags[one.name]
		foreign := rule.kind == ignored || rule.kind == rejected
		if foreign && one.source == fromDefault {
			continue
		}
		attrs := []slog.Attr{slog.String("name", one.name), slog.String("value", one.value), slog.String("source", string(one.source))}
		if one.source == fromEnvironment || one.source == fromFile {
			attrs = append(attrs, slog.String("at", one.at))
			from = append(from, slog.String(one.name, one.at))
		}
		log.LogAttrs(ctx, slog.LevelDebug, "setting", attrs...)
		if one.source != fromDefault {
			changed = append(changed, slog.String(one.name, one.value))
		}
		if rule.kind == ignored {
			log.Warn("setting has no effect", "name", one.name, "reason", rule.says)
		}
	}
	if len(from) > 0 {
		changed = append(changed, slog.Group("from", from...))
	}
	log.LogAttrs(ctx, slog.LevelInfo, "settings", changed...)
	if len(s.unknown) > 0 {
		log.Warn("unknown environment variables", "names", strings.Join(s.unknown, " "),
			"expected", prefix+`… with the name of a flag; "shoal serve --help" lists them`)
	}
}
