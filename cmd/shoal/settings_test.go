package main

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// serveFlags parses a command line of "shoal serve" and reads its settings.
func serveFlags(environ []string, args ...string) (serveOptions, *settled, error) {
	var opts serveOptions
	flags := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	opts.define(flags)
	if err := flags.Parse(args); err != nil {
		return opts, nil, flagError(err)
	}
	s, err := readSettings(flags, flags.Args(), environ)
	return opts, s, err
}

func (s *settled) named(name string) setting {
	for _, one := range s.settings {
		if one.name == name {
			return one
		}
	}
	return setting{}
}

// settingsFile writes a settings file and returns its path.
func settingsFile(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "shoal.yaml")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestTheFirstSourceThatHasASettingWins(t *testing.T) {
	for _, tt := range []struct {
		flag, environment, file bool
		want                    source
	}{
		{false, false, false, fromDefault},
		{false, false, true, fromFile},
		{false, true, false, fromEnvironment},
		{false, true, true, fromEnvironment},
		{true, false, false, fromFlag},
		{true, false, true, fromFlag},
		{true, true, false, fromFlag},
		{true, true, true, fromFlag},
	} {
		if got := sourceOf(tt.flag, tt.environment, tt.file); got != tt.want {
			t.Errorf("flag %v, environment %v, file %v: taken from %s, want %s", tt.flag, tt.environment, tt.file, got, tt.want)
		}
	}
}

func TestASettingKnowsWhereItComesFrom(t *testing.T) {
	file := settingsFile(t, "# ports\nhttp-port: 1\ngrpc-port: 2\nexit-timeout-secs: 3\nmodel-repository: [one, 'two,three']\nlog-format: json\nexit-on-error: false\n")
	opts, s, err := serveFlags([]string{"SHOAL_HTTP_PORT=10", "SHOAL_GRPC_PORT=20", "SHOAL_LOAD_MODEL=a,b", "SHOAL_ADDRESS=", "HOME=/"},
		"--settings", file, "--http-port", "100", "--compute-nice=0")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []setting{
		{"http-port", "100", fromFlag, "--http-port"},
		{"compute-nice", "0", fromFlag, "--compute-nice"},
		{"grpc-port", "20", fromEnvironment, "SHOAL_GRPC_PORT"},
		{"load-model", "a,b", fromEnvironment, "SHOAL_LOAD_MODEL"},
		{"exit-timeout-secs", "3", fromFile, file + ":4"},
		{"model-repository", "one,two,three", fromFile, file + ":5"},
		{"log-format", "json", fromFile, file + ":6"},
		{"exit-on-error", "false", fromFile, file + ":7"},
		{"address", "127.0.0.1", fromDefault, ""},
		{"log-file", "", fromDefault, ""},
	} {
		if got := s.named(want.name); got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
	if opts.httpPort != 100 || opts.grpcPort != 20 || opts.exitTimeout != 3 || len(opts.loadModels) != 2 || len(opts.repositories) != 2 || opts.exitOnError {
		t.Errorf("the options are %+v", opts)
	}
}

func TestPathsAreRepositoriesOfTheCommandLine(t *testing.T) {
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"a", "b.onnx"}, "a,b.onnx"},
		{[]string{"a", "--model-repository", "b", "c,d"}, "b,a,c,d"},
		{[]string{"--exit-on-error", "false", "a"}, "a"},
		{nil, "variable"},
	} {
		_, s, err := serveFlags([]string{"SHOAL_MODEL_REPOSITORY=variable"}, tt.args...)
		if err != nil {
			t.Errorf("%q: %v", tt.args, err)
		} else if got := s.named("model-repository").value; got != tt.want {
			t.Errorf("%q: repositories are %s, want %s", tt.args, got, tt.want)
		}
	}
}

func TestTheEnvironmentMayNameTheSettingsFile(t *testing.T) {
	file := settingsFile(t, "http-port: 1")
	opts, s, err := serveFlags([]string{"SHOAL_SETTINGS=" + file})
	if err != nil || opts.httpPort != 1 || s.named("settings").source != fromEnvironment {
		t.Errorf("port %d, %+v, %v", opts.httpPort, s, err)
	}
}

