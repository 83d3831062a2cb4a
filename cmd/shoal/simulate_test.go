package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	_ "github.com/shoal-serving/shoal/internal/script" // for its flag -rewrite
	"github.com/shoal-serving/shoal/internal/simulate"
	"github.com/shoal-serving/shoal/internal/simulate/cell"
	"github.com/shoal-serving/shoal/internal/simulate/scenario"
)

func simulateCommand(t *testing.T, args ...string) (out string, err error) {
	t.Helper()
	var buf bytes.Buffer
	cmd := newSimulateCommand()
	cmd.SetArgs(append([]string{}, args...)) // with nil it would take those of the test
	cmd.SetOut(&buf)
	cmd.SetErr(&buf)
	err = cmd.ExecuteContext(t.Context())
	return buf.String(), err
}

const aToE = "../../examples/scenarios/a-to-e.yaml"

func TestSimulateWritesTextPictureAndFigures(t *testing.T) {
	dir := t.TempDir()
	svg, figures := filepath.Join(dir, "a.svg"), filepath.Join(dir, "a.json")
	out, err := simulateCommand(t, aToE, "--svg", svg, "--json", figures, "--width", "80")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out, "│ A C") || !strings.Contains(out, "── one at a time ────") {
		t.Errorf("the timeline is missing:\n%s", out)
	}
	for _, file := range []string{svg, figures} {
		if info, err := os.Stat(file); err != nil || info.Size() == 0 {
			t.Errorf("%s was not written: %v", file, err)
		}
	}
}

func TestSimulateGivesFiguresToOtherPrograms(t *testing.T) {
	out, err := simulateCommand(t, aToE, "--setting", "dynamic batching", "--json", "-")
	if err != nil {
		t.Fatal(err)
	}
	var report simulate.Report
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		t.Fatalf("the output is not JSON alone: %v", err)
	}
	if len(report.Runs) != 1 || report.Runs[0].Total.Batches != 3 {
		t.Errorf("got %+v", report.Runs)
	}
}

func TestSimulateSaysWhatIsWrong(t *testing.T) {
	wrong := filepath.Join(t.TempDir(), "wrong.yaml")
	if err := os.WriteFile(wrong, []byte("model: {takes: 1ms, max_batch_size: 2}\narivals: []\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{wrong}, `wrong.yaml:2: a scenario has no field "arivals"`},
		{[]string{"no-such.yaml"}, "no-such.yaml: no such file"},
		{[]string{aToE, "--setting", "none"}, `no setting "none"; it has "one at a time"`},
		{[]string{aToE, "--svg", "no/such/folder/a.svg"}, "no/such/folder/a.svg"},
		{[]string{aToE, "--svg", "-", "--json", "-"}, "--svg and --json cannot both write to stdout; name a file for one of them"},
		{nil, "name a scenario"},
	} {
		if _, err := simulateCommand(t, c.args...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("simulate %v: %v, want %q", c.args, err, c.want)
		}
	}
}

// rewrite reports whether the tests were asked to bring files up to date.
func rewrite() bool { return flag.Lookup("rewrite").Value.String() == "true" }

func TestThePicturesInTheDocumentationAreUpToDate(t *testing.T) {
	for name, args := range map[string][]string{
		"a-to-e.svg":              {aToE},
		"untouched-timelines.svg": {"../../examples/scenarios/untouched.yaml"},
		"overload-timelines.svg":  {"../../examples/scenarios/overload.yaml", "--setting", "without admission", "--setting", "with admission"},
	} {
		want, err := simulateCommand(t, append(args, "--svg", "-", "--play")...)
		if err != nil {
			t.Fatal(err)
		}
		file := "../../docs/pictures/" + name
		if rewrite() {
			if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		got, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != want {
			t.Errorf("%s is not what the command draws now: run this test with -rewrite, and look at the picture", file)
		}
	}
}

var yamlBlock = regexp.MustCompile("(?s)```yaml\n(.*?)```")

func TestTheScenariosInTheDocumentationRun(t *testing.T) {
	text, err := os.ReadFile("../../docs/reference/simulate.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := yamlBlock.FindAllSubmatch(text, -1)
	if len(blocks) == 0 {
		t.Fatal("docs/reference/simulate.md has no scenario")
	}
	for _, block := range blocks {
		s, err := scenario.Parse("docs/reference/simulate.md", block[1])
		if err != nil {
			t.Errorf("this does not load: %v\n%s", err, block[1])
			continue
		}
		if _, err := s.Run(); err != nil {
			t.Errorf("this does not run: %v\n%s", err, block[1])
		}
	}
}

const cellFile = "../../examples/scenarios/cell.yaml"

func TestSimulateRunsACell(t *testing.T) {
	svg := filepath.Join(t.TempDir(), "cell.svg")
	out, err := simulateCommand(t, cellFile, "--svg", svg)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"active set   least request", "in the objective", "nodes                                9", "loads on demand"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	picture, err := os.ReadFile(svg)
	if err != nil || !strings.Contains(string(picture), "<polyline") || !strings.Contains(string(picture), "least request: ") {
		t.Errorf("the picture is %s, %v", picture, err)
	}
}

func TestSimulateFindsTheSmallestCell(t *testing.T) {
	out, err := simulateCommand(t, cellFile, "--nodes", "auto", "--json", "-")
	if err != nil {
		t.Fatal(err)
	}
	var report cell.Report
	if err := json.Unmarshal([]byte(out[strings.Index(out, "{"):]), &report); err != nil {
		t.Fatal(err)
	}
	n := report.NodesNeeded
	if n < 4 || n > 20 || report.Results[0].Nodes != n || report.Results[0].InObjective < cell.Wanted {
		t.Errorf("%d nodes: %+v", n, report.Results[0])
	}
	if want := fmt.Sprintf("%d nodes: ", n-1); !strings.Contains(out, want) {
		t.Errorf("%d nodes suffice, and %d were not tried:\n%s", n, n-1, out)
	}
}

func TestFlagsOfCellsAndScenariosAreNotMixed(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{aToE, "--nodes", "3"}, "--nodes is for cells, and the file has no field nodes"},
		{[]string{cellFile, "--setting", "x"}, "--setting is for scenarios; a cell has the field balancer"},
		{[]string{cellFile, "--play"}, "--play is for scenarios, and the file describes a cell"},
		{[]string{cellFile, "--width", "80"}, "--width is for scenarios, and the file describes a cell"},
		{[]string{aToE, "--setting", "none"}, `no setting "none"`},
		{[]string{cellFile, "--nodes", "few"}, `--nodes is "few", and must be auto or a number from 1 to 10000`},
	} {
		if _, err := simulateCommand(t, c.args...); err == nil || !strings.Contains(err.Error(), c.want) || exitStatus(err) != exitMisuse {
			t.Errorf("%v: %v, want %q as wrong usage", c.args, err, c.want)
		}
	}
}
