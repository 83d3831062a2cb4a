package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestThePageAsksNobodyAndSaysWhatTritonRuns(t *testing.T) {
	r := measured(lone, map[string][][2]float64{untouched: {{200, 6}}, "Triton 2.51": {{250, 5}}, "MMS 1.1.11": {{95, 11}}})
	r.lines = append(r.lines,
		line{Kind: kindBare, cell: cell{Model: lone.Model}, Throughput: 480, P50: 4 * time.Millisecond, Text: "1 row"},
		line{Kind: kindAbsent, cell: cell{Model: lone.Model}, Server: "Ray Serve 2.60", Text: "<it ended>"})
	folder := t.TempDir()
	trouble := `{"server":"Shoal","trouble":"SIGTERM","words":"0 of 24 are lost"}` + "\n"
	if err := os.WriteFile(filepath.Join(folder, "behaviours.jsonl"), []byte(trouble), 0o644); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	failed, err := newReport(r, time.Second).write(folder, &out)
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(folder, "compare.html"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Python backend with ONNX Runtime", "<svg", "&lt;it ended&gt;", "0 of 24 are lost", "prefers-color-scheme: dark", "text_recognition HTTP 1, throughput beside Triton 2.51: 0.80 times"} {
		if !strings.Contains(string(page), want) {
			t.Errorf("the page has no %q", want)
		}
	}
	for _, not := range []string{"http:", "https:", "src=", "<script", "@import"} {
		if strings.Contains(string(page), not) {
			t.Errorf("the page has %q, with which it would ask somebody", not)
		}
	}
	if want := "FAILED  text_recognition HTTP 1, throughput beside Triton 2.51: 0.80 times, want at least 1: no verdict with 0 pairs, which takes 7\n"; !strings.Contains(out.String(), want) {
		t.Errorf("got %s, want a line %q", out.String(), want)
	}
	if failed != 2 || !strings.Contains(out.String(), "\n3 passed, 2 failed, ") {
		t.Errorf("%d failed: %s, want 3 passed and 2 failed", failed, out.String())
	}
}

func TestAComparisonInWhichNothingWasMeasuredFails(t *testing.T) {
	var out bytes.Buffer
	if failed, err := newReport(&results{}, time.Second).write(t.TempDir(), &out); failed != 1 || err != nil || !strings.Contains(out.String(), "no promise was measured") {
		t.Errorf("%d failed, %v: %s", failed, err, out.String())
	}
}

func TestResultsOfAnotherShoalAreMeasuredAgain(t *testing.T) {
	folder := t.TempDir()
	binary, file := filepath.Join(folder, "shoal"), filepath.Join(folder, "compare.jsonl")
	reopen := func(program string) *results {
		if err := os.WriteFile(binary, []byte(program), 0o644); err != nil {
			t.Fatal(err)
		}
		r, err := openResults(file, binary, time.Second)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	r := reopen("one")
	for _, l := range []line{{Server: untouched}, {Server: "MMS 1.1.11"}, {Server: "MMS 1.1.11", Round: 1}} {
		l.Kind, l.cell = kindPass, lone
		if err := r.add(l); err != nil {
			t.Fatal(err)
		}
	}
	if got := len(reopen("one").lines); got != 3 {
		t.Errorf("with the same program: got %d lines, want 3", got)
	}
	if got := reopen("another").lines; len(got) != 1 || got[0].Server != "MMS 1.1.11" || got[0].Round != 0 {
		t.Errorf("with another program: got %v, want what MMS did alone", got)
	}
}
