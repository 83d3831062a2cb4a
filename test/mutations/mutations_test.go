package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const root = "../.."

func TestEveryMutationApplies(t *testing.T) {
	list, _, err := read(root)
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, m := range list {
		if known[m.id] {
			t.Errorf("%s is in the list twice", m.id)
		}
		known[m.id] = true
		source, err := os.ReadFile(filepath.Join(root, m.file))
		if err != nil {
			t.Errorf("%s: %v", m.id, err)
			continue
		}
		mutated, err := m.apply(source)
		if err != nil {
			t.Errorf("%v; if the code has moved, change mutations.txt", err)
			continue
		}
		if err := parses(m.file, mutated); err != nil || string(mutated) == string(source) {
			t.Errorf("%s: the mutated code is the same, or not Go: %v", m.id, err)
		}
	}
}

func TestEveryMutationIsNoticedOrHarmless(t *testing.T) {
	list, results, err := read(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range list {
		switch got := results[m.id].verdict; {
		case got == "":
			t.Errorf("%s has no result: run `make measure WHAT=mutations`", m.id)
		case got == survived && m.harmless == "":
			t.Errorf("%s survived (%s): write a test that notices it, or say in mutations.txt why it is harmless", m.id, m.breaks)
		case got == noticed && m.harmless != "":
			t.Errorf("%s is said to be harmless, but %s notices it", m.id, results[m.id].by)
		}
	}
	found, kept, _ := count(list, results)
	if len(list) < 170 || found < 155 {
		t.Errorf("%d mutations, %d noticed, want at least 170 and 155", len(list), found)
	}
	doc, err := os.ReadFile(filepath.Join(root, "docs/lab/measurements.md"))
	if err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("%d mutations, of which %d are noticed and %d are harmless", len(list), found, kept); !strings.Contains(string(doc), want) {
		t.Errorf("docs/lab/measurements.md does not say %q", want)
	}
}

func TestAMutationNeedsOnePlace(t *testing.T) {
	const source = "package p\n\nfunc a() {\n\tx()\n\ty()\n}\n\nfunc (t *T) b() {\n\tx()\n}\n"
	for _, tt := range []struct{ change, want string }{
		{"- y()\n+ z()", "package p\n\nfunc a() {\n\tx()\nz()\n}\n\nfunc (t *T) b() {\n\tx()\n}\n"},
		{"in T.b\n- x()", "package p\n\nfunc a() {\n\tx()\n\ty()\n}\n\nfunc (t *T) b() {\n}\n"},
		{"| x()\n- y()", "package p\n\nfunc a() {\nx()\n}\n\nfunc (t *T) b() {\n\tx()\n}\n"},
		{"- x()", "lines 4 and 9 of p.go match"},
		{"- z()", "has no lines"},
		{"in c\n- x()", "has no function c"},
	} {
		list, err := parseList("== p.go\n\nA1 it breaks\n" + tt.change + "\n")
		if err != nil || len(list) != 1 {
			t.Fatalf("%q: %v, %v", tt.change, list, err)
		}
		got, err := list[0].apply([]byte(source))
		if string(got) != tt.want && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%q: %q, %v, want %q", tt.change, got, err, tt.want)
		}
	}
}

func TestResultsAreKept(t *testing.T) {
	list := []mutation{{id: "A1"}, {id: "B10"}, {id: "C"}}
	results := map[string]result{"A1": {noticed, "00", "TestA"}, "B10": {survived, "11", ""}, "gone": {noticed, "22", "TestB"}}
	got, err := parseResults(formatResults(list, results))
	if err != nil || len(got) != 2 || got["A1"] != results["A1"] || got["B10"] != results["B10"] {
		t.Errorf("%v, %v", got, err)
	}
}

func TestTheFirstFailureIsNamed(t *testing.T) {
	for text, want := range map[string]string{
		"=== x\n--- FAIL: TestA (0.00s)\n    --- FAIL: TestA/b (0.00s)": "TestA",
		"panic: test timed out after 1m":                                "panic: test timed out",
		"FAIL":                                                          "the tests of the package ended with an error",
	} {
		if got := cause(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
