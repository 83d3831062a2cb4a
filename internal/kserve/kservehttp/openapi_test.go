package kservehttp_test

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/shoal-serving/shoal/internal/kserve/kservehttp"
	"github.com/shoal-serving/shoal/internal/kserve/kservetest"
	"github.com/shoal-serving/shoal/internal/node"
)

func TestTheReferenceHasEveryRoute(t *testing.T) {
	text, err := os.ReadFile("../../../docs/reference/openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var document struct {
		Paths map[string]map[string]any `yaml:"paths"`
	}
	if err := yaml.Unmarshal(text, &document); err != nil {
		t.Fatal(err)
	}
	documented := map[string]string{}
	for path, operations := range document.Paths {
		documented[path] = strings.ToUpper(strings.Join(slices.Sorted(maps.Keys(operations)), ", "))
	}

	backend := kservetest.New(t)
	served := map[string]string{}
	for pattern, methods := range kservehttp.Routes(kservehttp.New(backend, backend, backend, kservehttp.Options{Node: node.NewReporter(node.Options{}), Dashboard: board{}})) {
		served[strings.TrimSuffix(pattern, "{$}")] = methods
	}
	for path, methods := range served {
		if documented[path] != methods {
			t.Errorf("the server has %s %s, and openapi.yaml %q", methods, path, documented[path])
		}
	}
	for path, methods := range documented {
		if served[path] == "" {
			t.Errorf("openapi.yaml has %s %s, and the server does not", methods, path)
		}
	}
}
