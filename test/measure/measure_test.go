package measure

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A verdictCase is one of testdata/verdicts.json, which both languages pass.
type verdictCase struct {
	Name      string    `json:"name"`
	Low, High *float64  // of the bound; missing means infinite
	Samples   []float64 `json:"samples"`
	Known     []Known   `json:"known"`
	Want      struct {
		Error        string `json:"error"`
		Text         string `json:"text"`
		Fails        bool   `json:"fails"`
		OnlyInterval bool   `json:"only_interval"`
		Says         string `json:"says"`
	} `json:"want"`
}

func TestVerdicts(t *testing.T) {
	text, err := os.ReadFile("testdata/verdicts.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []verdictCase
	if err := json.Unmarshal(text, &cases); err != nil {
		t.Fatal(err)
	}
	for _, c := range cases {
		t.Run(c.Name, func(t *testing.T) {
			bound := Nothing()
			if c.Low != nil {
				bound.Low = *c.Low
			}
			if c.High != nil {
				bound.High = *c.High
			}
			v, err := Judge("gate", bound, c.Samples)
			if err != nil || c.Want.Error != "" {
				if fmt.Sprint(err) != c.Want.Error {
					t.Fatalf("error %v, want %q", err, c.Want.Error)
				}
				return
			}
			note, err := Held(v, c.Known)
			if err != nil {
				note = err.Error()
			}
			if len(c.Known) == 0 {
				note = ""
			}
			if v.String() != c.Want.Text || (err != nil) != c.Want.Fails || v.OnlyInterval() != c.Want.OnlyInterval || note != c.Want.Says {
				t.Errorf("%v; fails %v, only the interval %v, says %q\nwant %+v", v, err != nil, v.OnlyInterval(), note, c.Want)
			}
		})
	}
}

func TestPythonHasTheSameVerdicts(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip(err)
	}
	for _, program := range [][]string{{"measure.py", "testdata/verdicts.json"}, {"measure_test.py"}} {
		cmd := exec.Command(python, program...)
		cmd.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v: %v\n%s", program, err, out)
		}
	}
}

func TestAValueThatIsNoNumberHasNoVerdict(t *testing.T) {
	for _, v := range []float64{math.NaN(), math.Inf(1)} {
		if got, err := Judge("gate", AtLeast(0), []float64{1, 1, 1, v, 1, 1, 1}); err == nil {
			t.Errorf("%v among the samples: %v", v, got)
		}
	}
	if Between(0, 1).Miss(math.NaN()) == 0 {
		t.Error("what is not a number keeps to a bound")
	}
}

func TestAFigureThatPromisesNothingHasNoOutcome(t *testing.T) {
	v, err := Judge("µs", Nothing(), []float64{1, 2, 3, 4, 5, 6, 7})
	if err != nil || v.Row() != "| µs | 4 [1, 7] |  |  |" || v.String() != "µs: 4 [1, 7]" {
		t.Errorf("%q, %q, %v", v.Row(), v, err)
	}
}

func TestKnownMissesHaveADateAndAReason(t *testing.T) {
	if _, err := KnownMisses(); err != nil {
		t.Error(err)
	}
	for _, text := range []string{
		`[{"gate": "a", "figure": 1, "date": "2026-11-15"}]`,
		`[{"gate": "a", "figure": 1, "reason": "why"}]`,
		`[{"gate": "a", "figure": 1, "date": "2026-11-15", "reason": "why", "until": "never"}]`,
		`[{"gate": "a", "figure": 1, "date": "d", "reason": "r"}, {"gate": "a", "figure": 1, "date": "d", "reason": "r"}]`,
	} {
		if all, err := readKnown([]byte(text)); err == nil {
			t.Errorf("%s was read as %v", text, all)
		}
	}
}

func TestSamplesAreKeptForTheSameBinary(t *testing.T) {
	file := filepath.Join(t.TempDir(), "samples.jsonl")
	add := func(under string, value float64) {
		t.Helper()
		s, err := OpenSamples(file, under)
		if err == nil {
			err = s.Add("figure", value)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	add("old", 1)
	add("new", 2)
	add("new", 3)
	s, err := OpenSamples(file, "new")
	if err != nil || !slices.Equal(s.Of("figure"), []float64{2, 3}) || s.Of("another") != nil {
		t.Errorf("%v, %v", s.Of("figure"), err)
	}
	if err := s.Add("base", 4); err != nil || !slices.Equal(s.Ratios("figure", "base"), []float64{0.5}) {
		t.Errorf("ratios %v, %v", s.Ratios("figure", "base"), err)
	}
}

func TestALineThatWasCutOffIsMeasuredAgain(t *testing.T) {
	file := filepath.Join(t.TempDir(), "log.jsonl")
	if err := os.WriteFile(file, []byte("1\n\n2\n3"), 0o644); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		l, err := OpenLog(file, func(n int) bool { return n > 1 })
		if err != nil || !slices.Equal(l.All(), []int{2}) {
			t.Fatalf("%v, %v", l, err)
		}
	}
	l, err := OpenLog(file, func(int) bool { return true })
	if err == nil {
		err = l.Add(4)
	}
	text, _ := os.ReadFile(file)
	if err != nil || string(text) != "1\n\n2\n4\n" || !slices.Equal(l.All(), []int{1, 2, 4}) {
		t.Errorf("%q, %v, %v", text, l.All(), err)
	}
	if err := os.WriteFile(file, []byte("1\nx\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenLog(file, func(int) bool { return true }); err == nil || !strings.Contains(err.Error(), ":2:") {
		t.Errorf("a line that is no number: %v", err)
	}
}

func TestEachRoundBeginsWithAnotherSide(t *testing.T) {
	for round, want := range [][]int{{0, 1, 2}, {1, 2, 0}, {2, 0, 1}, {0, 1, 2}} {
		if got := slices.Collect(Turn(round, 3)); !slices.Equal(got, want) {
			t.Errorf("round %d: %v, want %v", round, got, want)
		}
	}
	order := ""
	side := func(name string) func() string {
		return func() string { order += name; return name }
	}
	for round := range 3 {
		if a, b := Pair(round, side("a"), side("b")); a != "a" || b != "b" {
			t.Errorf("round %d: %s and %s", round, a, b)
		}
	}
	if order != "abbaab" {
		t.Errorf("the order was %s", order)
	}
}
