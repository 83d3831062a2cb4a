package main

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shoal-serving/shoal/test/matrix"
	"github.com/shoal-serving/shoal/test/measure"
)

type options struct {
	heldOut      bool
	folder, only string
	oracle       bool
	worst        int
}

// files are the stored results.
type files struct {
	oracles *results[matrix.Oracle]
	trials  *results[matrix.Trial]
	policy  string // version of the policy's code
}

func key(cell string, version any, e matrix.Effort) string {
	return fmt.Sprintf("%s %v %+v", cell, version, e)
}

func (o *options) open() (f files, err error) {
	if f.policy, err = policyVersion(); err != nil {
		return f, err
	}
	if err := os.MkdirAll(o.folder, 0o755); err != nil {
		return f, err
	}
	f.oracles, err = open(filepath.Join(o.folder, "oracle.jsonl"), func(r *matrix.Oracle) string { return key(r.Cell, r.Version, r.Effort) })
	if err != nil {
		return f, err
	}
	f.trials, err = open(filepath.Join(o.folder, "trials.jsonl"), func(r *matrix.Trial) string { return key(r.Cell, r.Version, r.Effort) })
	return f, err
}

// run computes the results that are not stored yet, and prints the report.
func (o *options) run(out, progress *os.File) error {
	cells, err := o.cells()
	if err != nil {
		return err
	}
	f, err := o.open()
	if err != nil {
		return err
	}
	effort := matrix.FullEffort
	var looked atomic.Int64
	err = each(cells, progress, "static settings", func(c *matrix.Cell) error {
		if kept := f.oracles.get(key(c.Key(), matrix.Version, effort)); kept != nil {
			if looked.Add(1)%checkEvery == 1 {
				return kept.Check(c)
			}
			return nil
		}
		began := time.Now()
		r, err := matrix.FindBest(c, effort)
		if err != nil {
			return err
		}
		r.Took = time.Since(began).Seconds()
		return f.oracles.add(r)
	})
	if err != nil || o.oracle {
		return err
	}
	err = each(cells, progress, "automatic policy", func(c *matrix.Cell) error {
		if f.trials.get(key(c.Key(), f.policy, effort)) != nil {
			return nil
		}
		began := time.Now()
		r, err := matrix.Evaluate(c, matrix.Automatic, effort)
		if err != nil {
			return err
		}
		r.Version, r.Took = f.policy, time.Since(began).Seconds()
		return f.trials.add(r)
	})
	if err != nil {
		return err
	}
	return o.report(out, f.pairs(cells, effort))
}

// pairs returns the results of all cells with the current version of the policy.
func (f *files) pairs(cells []*matrix.Cell, e matrix.Effort) []matrix.Pair {
	var all []matrix.Pair
	for _, c := range cells {
		all = append(all, matrix.Pair{
			Cell: c, Oracle: f.oracles.get(key(c.Key(), matrix.Version, e)), Trial: f.trials.get(key(c.Key(), f.policy, e)),
		})
	}
	return all
}

const (
	checkEvery  = 32 // one of this many stored results is repeated to check it
	followSeeds = 20
	regretSeeds = 5

	overloadSeeds = 5
)

func (o *options) report(out *os.File, pairs []matrix.Pair) error {
	var static, policy float64
	for _, p := range pairs {
		static += p.Oracle.Took
		policy += p.Trial.Took
	}
	verdicts := matrix.Judge(pairs, matrix.Slack{}, o.worst)
	switch {
	case o.heldOut:
		verdicts = matrix.JudgeHeldOut(pairs, matrix.Slack{}, o.worst)
	case o.only == "": // the other gates do not depend on the selected cells
		follow, err := matrix.Follow(matrix.Automatic, followSeeds, o.worst)
		if err != nil {
			return err
		}
		regret, err := matrix.Regret(matrix.Automatic, regretSeeds, o.worst)
		if err != nil {
			return err
		}
		goodput, refusal, err := matrix.Overload(overloadSeeds, o.worst)
		if err != nil {
			return err
		}
		verdicts = append(verdicts, goodput, refusal, follow, matrix.Cost(matrix.Automatic), regret)
	}
	_, err := fmt.Fprintf(out, "%d cells; the static settings took %.0f minutes of one core, the policy %.0f.\n\n%s\n%s",
		len(pairs), static/60, policy/60, matrix.Table(verdicts), matrix.Models(pairs))
	known, unread := measure.KnownMisses()
	return errors.Join(err, unread, o.judge(verdicts, known))
}

