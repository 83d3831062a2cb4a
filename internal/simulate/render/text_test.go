package render

import (
	"strings"
	"testing"

	"github.com/shoal-serving/shoal/internal/simulate/scenario"
)

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
