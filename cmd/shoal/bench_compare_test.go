package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/bench"
)

// measured writes a file as `shoal bench --json` does, with seven repeats of a load.
func measured(t *testing.T, file string, latency time.Duration) {
	t.Helper()
	r := &bench.Report{Model: "m"}
	for range 7 {
		r.Levels = append(r.Levels, bench.Level{Concurrency: 1, Stable: true, Client: bench.Summary{
			Requests: 1, InfersPerSecond: 1 / latency.Seconds(), Mean: latency,
			Percentiles: []bench.Percentile{{Percent: 50, Latency: latency}, {Percent: 95, Latency: latency}, {Percent: 99, Latency: latency}},
		}})
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := writeTo(file, nil, r.WriteJSON); err != nil {
		t.Fatal(err)
	}
}

func TestBenchCompare(t *testing.T) {
	t.Chdir(t.TempDir())
	measured(t, "base-1.json", time.Second)
	measured(t, "base-2.json", time.Second)
	measured(t, "slow-1.json", 2*time.Second)
	measured(t, "slow-2.json", 2*time.Second)
	measured(t, "other/base-1.json", time.Second)
	for file, text := range map[string]string{"text.json": "{", "empty.json": "{}"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		args   string
		out    string
		err    string
		status int
	}{
		{"base-1.json base-2.json slow-1.json slow-2.json", "slow, compared with base: worse in 5 of 5 figures.", "", 0},
		{"base-1.json slow-1.json --fail-if-worse", "throughput", "worse: slow: throughput at Concurrency: 1; slow: mean", 1},
		{"slow-1.json base-1.json --fail-if-worse", "base, compared with slow: better in 5 of 5 figures.", "", 0},
		{"a=base-1.json b=other/base-1.json", "b, compared with a: the same in 5 of 5 figures.", "", 0},
		{"a=base-1.json b=slow-1.json --json -", `"verdict": "worse"`, "", 0},
		{"a=base-1.json b=slow-1.json --html -", "<h1>a and b</h1>", "", 0},
		{"base-1.json other/base-1.json", "", `all files are repeats of "base", and there is nothing to compare it with: name other files, or name the sides, as in before=base-1.json`, 2},
		{"base-1.json nobody.json", "", "nobody.json: no such file", 2},
		{"base-1.json text.json", "", "text.json is not what `shoal bench --json` writes", 2},
		{"--json - --html - base-1.json slow-1.json", "", "--json and --html cannot both write to stdout", 2},
		{"base-1.json empty.json", "", "empty.json has no levels", 2},
	} {
		var out bytes.Buffer
		cmd := newBenchCommand()
		cmd.SetArgs(append([]string{"compare"}, strings.Fields(c.args)...))
		cmd.SetOut(&out)
		cmd.SetErr(&out)
		cmd.SilenceUsage, cmd.SilenceErrors = true, true
		err := cmd.ExecuteContext(t.Context())
		if (err == nil) != (c.err == "") || err != nil && (!strings.Contains(err.Error(), c.err) || exitStatus(err) != c.status) {
			t.Errorf("%s: got %v, want %q", c.args, err, c.err)
		}
		if !strings.Contains(out.String(), c.out) {
			t.Errorf("%s: got %s, want %s", c.args, out.String(), c.out)
		}
		if begin := out.String()[:min(1, out.Len())]; strings.HasSuffix(c.args, " -") && begin != "{" && begin != "<" {
			t.Errorf("%s: there is text before what another program reads", c.args)
		}
	}
}

func TestLabelsComeFromFiles(t *testing.T) {
	for arg, want := range map[string][2]string{
		"base.json":         {"base", "base.json"},
		"runs/base-12.json": {"base", "runs/base-12.json"},
		"v1.json":           {"v1", "v1.json"},
		"-1.json":           {"-1", "-1.json"},
		"new=a-1.json":      {"new", "a-1.json"},
		"k=v/a.json":        {"k", "v/a.json"},
		"dir/k=v.json":      {"k=v", "dir/k=v.json"},
		"=a.json":           {"=a", "=a.json"},
	} {
		if label, file := labelOf(arg); label != want[0] || file != want[1] {
			t.Errorf("%s: got %q, %q", arg, label, file)
		}
	}
}
