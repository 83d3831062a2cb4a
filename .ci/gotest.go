// Gotest runs go test with its arguments and prints what did not pass: the
// output of tests that failed, and of those that were skipped, which say why.
// The last line says how many passed, failed and were skipped. A test with
// subtests is not counted, only they are.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// An event is a line of go test -json.
type event struct {
	Action, Package, Test, Output string
}

// A test is a test of a package, or the package itself if Test is empty.
type test struct{ Package, Test string }

type results struct {
	passed, failed, skipped int

	output map[test]*bytes.Buffer
	inner  map[test]bool // has tests within; true if one of them failed
}

func main() {
	cmd := exec.Command("go", append([]string{"test", "-json"}, os.Args[1:]...)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdout, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		fmt.Println(err)
		fmt.Println("0 passed, 1 failed, 0 skipped")
		return
	}
	r := results{output: map[test]*bytes.Buffer{}, inner: map[test]bool{}}
	for in := bufio.NewReader(stdout); ; {
		line, err := in.ReadBytes('\n')
		if len(line) > 0 {
			r.read(line)
		}
		if err != nil {
			break
		}
	}
	if err := cmd.Wait(); err != nil && r.failed == 0 {
		fmt.Printf("%sgo test: %v\n", &stderr, err)
		r.failed++
	}
	fmt.Printf("%d passed, %d failed, %d skipped\n", r.passed, r.failed, r.skipped)
}

func (r *results) read(line []byte) {
	var e event
	if json.Unmarshal(line, &e) != nil {
		fmt.Printf("%s", line) // not an event, so it is a message
		return
	}
	t := test{e.Package, e.Test}
	switch e.Action {
	case "output":
		if r.output[t] == nil {
			r.output[t] = &bytes.Buffer{}
		}
		r.output[t].WriteString(e.Output)
	case "build-output":
		fmt.Print(e.Output)
	case "pass", "fail", "skip":
		r.end(t, e.Action)
	}
}

func (r *results) end(t test, action string) {
	innerFailed, hasInner := r.inner[t]
	switch failed := action == "fail"; {
	case failed && !innerFailed:
		r.failed++
		fmt.Printf("== failed: %s %s\n%s", t.Package, t.Test, text(r.output[t]))
	case action == "skip" && t.Test != "":
		r.skipped++
		fmt.Printf("== skipped: %s %s\n%s", t.Package, t.Test, text(r.output[t]))
	case action == "pass" && t.Test != "" && !hasInner:
		r.passed++
	}
	delete(r.output, t)
	if outer, ok := t.outer(); ok {
		r.inner[outer] = r.inner[outer] || action == "fail"
	}
}

// outer returns what t is part of: the test around it, or the package.
func (t test) outer() (test, bool) {
	if t.Test == "" {
		return test{}, false
	}
	i := max(strings.LastIndexByte(t.Test, '/'), 0)
	return test{t.Package, t.Test[:i]}, true
}

func text(b *bytes.Buffer) string {
	if b == nil {
		return ""
	}
	return b.String()
}
