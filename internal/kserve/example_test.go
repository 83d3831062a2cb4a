package kserve_test

import (
	"strings"
	"testing"

	"github.com/shoal-serving/shoal/internal/buf"
	"github.com/shoal-serving/shoal/internal/catalog"
	"github.com/shoal-serving/shoal/internal/kserve"
	"github.com/shoal-serving/shoal/internal/modelconfig"
)

func TestTheExampleForAModelIsAValidRequest(t *testing.T) {
	for name, text := range map[string]string{
		"numbers":              `max_batch_size: 8 input { name: "x" data_type: TYPE_FP32 dims: 4 } input { name: "n" data_type: TYPE_UINT8 dims: [ -1, 2 ] }`,
		"others":               `input { name: "s" data_type: TYPE_STRING dims: -1 } input { name: "b" data_type: TYPE_BOOL dims: 1 }`,
		"as long as it may be": `input { name: "\"x\"" data_type: TYPE_INT64 dims: [ 8, 8 ] }`,
	} {
		t.Run(name, func(t *testing.T) {
			cfg, err := modelconfig.Parse("", []byte(text))
			if err != nil {
				t.Fatal(err)
			}
			example, hint := kserve.Example(catalog.Describe(cfg, "1"))
			if hint != "" {
				t.Errorf("hint %q beside an example", hint)
			}
			body := buf.Wrap(example, func() {})
			defer body.Release()
			req, err := kserve.DecodeRequest(t.Context(), body, kserve.DecodeOptions{}, nil)
			if err != nil {
				t.Fatalf("%v: %s", err, example)
			}
			defer req.Memory.Release()
			if err := cfg.Check(&req.Request); err != nil {
				t.Errorf("%v: %s", err, example)
			}
		})
	}
}

func TestWithoutAShortExampleAHintDescribesTheBody(t *testing.T) {
	for text, want := range map[string]string{
		`max_batch_size: 8 input { name: "x" data_type: TYPE_FP32 dims: [ 3, 224, 224 ] }`: `{"name":"x","shape":[1,3,224,224],"datatype":"FP32","data":[…]} with 150528 elements in data`,
		`input { name: "h" data_type: TYPE_FP16 dims: 2 }`:                                 `{"name":"h","shape":[2],"datatype":"FP16"} with its data in binary, because JSON cannot represent FP16`,
		``: "",
	} {
		cfg, err := modelconfig.Parse("", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		example, hint := kserve.Example(catalog.Describe(cfg, "1"))
		if example != nil || !strings.Contains(hint, want) {
			t.Errorf("%s: example %s, hint %q, want %q", text, example, hint, want)
		}
	}
}
