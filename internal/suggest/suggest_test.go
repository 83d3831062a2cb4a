package suggest_test

import (
	"strings"
	"testing"

	"github.com/shoal-serving/shoal/internal/suggest"
)

func TestAMisspeltNameIsRecognised(t *testing.T) {
	fields := []string{"max_batch_size", "dynamic_batching", "input", "output", "name"}
	for name, want := range map[string]string{
		"max_batchsize":    "max_batch_size",
		"Max_Batch_Size":   "max_batch_size",
		"dynamic_batchign": "dynamic_batching", // two swapped letters are one mistake
		"inputs":           "input",
		"inptu":            "input",
		"naem":             "name",
		"nm":               "", // too short to be sure
		"resnet":           "",
		"max_batch":        "max_batch_size", // the only one that begins so
		"batch_size":       "",               // too many characters are missing
		"":                 "",

		strings.Repeat("x", 1000): "",
	} {
		if got := suggest.Nearest(name, fields); got != want {
			t.Errorf("Nearest(%q) = %q, want %q", name, got, want)
		}
	}
}

func TestTheMostSimilarNameIsSuggested(t *testing.T) {
	if got := suggest.Nearest("resnet51", []string{"resnet18", "resnet50", "resnet52"}); got != "resnet50" {
		t.Errorf("suggested %q, want the first of the two that differ in one character", got)
	}
}
