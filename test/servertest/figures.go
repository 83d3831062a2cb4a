package servertest

import (
	"crypto/sha256"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/bench"
	"github.com/shoal-serving/shoal/internal/machine"
	"github.com/shoal-serving/shoal/test/measure"
)

// Strict asks for the figures that a quiet machine gives, with enough samples to judge
// them. Without it tests are short, and there is room for a busy machine.
var Strict = flag.Bool("strict", false, "measure longer, and judge the figures that are promised")

// StrictOr returns the first value if the tests are strict, and the second if not.
func StrictOr[T any](whenStrict, otherwise T) T {
	if *Strict {
		return whenStrict
	}
	return otherwise
}

// Rounds is how often a pair is measured.
func Rounds() int { return StrictOr(measure.MinSamples, 1) }

// Samples returns the samples of a suite. If the tests are strict, they are kept in
// bin/SUITE.jsonl, and a later run with the same binary continues with them.
func Samples(t *testing.T, suite string) *measure.Samples {
	t.Helper()
	binary, err := os.ReadFile(filepath.Join(Root, "bin", "shoal"))
	if err != nil {
		t.Fatal(err)
	}
	file := StrictOr(filepath.Join(Root, "bin", suite+".jsonl"), filepath.Join(t.TempDir(), suite))
	s, err := measure.OpenSamples(file, fmt.Sprintf("%x", sha256.Sum256(binary))[:12])
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Add keeps a sample.
func Add(t *testing.T, s *measure.Samples, name string, value float64) {
	t.Helper()
	if err := s.Add(name, value); err != nil {
		t.Fatal(err)
	}
}

// Judge fails the test if a gate is missed that is not known to be, and returns a row of
// a Markdown table: gate, figure, bound, outcome. If the tests are not strict, there are too
// few samples for a verdict: then it fails if the figure is not even half as good.
func Judge(t *testing.T, gate string, bound measure.Bound, samples []float64) (row string) {
	t.Helper()
	if !*Strict {
		return roughly(t, gate, bound, samples)
	}
	known, err := measure.KnownMisses()
	if err != nil {
		t.Fatal(err)
	}
	v, err := measure.Judge(gate, bound, samples)
	if err != nil {
		t.Error(err)
		return ""
	}
	note, err := measure.Held(v, known)
	switch {
	case err != nil:
		t.Error(err)
	case note != "":
		t.Log(note)
	default:
		t.Log(v)
	}
	return v.Row()
}

func roughly(t *testing.T, gate string, bound measure.Bound, samples []float64) string {
	t.Helper()
	if len(samples) == 0 {
		t.Errorf("%s: no samples", gate)
		return ""
	}
	mid, _, _ := bench.Median(samples)
	if !(mid >= bound.Low/2 && mid <= 2*bound.High) { // nor is NaN near
		t.Errorf("%s: %.4g, want %v", gate, mid, bound)
	}
	return fmt.Sprintf("| %s | %.4g | %v | no verdict with %d samples |", gate, mid, bound, len(samples))
}

// Hold measures a figure that must be between low and high. If the tests are strict, its
// samples are kept in bin/figures.jsonl, and its median is judged. If not, it must be so once in
// five times: other work on the machine makes it worse now and then, and a defect always. Times at
// which the host of a virtual machine took its processors away say nothing of the server. They do
// not count, for some minutes of all figures together.
func Hold(t *testing.T, name string, low, high float64, figure func() float64) {
	t.Helper()
	gate, bound := t.Name()+": "+name, measure.Between(low, high)
	if *Strict {
		samples := Samples(t, "figures")
		for len(samples.Of(gate)) < measure.MinSamples {
			Add(t, samples, gate, figure())
		}
		Judge(t, gate, bound, samples.Of(gate))
		return
	}
	var last float64
	failed := t.Failed() // for another reason
	for tries := 0; tries < 5; {
		began, stolen := time.Now(), machine.Stolen(machine.Root())
		last = figure()
		took := time.Since(began)
		if t.Failed() && !failed {
			return
		}
		if bound.Miss(last) == 0 {
			t.Logf("%s: %.3f, want %v", gate, last, bound)
			return
		}
		if machine.Stolen(machine.Root())-stolen < took/10 || disturbed.Add(int64(took)) > int64(mostDisturbed) {
			tries++
		}
	}
	t.Errorf("%s: %.3f at the last of five times, want %v", gate, last, bound)
}

// disturbed is the time of the tries that did not count, in nanoseconds.
var disturbed atomic.Int64

const mostDisturbed = 3 * time.Minute