func TestAFileOfCommentsSaysNothing(t *testing.T) {
	for _, text := range []string{"", "# http-port: 1\n"} {
		_, s, err := serveFlags(nil, "--settings", settingsFile(t, text))
		if err != nil || s.named("http-port").source != fromDefault {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestAWrongSettingSaysWhereAndWhatWasExpected(t *testing.T) {
	const unknown = `unknown setting; keys are flag names without dashes, see "shoal serve --help"`
	for _, tt := range []struct {
		name    string
		args    []string
		environ string
		file    string
		want    string
	}{
		{"unknown key", nil, "", "http-port: 1\nhtpp-port: 1", "FILE:2: htpp-port: unknown setting; did you mean http-port?"},
		{"settings in settings", nil, "", "settings: a.yaml", "FILE:1: settings: " + unknown},
		{"help", nil, "", "help: true", "FILE:1: help: " + unknown},
		{"text for a number", nil, "", "http-port: many", `FILE:1: http-port: "many" is not valid: expected a whole number`},
		{"a number in quotes", nil, "", "http-port: '1'", `FILE:1: http-port: "1" is not valid: expected a whole number`},
		{"a fraction", nil, "", "http-port: 1.5", `FILE:1: http-port: 1.5 is not valid: expected a whole number`},
		{"too large", nil, "", "http-port: 99999999999999999999", `FILE:1: http-port: 99999999999999999999 is not valid: expected a whole number`},
		{"number for a truth", nil, "", "log-info: 1", "FILE:1: log-info: 1 is not valid: expected true or false"},
		{"number for a text", nil, "", "address: 5", "FILE:1: address: 5 is not valid: expected a string"},
		{"nothing", nil, "", "address:", "FILE:1: address: nothing is not valid: expected a string"},
		{"list", nil, "", "address: [a, b]", "FILE:1: address: a list is not valid: expected a string"},
		{"map in a list", nil, "", "load-model: [a: b]", "FILE:1: load-model: a map is not valid: expected a string, or a list of strings"},
		{"no such choice", nil, "", "model-control-mode: often", `FILE:1: model-control-mode: "often" is not valid: expected one of none, poll, explicit, demand`},
		{"twice", nil, "", "http-port: 1\nhttp-port: 2", "FILE:2: http-port: the key is set twice; the first is at FILE:1"},
		{"no map", nil, "", "- http-port", "FILE:1: found a list; expected flag names with their values, such as http-port: 8000"},
		{"an empty document", nil, "", "---", "FILE:2: found nothing; expected flag names with their values, such as http-port: 8000"},
		{"two documents", nil, "", "http-port: 1\n---\nhttp-port: 2", "FILE: the file has more than one YAML document; expected one"},
		{"two mistakes", nil, "", "http-port: a\ngrpc-port: b", "FILE:1: http-port: \"a\" is not valid: expected a whole number\nFILE:2: grpc-port: \"b\" is not valid: expected a whole number"},
		{"overruled", []string{"--http-port=1"}, "", "http-port: a", `FILE:1: http-port: "a" is not valid: expected a whole number`},
		{"variable", nil, "SHOAL_LOG_INFO=perhaps", "", `SHOAL_LOG_INFO: "perhaps" is not valid: expected true or false`},
		{"flag", []string{"--grpc-port=x"}, "", "", `--grpc-port: "x" is not valid: expected a whole number`},
		{"a path for a truth", []string{"--exit-on-error", "models"}, "", "", `--exit-on-error: "models" is not valid: expected true or false`},
		{"flag without value", []string{"--exit-on-error"}, "", "", "--exit-on-error needs a value: expected true or false"},
		{"choice", []string{"--log-format=xml"}, "", "", `--log-format: "xml" is not valid: expected one of auto, text, json, default, ISO8601`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			file, args := settingsFile(t, tt.file), tt.args
			if tt.file != "" {
				args = append(args, "--settings", file)
			}
			_, _, err := serveFlags([]string{tt.environ}, args...)
			if err == nil {
				t.Fatal("was accepted")
			}
			if strings.ReplaceAll(err.Error(), file, "FILE") != tt.want {
				t.Errorf("got  %v\nwant %s", err, tt.want)
			}
		})
	}
}

// records reads a log in JSON.
func records(t *testing.T, log *bytes.Buffer) (all []map[string]any) {
	t.Helper()
	for line := range strings.Lines(log.String()) {
		var r map[string]any
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatalf("%q is not a record: %v", line, err)
		}
		all = append(all, r)
	}
	return all
}

func TestTheLogBeginsWithEverySetting(t *testing.T) {
	_, s, err := serveFlags([]string{"SHOAL_GRPC_PORT=20"}, "--http-port=0", "models")
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	s.log(t.Context(), slog.New(slog.NewJSONHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug})))
	told := map[string]map[string]any{}
	last := ""
	all := records(t, &out)
	changed := all[len(all)-1]
	from, _ := changed["from"].(map[string]any)
	if changed["msg"] != "settings" || changed["http-port"] != "0" || changed["grpc-port"] != "20" || changed["model-repository"] != "models" || changed["version"] != version ||
		from["grpc-port"] != "SHOAL_GRPC_PORT" || len(from) != 1 || changed["address"] != nil {
		t.Errorf("the settings that are not defaults are logged as %v", changed)
	}
	for _, r := range all[:len(all)-1] {
		name, _ := r["name"].(string)
		if r["msg"] != "setting" || name <= last {
			t.Errorf("%v comes after %s", r, last)
		}
		told[name], last = r, name
	}
	flags := newServeCommand().Flags()
	eachFlag(flags, func(f *pflag.Flag) {
		if _, ok := f.Value.(*foreign); ok != (told[f.Name] == nil) {
			t.Errorf("--%s is told as %v", f.Name, told[f.Name])
		}
	})
	if r := told["grpc-port"]; r["value"] != "20" || r["source"] != "environment" || r["at"] != "SHOAL_GRPC_PORT" {
		t.Errorf("grpc-port is told as %v", r)
	}
	if r := told["address"]; r["value"] != "127.0.0.1" || r["source"] != "default" {
		t.Errorf("address is told as %v", r)
	}
}

func TestVariablesThatAreNoSettingsAreNamedOnce(t *testing.T) {
	_, s, err := serveFlags([]string{"SHOAL_ONNXRUNTIME=/lib/a.so", "SHOAL_PROT=1", "SHOAL_HTPP_PORT=1", "SHOALS=1", "SHOAL_HELP=1"})
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	s.log(t.Context(), newLog(logOptions{warning: true, format: "json"}, &out))
	all := records(t, &out)
	if len(all) != 1 || all[0]["names"] != "SHOAL_HELP SHOAL_HTPP_PORT SHOAL_PROT" {
		t.Errorf("told %v", all)
	}
}
