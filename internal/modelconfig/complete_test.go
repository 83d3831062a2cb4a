package modelconfig_test

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/modelconfig"
	"github.com/shoal-serving/shoal/internal/script"
	"github.com/shoal-serving/shoal/tensor"
)

// A block that starts with "model" describes a model: whether it can be batched, the
// default of its engine, and one line for each input and output. Other blocks are
// configurations, which the model completes; "bare" is an empty one.
func TestConfigurationsAreCompletedFromTheModel(t *testing.T) {
	script.Run(t, "testdata/complete.txt", func(t *testing.T) func([]string) string {
		var model modelconfig.Description
		return func(lines []string) string {
			file, text := "config.pbtxt", strings.Join(lines, "\n")
			switch f := strings.Fields(lines[0]); f[0] {
			case "model":
				model = describeModel(t, f[1:], lines[1:])
				return ""
			case "bare":
				file, text = "", `name: "`+f[1]+`"`
			}
			c, err := modelconfig.Parse(file, []byte(text))
			if err != nil {
				t.Fatalf("%s: %v", text, err)
			}
			if err := c.Complete(model); err != nil {
				return fmt.Sprintf("%v: %v", infer.CodeOf(err), err)
			}
			if err := c.Complete(model); err != nil {
				t.Errorf("completed, and then rejected: %v", err)
			}
			return describe(c)
		}
	})
}

func describeModel(t *testing.T, settings, tensors []string) (m modelconfig.Description) {
	for _, s := range settings {
		switch name, value, _ := strings.Cut(s, "="); name {
		case "batchable":
			m.Batchable = true
		case "max":
			var err error
			if m.MaxBatch, err = strconv.Atoi(value); err != nil {
				t.Fatal(err)
			}
		default:
			t.Fatalf("what is %s?", s)
		}
	}
	for _, line := range tensors {
		f := strings.Fields(line)
		one := modelconfig.Port{Name: f[1]}
		var known bool
		if one.Type, known = tensor.ParseType(f[2]); !known {
			one.Kind = f[2]
		}
		if one.AnyShape = f[3] == "any"; !one.AnyShape {
			if err := json.Unmarshal([]byte(f[3]), &one.Dims); err != nil {
				t.Fatalf("%s: %v", line, err)
			}
		}
		one.Optional = len(f) > 4 && f[4] == "optional"
		if f[0] == "input" {
			m.Inputs = append(m.Inputs, one)
		} else {
			m.Outputs = append(m.Outputs, one)
		}
	}
	return m
}

func TestCompletingLeavesTheModelsDimensionsAlone(t *testing.T) {
	model := modelconfig.Description{
		Batchable: true,
		Inputs:    []modelconfig.Port{{Name: "X", Type: tensor.FP32, Dims: []int64{-1, 3}}},
	}
	c := parse(t, "")
	if err := c.Complete(model); err != nil {
		t.Fatal(err)
	}
	c.Inputs[0].Dims[0] = 7
	if got := model.Inputs[0].Dims[1]; got != 3 {
		t.Errorf("the model's dimension became %d", got)
	}
}

func TestAModelThatIsMeasuredOrWhoseRowsSeeEachOther(t *testing.T) {
	port := []modelconfig.Port{{Name: "X", Type: tensor.FP32, Dims: []int64{-1, 3}}}
	for _, tt := range []struct {
		file      string
		automatic bool
		apart     string
		most      int
		dynamic   bool
	}{
		{"", false, "", modelconfig.DefaultMaxBatch, true},
		{"", true, "", modelconfig.AutomaticMaxBatch, true},
		{"", true, "rows differ", 0, false},
		{"max_batch_size: 8", true, "", 8, true},
		{"max_batch_size: 8", true, "rows differ", 8, false},
	} {
		c := parse(t, tt.file)
		c.Automatic, c.CombineUnsafeReason = tt.automatic, tt.apart
		if err := c.Complete(modelconfig.Description{Batchable: true, Inputs: port, Outputs: port}); err != nil {
			t.Fatal(err)
		}
		if c.MaxBatchSize != tt.most || (c.Dynamic != nil) != tt.dynamic || tt.dynamic && !c.Dynamic.Added {
			t.Errorf("%+v: max_batch_size %d, dynamic %+v", tt, c.MaxBatchSize, c.Dynamic)
		}
	}
}

func TestDefaultsOfABackendApplyWhereTheFileIsSilent(t *testing.T) {
	c, err := modelconfig.Parse("config.pbtxt", []byte(`parameters { key: "a" value { string_value: "file" } }`))
	if err != nil {
		t.Fatal(err)
	}
	modelconfig.Defaults{MaxBatch: 16, Parameters: map[string]string{"a": "flag", "b": "flag"}}.Apply(c)
	c.Automatic = true
	port := modelconfig.Port{Name: "x", Type: tensor.FP32, Dims: []int64{-1, 2}}
	if err := c.Complete(modelconfig.Description{Inputs: []modelconfig.Port{port}, Outputs: []modelconfig.Port{port}, Batchable: true}); err != nil {
		t.Fatal(err)
	}
	if c.MaxBatchSize != 16 || c.Parameters["a"] != "file" || c.Parameters["b"] != "flag" {
		t.Errorf("max_batch_size %d, parameters %v", c.MaxBatchSize, c.Parameters)
	}
}

func TestTheSequencesOfAModelThatSetsItsBatchSizeAreBounded(t *testing.T) {
	for size, want := range map[int]string{65536: "", 65537: "max_batch_size: found 65537, expected at most 65536"} {
		c := parse(t, "sequence_batching { }")
		err := c.Adopt(&modelconfig.Config{MaxBatchSize: size})
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%d: %v, want %q", size, err, want)
		}
	}
}
