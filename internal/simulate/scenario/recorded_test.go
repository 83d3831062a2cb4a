package scenario

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoal-serving/shoal/internal/simulate"
)

// twoModels is a recording of requests to two models.
const twoModels = `shoal arrivals 1
0.002 b 2 0
0 a 1 0
0.001 a 4 0
0.001 b 1 0
0.001 a 3 1
`

// loadRecorded writes a scenario and a recording beside it, and loads it.
func loadRecorded(t *testing.T, scenario, recording string) (*simulate.Scenario, error) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"scenario.yaml": scenario, "trace.txt": recording} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	s, err := Load(filepath.Join(dir, "scenario.yaml"))
	if err != nil {
		err = fmt.Errorf("%s", strings.ReplaceAll(err.Error(), dir+"/", ""))
	}
	return s, err
}

// replayed writes the requests of a scenario that are in its timeline.
func replayed(t *testing.T, scenario, recording string) string {
	t.Helper()
	s, err := loadRecorded(t, scenario, recording)
	if err != nil {
		t.Fatal(err)
	}
	report, err := s.Run()
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, q := range report.Runs[0].Requests {
		all = append(all, fmt.Sprintf("%s%s at %v rows %d batch %d", q.Model, q.ID, q.Arrived, q.Rows, q.Batch))
	}
	return strings.Join(all, ", ")
}

func TestARecordingArrivesAsItWasRecorded(t *testing.T) {
	for _, c := range []struct{ name, scenario, want string }{
		{
			"several models, by name",
			"models: [{name: a, max_batch_size: 8, takes: 10ms}, {name: b, max_batch_size: 8, takes: 10ms}]\narrivals: {file: trace.txt}",
			"a1 at 0s rows 1 batch 0, a2 at 1ms rows 4 batch 2, b3 at 1ms rows 1 batch 1, a4 at 1ms rows 3 batch 2, b5 at 2ms rows 2 batch 3",
		},
		{
			"one of them, for a model without a name",
			"model: {max_batch_size: 8, takes: 10ms}\narrivals: {file: trace.txt, model: b}",
			"1 at 1ms rows 1 batch 0, 2 at 2ms rows 2 batch 1",
		},
		{
			"with their priorities",
			"model: {max_batch_size: 4, takes: 10ms, priority_levels: 2, default_priority_level: 2}\narrivals: {file: trace.txt, model: [a]}",
			"1 at 0s rows 1 batch 0, 2 at 1ms rows 4 batch 2, 3 at 1ms rows 3 batch 1",
		},
	} {
		if got := replayed(t, c.scenario, twoModels); got != c.want {
			t.Errorf("%s:\ngot  %s\nwant %s", c.name, got, c.want)
		}
	}
}

func TestARecordingThatDoesNotFitIsAnError(t *testing.T) {
	const model = "model: {max_batch_size: 2, takes: 1ms}\n"
	for arrivals, want := range map[string]string{
		model + "arrivals: {model: a}":       "scenario.yaml:2: arrivals must be a list of requests, or name a recording: {file: trace.txt}",
		model + "arrivals: {file: none.txt}": "scenario.yaml:2: open none.txt: no such file or directory",
		model + "arrivals: {file: scenario.yaml}": `scenario.yaml:2: scenario.yaml:1: not a recording of arrivals: ` +
			`the first line is "model: {max_batch_size: 2, takes: 1ms}", expected "shoal arrivals 1"`,
		model + "arrivals: {file: trace.txt, models: a}":     `scenario.yaml:2: a recording has no field "models"; its fields are file, model`,
		model + "arrivals: {file: trace.txt, model: [c, d]}": "scenario.yaml:2: trace.txt has no arrivals for c, d",
		model + "arrivals: {file: trace.txt, model: a}":      "scenario.yaml:2: trace.txt has a request of 4 rows, but the model has a max_batch_size of 2",
		"model: {max_batch_size: 8, takes: 1ms}\narrivals: {file: trace.txt}": `scenario.yaml:2: trace.txt has arrivals for "a" and "b", ` +
			`but the scenario has one model: choose whose requests it receives, such as model: a`,
		"models: [{name: a, max_batch_size: 8, takes: 1ms}]\narrivals: {file: trace.txt}": `scenario.yaml:2: trace.txt has arrivals for the unknown model "b": ` +
			`add the model, or choose whose requests are used, such as model: NAME`,
	} {
		if _, err := loadRecorded(t, arrivals, twoModels); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	}
}
