// Gotest runs go test with its arguments and prints what did not pass: the
// output of tests that failed, and of those that were skipped, which say why.
// The last line says how many passed, failed and were skipped. A test with
// subtests is not counted, only they are.
//
// With -again before the arguments, tests that measure time run again if they
// failed while the host of a virtual machine took its processors away.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/shoal-serving/shoal/internal/machine"
)

// An event is a line of go test -json.
type event struct {
	Action, Package, Test, Output string
}

// A test is a test of a package, or the package itself if Test is empty.
type test struct{ Package, Test string }

type results struct {
	passed, failed, skipped int

	output   map[test]*bytes.Buffer
	inner    map[test]bool  // has tests within; true if one of them failed
	passedIn map[string]int // passed tests by the outermost test that they are part of
	failedIn map[string]bool
}

func main() {
	args, again := os.Args[1:], false
	if len(args) > 0 && args[0] == "-again" {
		args, again = args[1:], true
	}
	began, before := time.Now(), stolen()
	total := run(args)
	for range 3 {
		if !again || total.failed == 0 || total.failedIn[""] || !disturbed(began, before) {
			break
		}
		names := slices.Sorted(maps.Keys(total.failedIn))
		fmt.Printf("The host took more than a tenth of a processor. Once it does not, or after two minutes, these run again: %s\n", strings.Join(names, " "))
		awaitCalm()
		began, before = time.Now(), stolen()
		// The flag goes before the packages, which are last.
		next := run(append([]string{"-run", "^(" + strings.Join(names, "|") + ")$"}, args...))
		for _, name := range names {
			total.passed -= total.passedIn[name]
		}
		total.passed, total.failed = total.passed+next.passed, next.failed
		total.skipped += next.skipped
		total.failedIn = next.failedIn
		maps.Copy(total.passedIn, next.passedIn)
	}
	fmt.Printf("%d passed, %d failed, %d skipped\n", total.passed, total.failed, total.skipped)
}

// run runs go test once.
func run(args []string) *results {
	r := &results{output: map[test]*bytes.Buffer{}, inner: map[test]bool{}, passedIn: map[string]int{}, failedIn: map[string]bool{}}
	cmd := exec.Command("go", append([]string{"test", "-json"}, args...)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdout, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		fmt.Println(err)
		r.fail("")
		return r
	}
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
		r.fail("")
	}
	return r
}

func (r *results) fail(outermost string) {
	r.failed++
	r.failedIn[outermost] = true
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
	outermost, _, _ := strings.Cut(t.Test, "/")
	// A panic ends the program: the tests after it have not run, and do not run again.
	panicked := t.Test == "" && strings.Contains(text(r.output[t]), "exit status 2")
	switch failed := action == "fail"; {
	case failed && (!innerFailed || panicked):
		r.fail(outermost)
		fmt.Printf("== failed: %s %s\n%s", t.Package, t.Test, text(r.output[t]))
	case action == "skip" && t.Test != "":
		r.skipped++
		fmt.Printf("== skipped: %s %s\n%s", t.Package, t.Test, text(r.output[t]))
	case action == "pass" && t.Test != "" && !hasInner:
		r.passed++
		r.passedIn[outermost]++
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

// stolen returns how long the host has taken processors away since the machine started.
func stolen() time.Duration { return machine.Stolen(machine.Root()) }

// disturbed reports whether the host took more than a tenth of a processor since
// then.
func disturbed(began time.Time, before time.Duration) bool {
	return stolen()-before > time.Since(began)/10
}

// awaitCalm waits until the host takes less for five seconds, and at most two minutes.
func awaitCalm() {
	for range 24 {
		began, before := time.Now(), stolen()
		time.Sleep(5 * time.Second)
		if !disturbed(began, before) {
			return
		}
	}
}
