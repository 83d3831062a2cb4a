// Package script runs tests that are written as text: the input, a line of dashes, and the
// expected output.
//
//	# A second request does not restart the delay of the first.
//	model m max=8 takes=10ms delay=5ms
//	at 0ms a arrives
//	at 3ms b arrives
//	----
//	5ms    1 takes a b (2 rows, waited)
//	15ms   delivered: a b
//
// A block ends with a blank line. Lines that start with # are comments. Output that
// contains blank lines is enclosed by two pairs of dashes:
//
//	show queue
//	----
//	----
//	a
//
//	b
//	----
//	----
//
// Run the tests of a package with -rewrite to replace the expected output of its scripts by
// the actual output, then read the diff. A new case needs only its input and a line of
// dashes.
package script

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var rewrite = flag.Bool("rewrite", false, "replace the expected output of scripts by the actual output")

const dashes = "----"

// Run runs each script that matches glob as a subtest of t. newEnv is called
// once for each script; the function it returns is called with the input lines
// of one block after the other, without comments and blank lines, and returns
// the output of each.
func Run(t *testing.T, glob string, newEnv func(t *testing.T) func(lines []string) string) {
	t.Helper()
	files, err := filepath.Glob(glob)
	if err != nil {
		t.Fatal(err)
	}
	if len(files) == 0 {
		t.Fatalf("no script matches %s: correct the pattern, or write the first script", glob)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), filepath.Ext(file))
		t.Run(name, func(t *testing.T) { runFile(t, file, newEnv(t)) })
	}
}

func runFile(t *testing.T, file string, env func([]string) string) {
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	actual, mismatches, err := run(string(text), env)
	if err != nil {
		t.Fatalf("%s:%v", file, err)
	}
	if !*rewrite {
		for _, m := range mismatches {
			t.Errorf("%s:%s", file, m)
		}
		return
	}
	if actual == string(text) {
		return
	}
	if err := os.WriteFile(file, []byte(actual), 0o644); err != nil {
		t.Fatal(err)
	}
}

// run feeds a script to env. It returns the script as it would be with the
// actual output, and each mismatch as a message that starts with a line number,
// as do its errors.
func run(text string, env func([]string) string) (actual string, mismatches []string, err error) {
	blocks, rest, err := parse(text)
	if err != nil {
		return "", nil, err
	}
	var out strings.Builder
	for _, b := range blocks {
		got := strings.Trim(env(b.input()), "\n")
		if slices.Contains(strings.Split(got, "\n"), dashes) {
			return "", nil, fmt.Errorf("%d: the output contains a line %s, which a script cannot represent: print something else", b.line, dashes)
		}
		if got != b.want {
			mismatches = append(mismatches, fmt.Sprintf("%d: the output is not as expected (- want, + got):\n%s", b.line, diff(b.want, got)))
		}
		b.want = got
		b.format(&out)
	}
	out.WriteString(strings.Join(rest, "\n"))
	return strings.TrimRight(out.String(), "\n") + "\n", mismatches, nil
}

// A block is an input with its expected output.
type block struct {
	line int      // line number of the first dashes
	head []string // lines above the dashes, unchanged
	want string
}

// input returns the lines of the head without comments and blank lines.
func (b block) input() []string {
	var lines []string
	for _, line := range b.head {
		if strings.TrimSpace(line) != "" && !strings.HasPrefix(line, "#") {
			lines = append(lines, line)
		}
	}
	return lines
}

func (b block) format(out *strings.Builder) {
	for _, line := range b.head {
		out.WriteString(line + "\n")
	}
	out.WriteString(dashes + "\n")
	switch {
	case strings.Contains(b.want, "\n\n"):
		fmt.Fprintf(out, "%[1]s\n%[2]s\n%[1]s\n%[1]s\n", dashes, b.want)
	case b.want != "":
		out.WriteString(b.want + "\n")
	}
	out.WriteString("\n")
}

// parse splits a script into its blocks and the comments after the last one.
func parse(text string) (blocks []block, rest []string, err error) {
	lines := strings.Split(text, "\n")
	from := 0 // the line after the last block
	for i := 0; i < len(lines); i++ {
		if lines[i] != dashes {
			continue
		}
		b := block{line: i + 1, head: lines[from:i]}
		if b.want, from, err = expected(lines, i+1); err != nil {
			return nil, nil, err
		}
		blocks = append(blocks, b)
		i = from - 1
	}
	rest = lines[from:]
	if input := (block{head: rest}).input(); input != nil {
		return nil, nil, fmt.Errorf("%d: the input has no output: add a line %s after %q", from+1, dashes, input[len(input)-1])
	}
	return blocks, rest, nil
}

// expected reads the output that starts at lines[i], and returns the index of the line
// after the block, including the blank line that ends it.
func expected(lines []string, i int) (want string, next int, err error) {
	end := ""
	if i < len(lines) && lines[i] == dashes {
		end = dashes
		i++
	}
	to := i
	for to < len(lines) && lines[to] != end {
		to++
	}
	want, next = strings.Trim(strings.Join(lines[i:to], "\n"), "\n"), to
	if end == dashes {
		if !slices.Equal(lines[to:min(to+2, len(lines))], []string{dashes, dashes}) {
			return "", 0, fmt.Errorf("%d: output that begins with two lines %s must end with two", i, dashes)
		}
		next = to + 2
	}
	if next < len(lines) && lines[next] == "" {
		next++
	}
	return want, next, nil
}

// diff compares two texts line by line. It marks lines that are only in want with a minus,
// and lines that are only in got with a plus.
func diff(want, got string) string {
	a, b := strings.Split(want, "\n"), strings.Split(got, "\n")
	// common[i][j] is the length of the longest common subsequence of a[i:] and b[j:].
	common := make([][]int, len(a)+1)
	for i := range common {
		common[i] = make([]int, len(b)+1)
	}
	for i, line := range slices.Backward(a) {
		for j := len(b) - 1; j >= 0; j-- {
			if line == b[j] {
				common[i][j] = common[i+1][j+1] + 1
			} else {
				common[i][j] = max(common[i+1][j], common[i][j+1])
			}
		}
	}
	var out strings.Builder
	for i, j := 0, 0; i < len(a) || j < len(b); {
		switch {
		case i < len(a) && j < len(b) && a[i] == b[j]:
			fmt.Fprintf(&out, "  %s\n", a[i])
			i, j = i+1, j+1
		case j == len(b) || i < len(a) && common[i+1][j] >= common[i][j+1]:
			fmt.Fprintf(&out, "- %s\n", a[i])
			i++
		default:
			fmt.Fprintf(&out, "+ %s\n", b[j])
			j++
		}
	}
	return out.String()
}
