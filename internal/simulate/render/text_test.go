package render

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoal-serving/shoal/internal/simulate/scenario"
)

func TestTheTimelineOfARecordingBeginsWithItsFirstRequest(t *testing.T) {
	const text = `
models: [{name: a, max_batch_size: 4, takes: 10ms}, {name: b, max_batch_size: 2, takes: 5ms}]
arrivals: {file: trace.txt}
settings: [{name: all}, {name: few, models: {a: {default_queue_policy: {max_queue_size: 1}}}}]`
	shown := func(began int) (lines, picture string) {
		dir := t.TempDir()
		var trace strings.Builder
		trace.WriteString("shoal arrivals 1\n")
		for i, rest := range []string{"a 2 0", "a 3 0", "a 1 0", "b 1 0", "b 2 0", "a 4 0"} {
			fmt.Fprintf(&trace, "%d.%03d %s\n", began, 4*i, rest)
		}
		for name, text := range map[string]string{"scenario.yaml": text, "trace.txt": trace.String()} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		s, err := scenario.Load(filepath.Join(dir, "scenario.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		report, err := s.Run()
		if err != nil {
			t.Fatal(err)
		}
		if len(report.Runs[1].Total.Refused) == 0 {
			t.Error("no request is refused, which is a part of the timeline, too")
		}
		var table, svg strings.Builder
		if err := errors.Join(Text(&table, report, 100), SVG(&svg, report, SVGOptions{})); err != nil {
			t.Fatal(err)
		}
		if report.Runs[0].Requests[0].Arrived.Seconds() != float64(began) {
			t.Error("the report was changed")
		}
		return table.String(), svg.String()
	}
	now, picture := shown(0)
	later, other := shown(5000)
	if now != later {
		t.Errorf("a recording that begins at 0 is shown as\n%s\nand 5000 s later as\n%s", now, later)
	}
	if picture != other {
		t.Error("the pictures differ")
	}
}

func TestTextDescribesTheAutomaticPolicy(t *testing.T) {
	s, err := scenario.Parse("scenario.yaml", []byte("model: {max_batch_size: 8, fixed: 2ms, per_row: 1ms}\nsettings:\n- {name: Triton's}\n- {name: Automatic, batching: automatic}\n"+
		"load: {clients: 4, think: 0.1ms, requests: 1000}"))
	if err != nil {
		t.Fatal(err)
	}
	report, err := s.Run()
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	if err := Text(&text, report, 100); err != nil {
		t.Fatal(err)
	}
	const want = "Automatic: batches filled up to 8 rows; a closed loop of about 4 clients"
	if n := strings.Count(text.String(), "batches filled up to"); n != 1 || !strings.Contains(text.String(), want) {
		t.Errorf("the policy is described %d times, want once, as %q:\n%s", n, want, &text)
	}
	if p := report.Runs[1].Policies; len(p) != 1 || p[0].TargetRows != 8 || len(report.Runs[0].Policies) != 0 {
		t.Errorf("the policies are %+v", p)
	}
}

func TestALongNameOfAUnitFitsANarrowTerminal(t *testing.T) {
	got := show("", "unit: {"+strings.Repeat("Tick", 12)+": 1ms}\nmodel: {max_batch_size: 4, takes: 3ms}\narrivals: [{at: 0, id: a}]", 60)
	if !strings.Contains(got, "last answer 3Tick") {
		t.Errorf("got %s", got)
	}
}

func TestRefusedRequestsAreShownWhereALoadVaries(t *testing.T) {
	got := show("", "model: {max_batch_size: 1, takes: 10ms, default_queue_policy: {max_queue_size: 1}}\nload: {rate: [10, 1000], pattern: constant, requests: 100}", 100)
	const want = "refused in %, by rate"
	if _, table, ok := strings.Cut(got, want); !ok || !strings.Contains(table, "0.00") || !strings.Contains(table, "89") {
		t.Errorf("the tables have no %q with 0.00 and 89:\n%s", want, got)
	}
	if got := show("", "model: {max_batch_size: 1, takes: 10ms}\nload: {rate: [10, 1000], pattern: constant, requests: 100}", 100); strings.Contains(got, "refused") {
		t.Errorf("no request is refused:\n%s", got)
	}
}
