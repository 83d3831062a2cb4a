package onnxruntime

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// header is a module that carries the official header of the C API. It is only
// read here, and is no dependency of anything.
const header = "github.com/yalue/onnxruntime_go@v1.27.0"

func readHeader(t *testing.T) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", header).Output()
	var module struct{ Dir string }
	if err != nil || json.Unmarshal(out, &module) != nil {
		t.Skipf("The official header cannot be had: go mod download %s: %v.", header, err)
	}
	text, err := os.ReadFile(filepath.Join(module.Dir, "onnxruntime_c_api.h"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// An entry of the API's table: its name, how many arguments it takes, and the
// minor version that brought it, 0 if the header does not say.
type entry struct {
	name             string
	arguments, since int
}

var (
	comment = regexp.MustCompile(`(?s)/\*.*?\*/|//[^\n]*`)
	since   = regexp.MustCompile(`\\since Version 1\.(\d+)`)
	member  = regexp.MustCompile(`(?s)^(ORT_API2_STATUS|ORT_CLASS_RELEASE|ORT_API_T)?.*`)
	pointer = regexp.MustCompile(`\(\s*ORT_API_CALL\s*\*\s*(\w+)\s*\)`)
)

// table returns the entries of struct OrtApi, in their order.
func table(text string) []entry {
	_, text, _ = strings.Cut(text, "\nstruct OrtApi {")
	text, _, _ = strings.Cut(text, "\n};")
	// Of comments only the version is kept; there are examples of code in them.
	text = comment.ReplaceAllStringFunc(text, func(c string) string { return strings.Join(since.FindAllString(c, 1), "") })
	var all []entry
	for part := range strings.SplitSeq(text, ";") {
		e := entry{}
		if found := since.FindStringSubmatch(part); found != nil {
			e.since, _ = strconv.Atoi(found[1])
		}
		code := strings.TrimSpace(since.ReplaceAllString(part, ""))
		if code == "" {
			continue
		}
		open := strings.Index(code, "(")
		inner := strings.Split(code[open+1:strings.LastIndex(code, ")")], ",")
		switch member.FindStringSubmatch(code)[1] {
		case "ORT_API2_STATUS": // (Name, arguments...)
			e.name, e.arguments = strings.TrimSpace(inner[0]), len(inner)-1
		case "ORT_CLASS_RELEASE": // (Class)
			e.name, e.arguments = "Release"+strings.TrimSpace(inner[0]), 1
		case "ORT_API_T": // (result, Name, arguments...)
			e.name, e.arguments = strings.TrimSpace(inner[1]), len(inner)-2
		default: // result(*Name)(arguments...)
			found := pointer.FindStringSubmatchIndex(code)
			e.name = code[found[2]:found[3]]
			e.arguments = strings.Count(code[found[1]:], ",") + 1
		}
		all = append(all, e)
	}
	return all
}

func TestEntriesAreWhereTheOfficialHeaderHasThem(t *testing.T) {
	shim, err := os.ReadFile("shim.h")
	if err != nil {
		t.Fatal(err)
	}
	entries := regexp.MustCompile(`(?m)^\tX\((\d+), (\w+), [^(]*\((.*)\)\)`).FindAllStringSubmatch(string(shim), -1)
	if declared := strings.Count(string(shim), "\tX("); len(entries) != declared || declared == 0 {
		t.Fatalf("read %d entries of %d in shim.h", len(entries), declared)
	}
	official := table(readHeader(t))
	youngest := 0
	for _, e := range entries {
		position, _ := strconv.Atoi(e[1])
		if position >= len(official) {
			t.Fatalf("%s is at %d, behind the last of %d", e[2], position, len(official))
		}
		want, arguments := official[position], strings.Count(e[3], ",")+1
		if want.name != e[2] || want.arguments != arguments {
			t.Errorf("position %d is %s with %d arguments in shim.h, and %s with %d in the header", position, e[2], arguments, want.name, want.arguments)
		}
		youngest = max(youngest, want.since)
	}
	if version := regexp.MustCompile(`#define API_VERSION (\d+)`).FindStringSubmatch(string(shim))[1]; version != strconv.Itoa(youngest) {
		t.Errorf("API_VERSION is %s, but the youngest entry came with %d", version, youngest)
	}
}
