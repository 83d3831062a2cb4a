package main

import (
	"strings"
	"testing"

	"github.com/shoal-serving/shoal/python/src"
)

func TestThePythonPackageHasTheServersVersion(t *testing.T) {
	text, err := src.Files.ReadFile("shoal/_version.py")
	if err != nil {
		t.Fatal(err)
	}
	if want := `__version__ = "` + version + `"`; !strings.Contains(string(text), want) {
		t.Errorf("python/src/shoal/_version.py is\n%s\nwant %s", text, want)
	}
}
