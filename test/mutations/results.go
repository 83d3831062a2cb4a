package main

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
)

// A result is what became of a mutation.
type result struct {
	verdict string // noticed or survived
	state   string // fingerprint of the mutation and of the packages that test it
	by      string // the first test that failed, or what else failed
}

const (
	noticed  = "noticed"
	survived = "survived"
)

const (
	listFile    = "test/mutations/mutations.txt"
	resultsFile = "test/mutations/results.txt"
)

// parseResults reads the results by identifier.
func parseResults(text string) (map[string]result, error) {
	all := map[string]result{}
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		fields := strings.Fields(line)
		if len(fields) < 3 || fields[1] != noticed && fields[1] != survived {
			return nil, fmt.Errorf("found the result %q, expected an identifier, a verdict, a fingerprint and a test", line)
		}
		all[fields[0]] = result{fields[1], fields[2], strings.Join(fields[3:], " ")}
	}
	return all, nil
}

// formatResults returns the table of results, in the order of the list. Results of mutations
// that are not in the list any more are dropped.
func formatResults(list []mutation, results map[string]result) string {
	var b strings.Builder
	b.WriteString("# Written by `make measure WHAT=mutations`: identifier, verdict, state of the code, and what failed first.\n")
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, m := range list {
		if r, ok := results[m.id]; ok {
			_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", m.id, r.verdict, r.state, r.by)
		}
	}
	_ = w.Flush() // a strings.Builder does not fail
	lines := strings.Split(b.String(), "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	return strings.Join(lines, "\n")
}

// fingerprint identifies a mutation together with the files of the packages that it concerns.
func (m *mutation) fingerprint(root string) (string, error) {
	h := sha256.New()
	_, _ = fmt.Fprintf(h, "%s %s %q %q\n", m.file, m.function, m.old, m.new)
	for _, dir := range append([]string{filepath.Dir(m.file)}, m.tests...) {
		base := filepath.Join(root, dir)
		err := filepath.WalkDir(base, func(path string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case d.IsDir() && path != base && hasGo(path):
				return fs.SkipDir // a package of its own
			case d.IsDir():
				return nil
			}
			content, err := os.ReadFile(path)
			_, _ = fmt.Fprintf(h, "%s %d\n%s", path[len(base):], len(content), content)
			return err
		})
		if err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%x", h.Sum(nil)[:6]), nil
}

func hasGo(dir string) bool {
	files, _ := filepath.Glob(filepath.Join(dir, "*.go"))
	return len(files) > 0
}

// count returns how many mutations have which verdict.
func count(list []mutation, results map[string]result) (found, kept, left int) {
	for _, m := range list {
		switch results[m.id].verdict {
		case noticed:
			found++
		case survived:
			kept++
		default:
			left++
		}
	}
	return found, kept, left
}