// judge returns an error for each gate that is missed and not a known miss, or is missed by more
// than when it became known. A gate without cells is missed, unless the user selected cells.
func (o *options) judge(verdicts []matrix.Verdict, known []measure.Known) error {
	var all error
	for _, v := range verdicts {
		gate := "matrix: " + v.Gate
		listed := slices.ContainsFunc(known, func(k measure.Known) bool { return k.Gate == gate })
		switch {
		case v.NotRun && o.only == "":
			all = errors.Join(all, fmt.Errorf("%s has no cells", v.Gate))
		case v.NotRun:
		case v.Kept() && listed && o.only == "":
			all = errors.Join(all, fmt.Errorf("%s is met again: remove it from known-misses.json", v.Gate))
		case !v.Kept():
			_, err := measure.Held(measure.Verdict{Gate: gate, Bound: v.Bound, Median: v.Figure, Low: v.Figure, High: v.Figure}, known)
			all = errors.Join(all, err)
		}
	}
	return all
}

func (o *options) cells() ([]*matrix.Cell, error) {
	all := matrix.Tuned()
	if o.heldOut {
		all = matrix.HeldOut()
	}
	only, err := regexp.Compile(o.only)
	if err != nil {
		return nil, err
	}
	var chosen []*matrix.Cell
	for _, c := range all {
		if only.MatchString(c.Name()) {
			chosen = append(chosen, c)
		}
	}
	if len(chosen) == 0 {
		return nil, fmt.Errorf("no cell matches %q", o.only)
	}
	return chosen, nil
}

// each calls do for all cells, on all cores, and prints its progress.
func each(cells []*matrix.Cell, progress *os.File, what string, do func(*matrix.Cell) error) error {
	var (
		wait  sync.WaitGroup
		queue = make(chan *matrix.Cell) // unbuffered: a free worker takes the next cell

		mu   sync.Mutex
		errs []error
		done int
	)
	began := time.Now()
	for range runtime.GOMAXPROCS(0) {
		wait.Go(func() {
			for c := range queue {
				err := do(c)
				mu.Lock()
				if err != nil {
					errs = append(errs, err)
				}
				if done++; done%10 == 0 || done == len(cells) {
					text := fmt.Sprintf("%s: %d of %d cells, %v\n", what, done, len(cells), time.Since(began).Round(time.Second))
					if _, err := progress.WriteString(text); err != nil {
						errs = append(errs, err)
					}
				}
				mu.Unlock()
			}
		})
	}
	for _, c := range cells {
		queue <- c
	}
	close(queue)
	wait.Wait()
	return errors.Join(errs...)
}

// policyVersion returns a hash of the policy's source files.
func policyVersion() (string, error) {
	sum := sha256.New()
	for _, pattern := range []string{"internal/batching/*.go", "internal/batching/automatic/*.go"} {
		names, err := filepath.Glob(pattern)
		if err != nil {
			return "", err
		}
		if len(names) == 0 {
			return "", errors.New("internal/batching not found: run the command in the root of the repository")
		}
		for _, name := range names {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			text, err := os.ReadFile(name)
			if err != nil {
				return "", err
			}
			sum.Write([]byte(name))
			sum.Write(text)
		}
	}
	return hex.EncodeToString(sum.Sum(nil)[:6]), nil
}
