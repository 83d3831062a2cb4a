package metrics

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// exported returns the names of the series of a server, with those of archives.
func exported(t *testing.T) []string {
	t.Helper()
	src := busy()
	src.figures[0].Scaled = true
	var names []string
	for line := range strings.SplitSeq(scrape(t, src), "\n") {
		if name, _, ok := strings.Cut(line, "{"); ok && !strings.HasPrefix(line, "#") {
			names = append(names, name)
		} else if name, _, ok := strings.Cut(line, " "); ok && !strings.HasPrefix(line, "#") {
			names = append(names, name)
		}
	}
	return names
}

// metricName matches what can only be the name of a metric in an expression.
var metricName = regexp.MustCompile(`\b(?:nv|shoal|ts|go|process)_[a-z_]+\b`)

// missing returns the metrics in the expressions that no server has.
func missing(names, expressions []string) (all []string) {
	for _, e := range expressions {
		for _, name := range metricName.FindAllString(e, -1) {
			if !slices.Contains(names, name) {
				all = append(all, name)
			}
		}
	}
	return all
}

// dashboardExpressions returns the queries of a Grafana dashboard, those of its variables too.
func dashboardExpressions(t *testing.T, file string) (all []string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Templating struct {
			List []struct{ Query string }
		}
		Panels []struct {
			Title, Description string
			Targets            []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(text, &dashboard); err != nil {
		t.Fatal(err)
	}
	for _, v := range dashboard.Templating.List {
		all = append(all, v.Query)
	}
	for _, p := range dashboard.Panels {
		if p.Description == "" || len(p.Targets) == 0 {
			t.Errorf("panel %q has no description or no query", p.Title)
		}
		for _, query := range p.Targets {
			all = append(all, query.Expr)
		}
	}
	return all
}

func TestTheDashboardUsesOnlyMetricsThatExist(t *testing.T) {
	expressions := dashboardExpressions(t, "../../deploy/grafana/shoal.json")
	if got := missing(exported(t), expressions); got != nil || len(expressions) < 10 {
		t.Errorf("%d queries; no server has %q", len(expressions), got)
	}
}

func TestTheDashboardUsesOnlyMetricsThatExistBites(t *testing.T) {
	got := missing(exported(t), []string{`sum by (model) (rate(nv_inference_count{model="shoal"}[5m])) / shoal_gone`, "shoal_batch_size"})
	if want := []string{"shoal_gone", "shoal_batch_size"}; !slices.Equal(got, want) {
		t.Errorf("found %q, want %q: a histogram has no series of its own name", got, want)
	}
}

// TestAlertsUseMetricsThatExistAndHaveARunbook checks what promtool does not.
func TestAlertsUseMetricsThatExistAndHaveARunbook(t *testing.T) {
	text, err := os.ReadFile("../../deploy/prometheus/shoal.rules.yml")
	if err != nil {
		t.Fatal(err)
	}
	var rules struct {
		Groups []struct {
			Rules []struct {
				Alert, Expr         string
				Labels, Annotations map[string]string
			}
		}
	}
	if err := yaml.Unmarshal(text, &rules); err != nil {
		t.Fatal(err)
	}
	guide, err := os.ReadFile("../../docs/how-to/monitor.md")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			n++
			if got := missing(exported(t), []string{r.Expr}); got != nil {
				t.Errorf("%s: no server has %q", r.Alert, got)
			}
			if strings.Contains(r.Expr, "shoal_instances_alive == 0") && !strings.Contains(r.Expr, "and shoal_instances > 0") {
				t.Errorf("%s: %q is the case of a model that clients scaled to no workers, too", r.Alert, r.Expr)
			}
			if want := "docs/how-to/monitor.md#" + strings.ToLower(r.Alert); r.Annotations["runbook"] != want || !strings.Contains(string(guide), "\n### "+r.Alert+"\n") {
				t.Errorf("%s: the runbook is %q, want %s, a section of the guide", r.Alert, r.Annotations["runbook"], want)
			}
			if s := r.Labels["severity"]; s != "page" && s != "ticket" {
				t.Errorf("%s: severity %q", r.Alert, s)
			}
		}
	}
	if n < 5 {
		t.Errorf("found %d alerts", n)
	}
}
