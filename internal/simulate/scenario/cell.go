package scenario

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/shoal-serving/shoal/internal/arrivals"
	"github.com/shoal-serving/shoal/internal/simulate/cell"
)

// MaxNodes is the largest number of nodes of a cell.
const MaxNodes = 10_000

// Further limits of a cell.
const (
	maxCellModels = 1_000_000
	maxProxies    = 1_000
)

// IsCell reports whether the text is a cell file: only those have the field nodes.
func IsCell(text []byte) bool {
	var top struct {
		Nodes yaml.Node `yaml:"nodes"`
	}
	return yaml.NewDecoder(bytes.NewReader(text)).Decode(&top) == nil && top.Nodes.Kind != 0
}

// LoadCell reads a cell file. Its error lists all mistakes in the file, each with its line.
func LoadCell(file string) (*cell.Study, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if len(doc.Content) != 1 {
		return nil, fmt.Errorf("%s: the file is empty: a cell needs nodes and models", file)
	}
	r := &cellReader{reader: reader{file: file}}
	r.cell(doc.Content[0])
	if len(r.errs) > 0 {
		return nil, errors.Join(r.errs...)
	}
	return &r.study, nil
}

// A cellReader converts the nodes of a document to a cell.
type cellReader struct {
	reader
	study cell.Study
	count int // of nodes
}

func (r *cellReader) cell(n *yaml.Node) {
	s, c := &r.study, &r.study.Cell
	*c = cell.Config{Proxies: 2, Network: 500 * time.Microsecond, WarmUp: 5 * time.Second, Duration: 30 * time.Second, ReportEvery: 5 * time.Second, Seed: 1}
	s.Zones, s.Balancers = 1, []cell.Balancer{cell.ActiveSet}
	var recorded *yaml.Node
	r.mapping(n, "a cell", fields{
		{"title", func(n *yaml.Node) { s.Title = r.text(n) }},
		{"text", func(n *yaml.Node) { s.Text = strings.TrimSpace(r.text(n)) }},
		{"nodes", r.nodes},
		{"models", r.cellModels},
		{"proxies", func(n *yaml.Node) { c.Proxies = r.integer(n, 1, maxProxies) }},
		{"network", func(n *yaml.Node) { c.Network = r.time(n) }},
		{"balancer", func(n *yaml.Node) {
			s.Balancers = nil
			r.oneOrMore(n, func(n *yaml.Node) { s.Balancers = append(s.Balancers, r.balancer(n)) })
		}},
		{"duration", func(n *yaml.Node) { c.Duration = r.time(n) }},
		{"warm_up", func(n *yaml.Node) { c.WarmUp = r.time(n) }},
		{"load", func(n *yaml.Node) { r.list(n, "load", r.change) }},
		{"recorded", func(n *yaml.Node) { recorded = n }},
		{"reports", r.reports},
		{"events", func(n *yaml.Node) { r.list(n, "events", r.cellEvent) }},
		{"seed", func(n *yaml.Node) { c.Seed = uint64(r.integer(n, 0, 1<<31)) }},
	})
	if len(c.Models) == 0 && len(r.errs) == 0 {
		r.errorf(n, "a cell needs models: a list, or a distribution such as {count: 100, fixed: 5ms, rate: 1000}")
	}
	if recorded != nil {
		r.cellRecording(recorded)
	}
	if c.Duration <= c.WarmUp {
		r.errorf(n, "the duration is %v, and must be longer than warm_up, which is %v", c.Duration, c.WarmUp)
	}
	c.Nodes = cell.Nodes(max(1, r.count), s.Zones, s.Memory)
}

func (r *cellReader) nodes(n *yaml.Node) {
	r.count = 1
	r.mapping(n, "nodes", fields{
		{"count", func(n *yaml.Node) { r.count = r.integer(n, 1, MaxNodes) }},
		{"zones", func(n *yaml.Node) { r.study.Zones = r.integer(n, 1, MaxNodes) }},
		{"memory", func(n *yaml.Node) { r.study.Memory = r.bytes(n) }},
	})
}

func (r *cellReader) balancer(n *yaml.Node) cell.Balancer {
	var names []string
	for _, b := range cell.Balancers {
		names = append(names, string(b))
	}
	return cell.Balancer(r.choice(n, names...))
}

func (r *cellReader) cellModels(n *yaml.Node) {
	c := &r.study.Cell
	if resolve(n).Kind == yaml.SequenceNode {
		r.list(n, "models", func(n *yaml.Node) { c.Models = append(c.Models, r.cellModel(n)) })
		return
	}
	d := cell.Distribution{Models: 1, Zipf: 1, MaxRows: 32, Seed: 1, LoadTime: 2 * time.Second}
	r.mapping(n, "a distribution of models", fields{
		{"count", func(n *yaml.Node) { d.Models = r.integer(n, 1, maxCellModels) }},
		{"zipf", func(n *yaml.Node) { d.Zipf = r.positive(n) }},
		{"rate", func(n *yaml.Node) { d.Rate = r.positive(n) }},
		{"fixed", func(n *yaml.Node) { d.Fixed = r.time(n) }},
		{"spread", func(n *yaml.Node) { d.Spread = r.positive(n) }},
		{"row_share", func(n *yaml.Node) { d.RowShare = r.positive(n) }},
		{"max_batch_size", func(n *yaml.Node) { d.MaxRows = r.integer(n, 1, maxRows) }},
		{"memory", func(n *yaml.Node) { d.Bytes = r.bytes(n) }},
		{"objective", func(n *yaml.Node) { d.Objective = r.time(n) }},
		{"load_time", func(n *yaml.Node) { d.LoadTime = r.time(n) }},
		{"seed", func(n *yaml.Node) { d.Seed = uint64(r.integer(n, 0, 1<<31)) }},
	})
	if d.Fixed <= 0 {
		r.errorf(n, "models need fixed, the time of a batch without its rows")
	}
	c.Models = d.Draw()
}

