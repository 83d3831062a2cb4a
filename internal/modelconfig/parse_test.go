package modelconfig_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/leak"
	"github.com/shoal-serving/shoal/internal/modelconfig"
	"github.com/shoal-serving/shoal/internal/plainjson"
	"github.com/shoal-serving/shoal/internal/script"
	"github.com/shoal-serving/shoal/tensor"
)

func TestMain(m *testing.M) { leak.Main(m) }

// Each block of the script is the text of a configuration and its result.
func TestConfigurationsAreReadOrRefusedWithAReason(t *testing.T) {
	for _, file := range []string{"testdata/parse.txt", "testdata/ragged.txt", "testdata/ensemble.txt"} {
		script.Run(t, file, func(*testing.T) func([]string) string {
			return func(lines []string) string {
				c, err := modelconfig.Parse("config.pbtxt", []byte(strings.Join(lines, "\n")))
				if err != nil {
					return fmt.Sprintf("%v: %v", infer.CodeOf(err), err)
				}
				return describe(c)
			}
		})
	}
}

// describe prints settings that are not zero, one per line.
func describe(c *modelconfig.Config) string {
	var out strings.Builder
	say := func(name string, value any) {
		if s := fmt.Sprint(value); s != "" && s != "0" && s != "false" && s != "[]" && s != "0s" {
			fmt.Fprintf(&out, "%s %s\n", name, s)
		}
	}
	say("name", c.Name)
	say("backend", c.Backend)
	say("max batch", c.MaxBatchSize)
	say("objective", c.Objective)
	for _, in := range c.Inputs {
		say("input", tensorText(in))
	}
	for _, o := range c.Outputs {
		say("output", tensorText(o))
	}
	for _, b := range c.BatchInputs {
		say("batch input", fmt.Sprintf("%s %v kind %d of %s", b.Name, b.Type, b.Kind, c.Inputs[b.Source].Name))
	}
	for _, b := range c.BatchOutputs {
		say("batch output", fmt.Sprintf("%s %v by %s", c.Outputs[b.Output].Name, b.Dims, c.Inputs[b.Source].Name))
	}
	say("instances", c.Instances)
	for _, key := range slices.Sorted(maps.Keys(c.Parameters)) {
		say("parameter", fmt.Sprintf("%s=%s", key, c.Parameters[key]))
	}
	say("latest versions", c.VersionPolicy.Latest)
	say("all versions", c.VersionPolicy.All)
	say("versions", c.VersionPolicy.Specific)
	if d := c.Dynamic; d != nil {
		out.WriteString("dynamic\n")
		say("  preferred", d.Preferred)
		if d.MaxDelay != nil {
			fmt.Fprintf(&out, "  max delay %v\n", *d.MaxDelay)
		}
		say("  preserve ordering", d.PreserveOrdering)
		say("  levels", d.Levels)
		say("  default level", d.DefaultLevel)
		say("  default", policyText(d.Default))
		for _, level := range slices.Sorted(maps.Keys(d.PerLevel)) {
			fmt.Fprintf(&out, "  level %d: %s\n", level, policyText(d.PerLevel[level]))
		}
	}
	for _, s := range c.Steps {
		say("step", fmt.Sprintf("%s version %d, inputs %v, outputs %v", s.Model, s.Version, s.Inputs, s.Outputs))
	}
	for _, f := range c.Findings() {
		fmt.Fprintf(&out, "%v: %v\n", f.Kind, f)
	}
	return out.String()
}

func tensorText(t modelconfig.Tensor) string {
	text := fmt.Sprintf("%s %v %v", t.Name, t.Type, t.Dims)
	if t.Reshape != nil {
		text += fmt.Sprintf(" as %v", t.Reshape)
	}
	if t.Ragged {
		text += " ragged"
	}
	if t.Optional {
		text += " optional"
	}
	return text
}

func policyText(q modelconfig.QueuePolicy) string {
	if q == (modelconfig.QueuePolicy{}) {
		return ""
	}
	action := map[modelconfig.Action]string{modelconfig.Reject: "reject", modelconfig.Delay: "delay"}[q.Action]
	most := "no word of how many"
	if q.MaxSize != nil {
		most = fmt.Sprintf("at most %d", *q.MaxSize)
	}
	return fmt.Sprintf("%s after %v, override %t, %s", action, q.Timeout, q.AllowOverride, most)
}

func TestADelayOfZeroIsNotTheSameAsNone(t *testing.T) {
	for text, want := range map[string]*time.Duration{
		"dynamic_batching { }":                                     nil,
		"dynamic_batching { max_queue_delay_microseconds: 0 }":     new(time.Duration(0)),
		"dynamic_batching { max_queue_delay_microseconds: 15000 }": new(15 * time.Millisecond),
	} {
		c, err := modelconfig.Parse("f", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		got := c.Dynamic.MaxDelay
		if (got == nil) != (want == nil) || got != nil && *got != *want {
			t.Errorf("%s: delay %v, want %v", text, got, want)
		}
	}
}

// The parser's error messages are not stable.
func TestErrorsOfTheTextFormatNameTheLine(t *testing.T) {
	_, err := modelconfig.Parse(filepath.Join("models", "a", "config.pbtxt"), []byte("name: \"a\"\n\nensemble { }\n"))
	if want := "models/a/config.pbtxt:3:1: ensemble: unknown field"; err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("error %v, want one that starts with %q", err, want)
	}
}

func FuzzParse(f *testing.F) {
	text, err := os.ReadFile("testdata/parse.txt")
	if err != nil {
		f.Fatal(err)
	}
	for block := range strings.SplitSeq(string(text), "\n----\n") {
		f.Add([]byte(block))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := modelconfig.Parse("f", text)
		if err != nil {
			if infer.CodeOf(err) != infer.Invalid {
				t.Fatalf("code %v: %v", infer.CodeOf(err), err)
			}
			return
		}
		for _, in := range slices.Concat(c.Inputs, c.Outputs) {
			if in.Name == "" || in.Type.Size() == 0 && in.Type != tensor.Bytes || len(in.Dims) == 0 {
				t.Fatalf("accepted %+v", in)
			}
		}
		if text := plainjson.Append(nil, c.Effective()); !json.Valid(text) {
			t.Fatalf("not JSON: %s", text)
		}
		if d := c.Dynamic; d != nil && d.Levels > 0 && (d.DefaultLevel < 1 || d.DefaultLevel > d.Levels) {
			t.Fatalf("accepted default level %d of %d", d.DefaultLevel, d.Levels)
		}
	})
}

func TestWhatTheFileHasIsFoundInIt(t *testing.T) {
	c, err := modelconfig.Parse("config.pbtxt", []byte("name: \"a\"\n\ndynamic_batching { }\nparameters { key: \"k\" value { string_value: \"v\" } }"))
	if err != nil {
		t.Fatal(err)
	}
	for field, want := range map[string]string{
		"dynamic_batching": "config.pbtxt:3", "parameters[k]": "config.pbtxt:4",
		"max_batch_size": "", "dynamic_batching.preferred_batch_size": "", "parameters[l]": "",
	} {
		if got := c.Where(field); got != want {
			t.Errorf("%s is at %q, want %q", field, got, want)
		}
	}
	sent, err := modelconfig.ParseJSON([]byte(`{"name":"a","max_batch_size":4}`))
	if err != nil {
		t.Fatal(err)
	}
	if got := sent.Where("max_batch_size"); got != "" {
		t.Errorf("without a file it is at %q", got)
	}
}
