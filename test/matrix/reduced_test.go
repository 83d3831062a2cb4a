package matrix

import (
	"encoding/json"
	"flag"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// reduced returns the cells that are run as a test.
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
	// With two seeds instead of four, a single outlier at a busy moment would make the p99
	// of 30,000 requests miss.
	reducedEffort = Effort{Screen: 1_500, Second: 5_000, Full: 30_000, Seeds: 4, Keep: 6, Finals: 2, Minutes: time.Minute, OneGuard: true}

	// Slack for four runs of 30,000 requests instead of five of 100,000, chosen and not
	// computed.
	reducedSlack = Slack{Mean: 0.01, Tail: 0.04}
)

// forEachCell calls do for all cells, on all cores.
func forEachCell(cells []*Cell, do func(i int, c *Cell)) {
	next := make(chan int) // unbuffered: a free worker takes the next cell
	var wait sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wait.Go(func() {
			for i := range next {
				do(i, cells[i])
			}
		})
	}
	for i := range cells {
		next <- i
	}
	close(next)
	wait.Wait()
}

// evaluateAll runs cells with a subject, and with the static settings that find returns.
func evaluateAll(t *testing.T, cells []*Cell, s Subject, e Effort, find func(*Cell) (*Oracle, error)) []Pair {
	t.Helper()
	if raceEnabled {
		t.Skip("figures do not differ with the race detector, and take ten times as long")
	}
	pairs := make([]Pair, len(cells))
	forEachCell(cells, func(i int, c *Cell) {
		oracle, err := find(c)
		if err != nil {
			t.Error(err)
			return
		}
		trial, err := Evaluate(c, s, e)
		if err != nil {
			t.Error(err)
		}
		pairs[i] = Pair{Cell: c, Oracle: oracle, Trial: trial}
	})
	if t.Failed() {
		t.FailNow()
	}
	return pairs
}

// bestFile has the best static settings of the reduced cells, by the cell's key. Searching
// the grid takes most of the time of the matrix and depends only on the simulator and the
// static rule, so the test measures the settings that an earlier search found.
const bestFile = "testdata/best.json"

var rewrite = flag.Bool("rewrite", false, "search for the best static settings again, and store them")

// best is an entry of bestFile.
type best struct {
	Name     string   `json:"name"`
	Settings []Static `json:"settings"`
}

func bestOf(o *Oracle) best {
	b := best{Name: o.Name}
	for _, metric := range slices.Sorted(maps.Keys(o.Best)) {
		if s := o.Best[metric].Setting; !slices.Contains(b.Settings, s) {
			b.Settings = append(b.Settings, s)
		}
	}
	return b
}

// storedBest reads bestFile, after writing it if the test runs with -rewrite.
func storedBest(t *testing.T) map[string]best {
	t.Helper()
	if *rewrite {
		writeBest(t)
	}
	text, err := os.ReadFile(bestFile)
	if err != nil {
		t.Fatal(err)
	}
	var all map[string]best
	if err := json.Unmarshal(text, &all); err != nil {
		t.Fatal(err)
	}
	return all
}

func writeBest(t *testing.T) {
	t.Helper()
	cells := reduced()
	oracles := make([]*Oracle, len(cells))
	forEachCell(cells, func(i int, c *Cell) {
		var err error
		if oracles[i], err = FindBest(c, reducedEffort); err != nil {
			t.Error(err)
		}
	})
	if t.Failed() {
		t.FailNow()
	}
	all := map[string]best{}
	for _, o := range oracles {
		all[o.Cell] = bestOf(o)
	}
	text, err := json.MarshalIndent(all, "", "\t")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(bestFile, append(text, '\n'), 0o644); err != nil {
		t.Fatal(err)
	}
}

// reducedCells is the number of comparisons that each gate makes in the reduced matrix: a
// cell that is renamed or removed must not leave a gate without cells.
var reducedCells = map[string]int{"A1": 12, "A2": 2, "A3": 16, "A4": 16, "A5": 7, "A6": 7, "A9": 42}

func TestTheReducedMatrixKeepsTheGates(t *testing.T) {
	stored := storedBest(t)
	pairs := evaluateAll(t, reduced(), Automatic, reducedEffort, func(c *Cell) (*Oracle, error) {
		return BestOf(c, stored[c.Key()].Settings, reducedEffort)
	})
	cells := map[string]int{}
	for _, v := range Judge(pairs, reducedSlack, 3) {
		cells[v.Gate] = v.Cells
		if v.Kept() {
			t.Logf("%s kept: %s", v.Gate, v.Measured)
		} else {
			t.Errorf("%s missed: %s\nrequired: %s\n%s", v.Gate, v.Measured, v.Requires, strings.Join(v.Worst, "\n"))
		}
	}
	if !maps.Equal(cells, reducedCells) {
		t.Errorf("the gates have these numbers of cells: %v\nwant: %v", cells, reducedCells)
	}
}

// Every cell of the reduced matrix has stored settings, and those of a few cells are what
// a search finds now. If not, the simulator or the static rule has changed: run the test
// with -rewrite.
func TestTheStoredSettingsAreTheBest(t *testing.T) {
	stored := storedBest(t)
	if cells := reduced(); len(stored) != len(cells) {
		t.Errorf("%d cells have stored settings, want %d: run the test with -rewrite", len(stored), len(cells))
	}
	var searched []*Cell
	for _, c := range reduced() {
		if stored[c.Key()].Name != c.Name() {
			t.Errorf("%s has no stored settings: run the test with -rewrite", c.Name())
		}
		if c.Model.Name == "flat" && c.Traffic.Name != "closed N=2 think 200µs" {
			searched = append(searched, c) // the cells with the fastest search
		}
	}
	if raceEnabled {
		t.Skip("figures do not differ with the race detector, and take ten times as long")
	}
	forEachCell(searched, func(_ int, c *Cell) {
		o, err := FindBest(c, reducedEffort)
		if err != nil {
			t.Error(err)
			return
		}
		if got, want := bestOf(o), stored[c.Key()]; !slices.Equal(got.Settings, want.Settings) {
			t.Errorf("%s: the best settings are %v, but %v are stored: run the test with -rewrite", c.Name(), got.Settings, want.Settings)
		}
	})
	if len(searched) != 6 {
		t.Errorf("%d cells were searched, want 6", len(searched))
	}
}

func TestAPolicyThatNeverWaitsFailsTheMatrix(t *testing.T) {
	var cells []*Cell
	for _, c := range reduced() {
		if isSmallClosedLoop(c) {
			cells = append(cells, c)
		}
	}
	e := reducedEffort
	e.Full, e.Minutes = 5_000, 0
	find := func(c *Cell) (*Oracle, error) { return FindBest(c, e) }
	for _, v := range Judge(evaluateAll(t, cells, Greedy, e, find), reducedSlack, 1) {
		if (v.Gate == "A1" || v.Gate == "A2") && (v.Kept() || v.NotRun) {
			t.Errorf("the greedy rule keeps %s: %s", v.Gate, v.Measured)
		}
	}
}