func (r *cellReader) cellModel(n *yaml.Node) cell.Model {
	m := cell.Model{MaxRows: 32, LoadTime: 2 * time.Second}
	r.mapping(n, "a model", fields{
		{"name", func(n *yaml.Node) { m.Name = r.text(n) }},
		{"tenant", func(n *yaml.Node) { m.Tenant = r.text(n) }},
		{"rate", func(n *yaml.Node) { m.Rate = r.positive(n) }},
		{"fixed", func(n *yaml.Node) { m.Curve.Fixed = r.time(n) }},
		{"per_row", func(n *yaml.Node) { m.Curve.PerRow = r.time(n) }},
		{"max_batch_size", func(n *yaml.Node) { m.MaxRows = r.integer(n, 1, maxRows) }},
		{"memory", func(n *yaml.Node) { m.Bytes = r.bytes(n) }},
		{"objective", func(n *yaml.Node) { m.Objective = r.time(n) }},
		{"load_time", func(n *yaml.Node) { m.LoadTime = r.time(n) }},
	})
	switch {
	case m.Name == "":
		r.errorf(n, "a model needs a name")
	case slices.ContainsFunc(r.study.Cell.Models, func(o cell.Model) bool { return o.Name == m.Name }):
		r.errorf(n, "duplicate model name %q", m.Name)
	case m.Curve.Takes(1) <= 0:
		r.errorf(n, "model %q needs fixed or per_row, the time of a batch", m.Name)
	}
	return m
}

func (r *cellReader) change(n *yaml.Node) {
	c := cell.Change{Times: 1}
	r.mapping(n, "a change of the load", fields{
		{"at", func(n *yaml.Node) { c.At = r.time(n) }},
		{"times", func(n *yaml.Node) { c.Times = r.positive(n) }},
	})
	if all := r.study.Cell.Load; len(all) > 0 && c.At <= all[len(all)-1].At {
		r.errorf(n, "changes of the load must be in the order of time")
	}
	r.study.Cell.Load = append(r.study.Cell.Load, c)
}

func (r *cellReader) reports(n *yaml.Node) {
	c := &r.study.Cell
	r.mapping(n, "reports", fields{
		{"every", func(n *yaml.Node) { c.ReportEvery = r.time(n) }},
		{"late", func(n *yaml.Node) { c.ReportDelay = r.integer(n, 0, 1000) }},
		{"error", func(n *yaml.Node) { c.RateError = r.positive(n) }},
	})
}

func (r *cellReader) cellEvent(n *yaml.Node) {
	e := cell.Event{Times: 1}
	r.mapping(n, "an event", fields{
		{"at", func(n *yaml.Node) { e.At = r.time(n) }},
		{"kind", func(n *yaml.Node) {
			e.Kind = cell.EventKind(r.choice(n, string(cell.NodeLost), string(cell.ZoneLost), string(cell.ProxyLost), string(cell.FlashCrowd), string(cell.Upgrade), string(cell.ReportsStop), string(cell.SlowNode)))
		}},
		{"name", func(n *yaml.Node) { e.Name = r.text(n) }},
		{"number", func(n *yaml.Node) { e.Number = r.integer(n, 0, MaxNodes) }},
		{"first", func(n *yaml.Node) { e.First = r.integer(n, 0, maxCellModels) }},
		{"last", func(n *yaml.Node) { e.Last = r.integer(n, 0, maxCellModels) }},
		{"times", func(n *yaml.Node) { e.Times = r.positive(n) }},
	})
	if e.Kind == "" {
		r.errorf(n, "an event needs a kind")
	}
	r.study.Cell.Events = append(r.study.Cell.Events, e)
}

// cellRecording reads recorded arrivals.
func (r *cellReader) cellRecording(n *yaml.Node) {
	c, file := &r.study.Cell, r.text(n)
	if !filepath.IsAbs(file) {
		file = filepath.Join(filepath.Dir(r.file), file)
	}
	all, err := arrivals.ReadFile(file)
	if err != nil {
		r.errorf(n, "%w", err)
		return
	}
	index := map[string]int{}
	for i, m := range c.Models {
		index[m.Name] = i
	}
	for _, a := range all {
		m, known := index[a.Model]
		if !known {
			r.errorf(n, "%s has arrivals for the unknown model %q", file, a.Model)
			return
		}
		if most := c.Models[m].MaxRows; a.Rows > most {
			r.errorf(n, "%s has a request of %d rows, but model %q has a max_batch_size of %d", file, a.Rows, a.Model, most)
			return
		}
		c.Recorded = append(c.Recorded, cell.Arrival{At: a.At, Model: m, Rows: a.Rows})
	}
}

// positive reads a number that is not negative.
func (r *cellReader) positive(n *yaml.Node) float64 {
	v := r.decimal(n)
	if v < 0 {
		r.errorf(n, "%q is negative", resolve(n).Value)
	}
	return v
}

var byteUnits = []struct {
	name  string
	bytes float64
}{
	{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}, {"B", 1}, {"", 1},
}

// bytes reads a size such as 16GiB.
func (r *cellReader) bytes(n *yaml.Node) int64 {
	text := strings.TrimSpace(resolve(n).Value)
	for _, u := range byteUnits {
		number, ok := strings.CutSuffix(text, u.name)
		if !ok {
			continue
		}
		v, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
		if err != nil || v < 0 || v*u.bytes > 1<<60 {
			break
		}
		return int64(v * u.bytes)
	}
	r.errorf(n, "%q is not a size such as 16GiB or 300MB", text)
	return 0
}
