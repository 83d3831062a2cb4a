package matrix

import (
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

// reduced is a part of the matrix that is run with each commit.
func reduced() []*Cell {
	var cells []*Cell
	for _, c := range Tuned() {
		switch c.Model.Name {
		case "flat", "mid", "proportional", "step":
		default:
			continue
		}
		for _, name := range []string{"closed N=2 think 200µs", "closed N=16 think 200µs", "closed N=16 think 3ms", "poisson 0.3", "poisson 0.7", "bursts of 8 0.5", "mmpp 0.2/0.9 200ms/100ms"} {
			if c.Traffic.Name == name && c.Drift == 0 {
				cells = append(cells, c)
			}
		}
	}
	return cells
}

var (
	// With two seeds in place of four, one batch that takes three times as long at a busy
	// moment makes the 99th percentile of 30,000 requests miss.
	shortEffort = Effort{Screen: 1_500, Second: 5_000, Full: 30_000, Seeds: 4, Keep: 6, Finals: 2, Minutes: time.Minute, OneGuard: true}

	// Room for four runs of 30,000 requests in place of five of 100,000. It is a
	// choice and not a calculation.
	shortSlack = Slack{Mean: 0.01, Tail: 0.04}
)

// tryAll runs cells on all cores.
func tryAll(t *testing.T, cells []*Cell, s Subject, e Effort) []Pair {
	t.Helper()
	if slower {
		t.Skip("figures do not differ with the race detector, and take ten times as long")
	}
	pairs := make([]Pair, len(cells))
	next := make(chan int) // without room: whoever is free takes the next
	var wait sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wait.Go(func() {
			for i := range next {
				oracle, err := Ask(cells[i], e)
				if err != nil {
					t.Error(err)
					continue
				}
				trial, err := Try(cells[i], s, e)
				if err != nil {
					t.Error(err)
				}
				pairs[i] = Pair{Cell: cells[i], Oracle: oracle, Trial: trial}
			}
		})
	}
	for i := range cells {
		next <- i
	}
	close(next)
	wait.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return pairs
}

func TestTheReducedMatrixKeepsTheGates(t *testing.T) {
	pairs := tryAll(t, reduced(), Automatic, shortEffort)
	for _, v := range Judge(pairs, shortSlack, 3) {
		switch {
		case v.NotRun:
		case v.Kept:
			t.Logf("%s kept: %s", v.Gate, v.Measured)
		default:
			t.Errorf("%s missed: %s\nrequired: %s\n%s", v.Gate, v.Measured, v.Requires, strings.Join(v.Worst, "\n"))
		}
	}
}

func TestAPolicyThatNeverWaitsFailsTheMatrix(t *testing.T) {
	var cells []*Cell
	for _, c := range reduced() {
		if small(c) {
			cells = append(cells, c)
		}
	}
	e := shortEffort
	e.Full, e.Minutes = 5_000, 0
	for _, v := range Judge(tryAll(t, cells, Greedy, e), shortSlack, 1) {
		if (v.Gate == "A1" || v.Gate == "A2") && (v.Kept || v.NotRun) {
			t.Errorf("the greedy rule keeps %s: %s", v.Gate, v.Measured)
		}
	}
}
