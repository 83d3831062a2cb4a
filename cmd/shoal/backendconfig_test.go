package main

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
)

func TestSettingsOfBackendsAreDefaultsOfTheirModels(t *testing.T) {
	for _, tt := range []struct{ flags, want string }{
		{"", "map[]"},
		{"default-max-batch-size=8", "map[onnxruntime:{8 map[]}]"},
		{",default-max-batch-size=8", "map[onnxruntime:{8 map[]}]"},
		{"onnxruntime,default-max-batch-size=16 default-max-batch-size=8", "map[onnxruntime:{16 map[]}]"},
		{"onnxruntime,intra_op_thread_count=2 onnxruntime,inter_op_thread_count=1", "map[onnxruntime:{0 map[inter_op_thread_count:1 intra_op_thread_count:2]}]"},
		{"python,shm-default-byte-size=1048576 tensorflow,version=2", "map[]"},
	} {
		all, err := parseBackendSettings(strings.Fields(tt.flags))
		if got := fmt.Sprint(backendDefaults(all)); got != tt.want || err != nil {
			t.Errorf("%s: %s, %v, want %s", tt.flags, got, err, tt.want)
		}
	}
}

func TestSettingsOfBackendsThatCannotBeReadAreErrors(t *testing.T) {
	for text, want := range map[string]string{
		"onnxruntime":                            "expected BACKEND,KEY=VALUE",
		"onnxruntime,=3":                         "expected BACKEND,KEY=VALUE",
		"onnxruntime,default-max-batch-size=0":   "expected a whole number of at least 1",
		"onnxruntime,intra_op_thread_count=many": "expected a whole number of at least 0",
	} {
		if _, err := parseBackendSettings([]string{text}); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

func TestSettingsOfBackendsWithoutEffectAreNamed(t *testing.T) {
	all, err := parseBackendSettings([]string{"python,shm-default-byte-size=1", "python,other=1", "tensorrt,plugins=x", "cmdline=x", "onnxruntime,enable-global-threadpool=1", "default-max-batch-size=4"})
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	logIgnored(all, slog.New(slog.NewTextHandler(&out, nil)))
	for _, want := range []string{"grows on demand", "backend python has no such setting", "there is no backend tensorrt", "not a setting of all backends", "share the cores anyway"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no warning %q in\n%s", want, &out)
		}
	}
	if n := strings.Count(out.String(), "\n"); n != 5 {
		t.Errorf("%d warnings, want 5", n)
	}
}
