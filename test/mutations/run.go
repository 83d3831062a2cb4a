package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

type options struct {
	only     string
	again    bool
	together bool
	limit    time.Duration // 0 means none
}

// run runs the mutations that need it, and keeps the result of each. Those that cannot be
// tried are printed, and the others run all the same.
func (o *options) run(root string, out io.Writer) error {
	only, err := regexp.Compile(o.only)
	if err != nil {
		return err
	}
	list, results, err := read(root)
	if err != nil {
		return err
	}
	r := runner{root: root, timeouts: map[string]time.Duration{}}
	if o.together {
		return r.tryTogether(slices.DeleteFunc(list, func(m mutation) bool { return !only.MatchString(m.id) || m.harmless != "" }), out)
	}
	began := time.Now()
	var errs []error
	for i := range list {
		m := &list[i]
		state, err := m.fingerprint(root)
		if err != nil {
			return err
		}
		if !only.MatchString(m.id) || !o.again && results[m.id].state == state {
			continue
		}
		if o.limit > 0 && time.Since(began) > o.limit {
			break
		}
		res, err := r.tryAgain(m, results[m.id].by)
		if err != nil {
			_, _ = fmt.Fprintln(out, err)
			errs = append(errs, err)
			continue
		}
		res.state = state
		_, _ = fmt.Fprintf(out, "%-4s %s  %s  %s\n", m.id, res.verdict, m.breaks, res.by)
		if _, results, err = read(root); err != nil { // another run may have added some
			return err
		}
		results[m.id] = res
		if err := os.WriteFile(filepath.Join(root, resultsFile), []byte(formatResults(list, results)), 0o644); err != nil {
			return err
		}
	}
	found, kept, left := count(list, results)
	_, _ = fmt.Fprintf(out, "%d mutations: %d noticed, %d survived, %d without a result\n", len(list), found, kept, left)
	if len(errs) > 0 {
		return fmt.Errorf("%d mutations could not be tried", len(errs))
	}
	return nil
}

// read reads the list and the results so far.
func read(root string) ([]mutation, map[string]result, error) {
	text, err := os.ReadFile(filepath.Join(root, listFile))
	if err != nil {
		return nil, nil, err
	}
	list, err := parseList(string(text))
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", listFile, err)
	}
	kept, err := os.ReadFile(filepath.Join(root, resultsFile))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, nil, err
	}
	results, err := parseResults(string(kept))
	return list, results, err
}

// A runner runs tests of mutated packages.
type runner struct {
	root     string
	timeouts map[string]time.Duration // by arguments of go test
}

// tryAgain runs the test that noticed the mutation the last time, which is faster than to run
// all of them, and all of them if that one does not notice it any more.
func (r *runner) tryAgain(m *mutation, last string) (result, error) {
	if testName.MatchString(last) {
		res, err := r.try("^"+last+"$", m)
		if err != nil || res.verdict == noticed {
			return res, err
		}
	}
	return r.try("", m)
}

var testName = regexp.MustCompile(`^(Test|Fuzz)\w+$`)

// try runs the tests of mutations of one package whose names match an expression; "" means
// all. It is an error if they fail without the mutations, or if the mutated code does not
// compile.
func (r *runner) try(expression string, all ...*mutation) (result, error) {
	tests := append([]string{"-run", expression}, all[0].packages()...)
	timeout, err := r.timeout(tests)
	if err != nil {
		return result{}, err
	}
	dir, err := os.MkdirTemp("", "mutation-*")
	if err != nil {
		return result{}, err
	}
	defer func() { _ = os.RemoveAll(dir) }() // temporary
	overlay, err := r.overlay(all, dir)
	if err != nil {
		return result{}, err
	}
	text, err := r.test(timeout, append([]string{"-overlay", overlay}, tests...)...)
	switch {
	case err == nil:
		return result{verdict: survived}, nil
	case strings.Contains(text, "[build failed]") || strings.Contains(text, "[setup failed]"):
		return result{}, fmt.Errorf("%s does not compile: %s", all[0].id, text)
	}
	return result{verdict: noticed, by: cause(text)}, nil
}

// tryTogether applies all mutations of a package at once, and runs its tests. It prints for
// each package whether they failed. A mutation of a place that another one has changed is
// left out.
func (r *runner) tryTogether(list []mutation, out io.Writer) error {
	packages := map[string][]*mutation{}
	for i := range list {
		key := strings.Join(list[i].tests, " ")
		packages[key] = append(packages[key], &list[i])
	}
	var silent []string
	for _, key := range slices.Sorted(maps.Keys(packages)) {
		res, err := r.try("", packages[key]...)
		if err != nil {
			return err
		}
		_, _ = fmt.Fprintf(out, "%-40s %3d mutations  %s  %s\n", key, len(packages[key]), res.verdict, res.by)
		if res.verdict == survived {
			silent = append(silent, key)
		}
	}
	if len(silent) > 0 {
		return fmt.Errorf("nothing was noticed in %s", strings.Join(silent, ", "))
	}
	return nil
}

// overlay writes the mutated files and the file for -overlay, and returns the latter's name.
func (r *runner) overlay(all []*mutation, dir string) (string, error) {
	replace := map[string]string{}
	for i, m := range all {
		file, err := filepath.Abs(filepath.Join(r.root, m.file))
		if err != nil {
			return "", err
		}
		source, err := os.ReadFile(cmp.Or(replace[file], file))
		if err != nil {
			return "", err
		}
		mutated, err := m.apply(source)
		if err != nil && i > 0 {
			continue // another one has changed the place
		}
		if err != nil {
			return "", err
		}
		replace[file] = filepath.Join(dir, strconv.Itoa(i)+filepath.Base(file))
		if err := os.WriteFile(replace[file], mutated, 0o600); err != nil {
			return "", err
		}
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	overlay := filepath.Join(dir, "overlay.json")
	return overlay, os.WriteFile(overlay, text, 0o600)
}

// timeout returns how long tests may take: several times as long as without a mutation. It
// runs them to find out, once. args are arguments of go test.
func (r *runner) timeout(args []string) (time.Duration, error) {
	key := strings.Join(args, " ")
	if limit, ok := r.timeouts[key]; ok {
		return limit, nil
	}
	began := time.Now()
	if text, err := r.test(10*time.Minute, args...); err != nil {
		return 0, fmt.Errorf("the tests fail without a mutation (%s): %s", key, text)
	}
	r.timeouts[key] = time.Minute + 4*time.Since(began)
	return r.timeouts[key], nil
}

func (r *runner) test(timeout time.Duration, args ...string) (string, error) {
	cmd := exec.Command("go", append([]string{"test", "-vet=off", "-failfast", "-count=1", "-timeout", timeout.String()}, args...)...)
	cmd.Dir = r.root
	text, err := cmd.CombinedOutput()
	return string(text), err
}

var failure = regexp.MustCompile(`(?m)^\s*--- FAIL: (\S+)`)

// cause returns what failed first: a test, or what ended the tests without one.
func cause(text string) string {
	if found := failure.FindStringSubmatch(text); found != nil {
		return found[1]
	}
	for _, sign := range []string{"panic: test timed out", "left pooled buffers", "goroutine", "panic:", "fatal error"} {
		if strings.Contains(text, sign) {
			return strings.TrimSuffix(sign, ":")
		}
	}
	return "the tests of the package ended with an error"
}
