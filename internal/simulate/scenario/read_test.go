package scenario

import (
	"strings"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/leak"
	"github.com/shoal-serving/shoal/internal/script"
	"github.com/shoal-serving/shoal/internal/simulate"
)

func TestMain(m *testing.M) { leak.Main(m) }

// TestScripts shows the errors of scenarios with mistakes. Each block is a scenario, which
// also runs if it can be read.
func TestScripts(t *testing.T) {
	script.Run(t, "testdata/*.txt", func(*testing.T) func([]string) string {
		return func(lines []string) string {
			s, err := Parse("scenario.yaml", []byte(strings.Join(lines, "\n")))
			if err == nil {
				_, err = s.Run()
			}
			if err != nil {
				return err.Error()
			}
			return "no error"
		}
	})
}

func TestTimesAreParsedInTheUnit(t *testing.T) {
	const ms = time.Millisecond
	x := simulate.Unit{Name: "X", Length: 100 * ms} // a third is not a whole number of nanoseconds
	for text, want := range map[string]time.Duration{"0": 0, "X": 100 * ms, "X/3": 33333333, "2X/3": 66666667, "1.5X": 150 * ms, "25ms": 25 * ms, "7X/3": 233333333} {
		if got, err := parseTime(text, x); err != nil || got != want {
			t.Errorf("%s is %v, %v; want %v", text, got, err, want)
		}
	}
}

// FuzzParse looks for files that crash the program.
func FuzzParse(f *testing.F) {
	f.Add("unit: {X: 300ms}\nmodel: {max_batch_size: 8, takes: X}\narrivals: [{at: X/3, id: A, rows: 4, shape: s}]\nsettings: [{name: a, batching: none}]")
	f.Add("models: [{name: a, table: {1: 1ms}, max_batch_size: 2}]\ndevice: {slots: 1, slowdown: [1, 2]}\nload: {model: a, clients: [1, 2], think: {from: 0, to: 1ms}, requests: 3}")
	f.Add("a: &a [*a]\nmodel: *a\nload: *a")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := Parse("scenario.yaml", []byte(text))
		if err == nil && len(s.Settings) == 0 {
			t.Error("a scenario was read that has no settings")
		}
	})
}
