package scenario

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/simulate/cell"
)

func writeCell(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "cell.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestACellFileIsOneWithNodes(t *testing.T) {
	for text, want := range map[string]bool{
		"nodes: {count: 3}\nmodels: []": true,
		"model: {takes: 1ms}":           false,
		"":                              false,
		"nodes":                         false,
		"- nodes":                       false,
	} {
		if IsCell([]byte(text)) != want {
			t.Errorf("%q is a cell: %v", text, !want)
		}
	}
}

func TestARecordingFitsTheModelsOfACell(t *testing.T) {
	file := writeCell(t, "nodes: {count: 1}\nmodels: [{name: a, fixed: 5ms, max_batch_size: 2}]\nrecorded: trace.txt")
	if err := os.WriteFile(filepath.Join(filepath.Dir(file), "trace.txt"), []byte("shoal arrivals 1\n6.0 a 3 0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := LoadCell(file)
	const want = `trace.txt has a request of 3 rows, but model "a" has a max_batch_size of 2`
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestACellFileIsRead(t *testing.T) {
	study, err := LoadCell(writeCell(t, `
title: t
nodes: {count: 6, zones: 3, memory: 2GiB}
models:
  - {name: a, rate: 10, fixed: 5ms, per_row: 0.5ms, max_batch_size: 8, memory: 300MB, objective: 50ms, load_time: 1s, tenant: x}
  - {name: b, rate: 1, fixed: 1ms}
proxies: 4
network: 1ms
balancer: [active set, ring hash]
duration: 20s
warm_up: 2s
load: [{at: 0, times: 0.5}, {at: 10s, times: 2}]
reports: {every: 2s, late: 1, error: 1.5}
events: [{at: 3s, kind: zone lost, name: zone-1}]
seed: 7
`))
	if err != nil {
		t.Fatal(err)
	}
	c := study.Cell
	if len(c.Nodes) != 6 || c.Nodes[4] != (cell.Node{Name: "node-0004", Zone: "zone-1", Bytes: 2 << 30}) {
		t.Errorf("nodes %v", c.Nodes)
	}
	a := c.Models[0]
	if a.Name != "a" || a.Tenant != "x" || a.Rate != 10 || a.Curve.Takes(2) != 6*time.Millisecond || a.MaxRows != 8 || a.Bytes != 3e8 || a.Objective != 50*time.Millisecond || a.LoadTime != time.Second {
		t.Errorf("model %+v", a)
	}
	if b := c.Models[1]; b.MaxRows != 32 || b.LoadTime != 2*time.Second || b.Objective != 0 {
		t.Errorf("defaults of a model: %+v", b)
	}
	if c.Proxies != 4 || c.Network != time.Millisecond || c.Duration != 20*time.Second || c.WarmUp != 2*time.Second || c.Seed != 7 ||
		c.ReportEvery != 2*time.Second || c.ReportDelay != 1 || c.RateError != 1.5 || len(c.Load) != 2 || c.Events[0].Kind != cell.ZoneLost {
		t.Errorf("cell %+v", c)
	}
	if len(study.Balancers) != 2 || study.Balancers[1] != cell.RingHash {
		t.Errorf("balancers %v", study.Balancers)
	}
}

func TestRecordedArrivalsOfACell(t *testing.T) {
	file := writeCell(t, "nodes: {count: 1}\nmodels: [{name: a, fixed: 1ms}]\nrecorded: trace.txt\n")
	trace := filepath.Join(filepath.Dir(file), "trace.txt")
	if err := os.WriteFile(trace, []byte("shoal arrivals 1\n0.5 a 2 0\n6 a 1 0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	study, err := LoadCell(file)
	if err != nil {
		t.Fatal(err)
	}
	if got := study.Cell.Recorded; len(got) != 2 || got[0] != (cell.Arrival{At: 500 * time.Millisecond, Rows: 2}) {
		t.Errorf("recorded %v", got)
	}
}

func TestMistakesInACellFileAreReportedWithTheirLines(t *testing.T) {
	_, err := LoadCell(writeCell(t, `nodes: {count: 0, zoens: 3, memory: many}
models: [{name: a, fixed: 1ms}, {name: a, fixed: 1ms}, {rate: -1}]
balancer: best
load: [{at: 5s}, {at: 1s}]
events: [{kind: sunspots}]
duration: 1s
recorded: missing.txt
`))
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{
		`cell.yaml:1: "0" is not a whole number from 1 to 10000`,
		`cell.yaml:1: nodes has no field "zoens"`,
		`cell.yaml:1: "many" is not a size such as 16GiB or 300MB`,
		`cell.yaml:2: duplicate model name "a"`,
		`cell.yaml:2: "-1" is negative`,
		`cell.yaml:2: a model needs a name`,
		`cell.yaml:3: "best" is not one of active set, least request, round robin, ring hash`,
		`cell.yaml:4: changes of the load must be in the order of time`,
		`cell.yaml:5: "sunspots" is not one of node lost`,
		`must be longer than warm_up`,
		`missing.txt`,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in\n%v", want, err)
		}
	}
}
