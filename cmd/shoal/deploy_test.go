package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
)

// deployFiles are those that start a server somewhere.
func deployFiles(t *testing.T) map[string]string {
	t.Helper()
	files := map[string]string{}
	for _, pattern := range []string{"../../deploy/k*/*.yaml", "../../Containerfile", "../../packaging/deb/*"} {
		names, err := filepath.Glob(pattern)
		if err != nil || len(names) == 0 {
			t.Fatalf("%s: %v, %v", pattern, names, err)
		}
		for _, name := range names {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			files[name] = string(text)
		}
	}
	return files
}

// unknownVariables returns the environment variables in a text that no flag has.
func unknownVariables(flags *pflag.FlagSet, text string) (all []string) {
	for _, name := range regexp.MustCompile(`\bSHOAL_[A-Z_]+\b`).FindAllString(text, -1) {
		if flags.Lookup(strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(name, prefix)), "_", "-")) == nil {
			all = append(all, name)
		}
	}
	return all
}

func allServeFlags() *pflag.FlagSet {
	var opts serveOptions
	flags := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	opts.define(flags)
	return flags
}

func TestDeploymentsUseSettingsThatExist(t *testing.T) {
	found := 0
	for name, text := range deployFiles(t) {
		found += strings.Count(text, "SHOAL_")
		if got := unknownVariables(allServeFlags(), text); got != nil {
			t.Errorf("%s sets %q, and there is no such flag", name, got)
		}
	}
	if found < 10 {
		t.Errorf("found %d settings, want those of the image and of the manifests", found)
	}
	if got := unknownVariables(allServeFlags(), "SHOAL_HTTP_PORT SHOAL_HTTP_PROT"); len(got) != 1 || got[0] != "SHOAL_HTTP_PROT" {
		t.Errorf("found %q in what has a mistake", got)
	}
}

func TestTheSettingsOfTheServiceAreRead(t *testing.T) {
	file := "../../packaging/deb/shoal.yaml"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if lines, err := readLines(file, text, allServeFlags()); err != nil || len(lines) < 4 {
		t.Errorf("read %v, %v", lines, err)
	}
}

// TestPodsHaveTheTimeToStop compares times that must fit each other, and are not together.
func TestPodsHaveTheTimeToStop(t *testing.T) {
	text, err := os.ReadFile("../../deploy/kubernetes/shoal.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var deployment struct {
		Spec struct {
			Template struct {
				Spec struct {
					Grace      int `yaml:"terminationGracePeriodSeconds"`
					Containers []struct {
						Env []struct{ Name, Value string }
					}
				}
			}
		}
	}
	if err := yaml.Unmarshal(text, &deployment); err != nil { // of several documents the first
		t.Fatal(err)
	}
	pod, stop := deployment.Spec.Template.Spec, 0
	for _, e := range pod.Containers[0].Env {
		if e.Name == variable("shutdown-delay") || e.Name == variable("exit-timeout-secs") {
			n, err := strconv.Atoi(e.Value)
			if err != nil {
				t.Error(err)
			}
			stop += n
		}
	}
	if stop == 0 || pod.Grace <= stop {
		t.Errorf("a pod has %d s to stop, and the server may need %d s", pod.Grace, stop)
	}
	unit, err := os.ReadFile("../../packaging/deb/shoal.service")
	if err != nil {
		t.Fatal(err)
	}
	settings, err := os.ReadFile("../../packaging/deb/shoal.yaml")
	if err != nil {
		t.Fatal(err)
	}
	number := func(pattern string, text []byte) int {
		n, err := strconv.Atoi(string(regexp.MustCompile(pattern).FindSubmatch(text)[1]))
		if err != nil {
			t.Error(err)
		}
		return n
	}
	if limit, exit := number(`TimeoutStopSec=(\d+)`, unit), number(`exit-timeout-secs: (\d+)`, settings); limit <= exit {
		t.Errorf("the service has %d s to stop, and the server may need %d s", limit, exit)
	}
}

func TestTheUnitOfACellIsAsStrictAsTheServers(t *testing.T) {
	read := func(name string) string {
		text, err := os.ReadFile("../../packaging/deb/" + name)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	cell := read("shoal-cell.service")
	for line := range strings.Lines(read("shoal.service")) {
		if regexp.MustCompile(`^(Protect|Private|Restrict|SystemCall|Capability|Ambient|NoNew|Lock|Remove|Dynamic|UMask)`).MatchString(line) && !strings.Contains(cell, line) {
			t.Errorf("shoal-cell.service does not have %s", line)
		}
	}
	command := regexp.MustCompile(`ExecStart=/usr/bin/shoal cell .*`).FindString(cell)
	for _, flag := range regexp.MustCompile(`--([a-z-]+)`).FindAllStringSubmatch(command, -1) {
		if newCellCommand().Flags().Lookup(flag[1]) == nil {
			t.Errorf("shoal cell has no flag %s", flag[0])
		}
	}
	if !strings.Contains(command, "--state /var/lib/shoal-cell/") || !strings.Contains(cell, "StateDirectory=shoal-cell\n") {
		t.Errorf("the plan is not kept: %s", command)
	}
}
