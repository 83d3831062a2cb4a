package cell

import (
	"fmt"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
	"github.com/shoal-serving/shoal/internal/batching/automatic"
	"github.com/shoal-serving/shoal/internal/device"
	"github.com/shoal-serving/shoal/internal/placement"
	"github.com/shoal-serving/shoal/internal/simulate"
)

// Time is virtual time since the start of the run.
type Time = batching.Time

// A Config describes a cell and its traffic.
type Config struct {
	Nodes    []Node
	Models   []Model
	Proxies  int // 0 means 1
	Balancer Balancer

	Network  time.Duration // from a proxy to a node, and back, each
	WarmUp   time.Duration // at the start; not measured
	Duration time.Duration // including the warm-up
	Seed     uint64

	// Load multiplies the rates of all models, by time. Each change holds until the next.
	Load   []Change
	Events []Event
	// Recorded are the arrivals to replay, by time. If there are any, rates say only what
	// placement knows at the start.
	Recorded []Arrival

	// Nodes report every ReportEvery, and the rates that placement uses are ReportDelay
	// reports old. Zero means that the placement of the start stays.
	ReportEvery time.Duration
	ReportDelay int
	// RateError is by how much the reported rates are wrong: each model's by its own factor,
	// of which this is the standard deviation. 0 and 1 mean exact ones.
	RateError float64

	Placement placement.Config

	// Core returns the batching configuration of a model. Nil means that of a model file
	// without configuration: the automatic policy, calibrated, with admission control.
	Core func(*Model) batching.Config
}

// A Node is one node with one device.
type Node struct {
	Name  string
	Zone  string
	Bytes int64 // memory for models; 0 means no limit
}

// A Model is one model.
type Model struct {
	Name      string
	Tenant    string
	Bytes     int64
	Curve     device.Curve
	MaxRows   int
	Objective time.Duration
	Rate      float64       // requests per second of one row each
	LoadTime  time.Duration // until a copy is ready

	profile   batching.Profile
	efficient int
}

// A Change is a change of a multiple over time.
type Change struct {
	At    Time
	Times float64
}

// An Arrival is one recorded request.
type Arrival struct {
	At    Time
	Model int // index into Config.Models
	Rows  int // 0 means 1
}

// An EventKind is a kind of [Event].
type EventKind string

// Kinds of events.
const (
	NodeLost    EventKind = "node lost"    // the node Name dies
	ZoneLost    EventKind = "zone lost"    // all nodes of the zone Name die
	ProxyLost   EventKind = "proxy lost"   // the proxy Number dies, and its clients go to others
	FlashCrowd  EventKind = "flash crowd"  // the models First to Last get Times as many requests
	Upgrade     EventKind = "upgrade"      // nodes drain, restart and return, Number at a time
	ReportsStop EventKind = "reports stop" // no node is heard of any more
	SlowNode    EventKind = "slow node"    // batches of the node Name take Times as long
)

// An Event is something that happens to the cell.
type Event struct {
	Kind        EventKind
	At          Time
	Name        string
	Number      int
	First, Last int // indices of models
	Times       float64
}

// A Balancer is how proxies choose among the copies of a model.
type Balancer string

// Balancers. All but ActiveSet choose among all copies.
const (
	ActiveSet    Balancer = "active set"    // least request among the active copies of the plan
	LeastRequest Balancer = "least request" // the better of two random copies
	RoundRobin   Balancer = "round robin"
	RingHash     Balancer = "ring hash" // the same copy for all requests of a model, with bounded load
)

// Balancers lists all balancers.
var Balancers = []Balancer{ActiveSet, LeastRequest, RoundRobin, RingHash}

// Run runs the cell.
func Run(cfg Config) (*Result, error) {
	c, err := newCell(cfg)
	if err != nil {
		return nil, err
	}
	c.run()
	return c.result(), nil
}

// Place returns the plan with which a run begins.
func Place(cfg Config) (*placement.Plan, error) {
	c, err := newCell(cfg)
	if err != nil {
		return nil, err
	}
	return c.control.plan, nil
}

// check completes the configuration.
func (cfg *Config) check() error {
	cfg.Proxies = max(1, cfg.Proxies)
	if cfg.Balancer == "" {
		cfg.Balancer = ActiveSet
	}
	if cfg.Core == nil {
		cfg.Core = Untouched
	}
	switch {
	case len(cfg.Nodes) == 0:
		return fmt.Errorf("a cell needs at least one node")
	case len(cfg.Models) == 0:
		return fmt.Errorf("a cell needs at least one model")
	case cfg.Duration <= cfg.WarmUp:
		return fmt.Errorf("the duration is %v, and must be longer than the warm-up of %v", cfg.Duration, cfg.WarmUp)
	}
	profiles := map[modelKind]*Model{}
	for i := range cfg.Models {
		m := &cfg.Models[i]
		m.MaxRows = max(1, m.MaxRows)
		kind := modelKind{m.Curve.Fixed, m.Curve.PerRow, m.Curve.Square, m.Curve.Step, m.MaxRows, m.Objective}
		if same := profiles[kind]; same != nil && len(m.Curve.Table) == 0 {
			m.profile, m.efficient = same.profile, same.efficient
			continue
		}
		m.profile = simulate.Calibrated(m.Curve, nil, m.MaxRows, 1)
		m.efficient = automatic.New(m.options()).Explain().TargetRows
		profiles[kind] = m
	}
	return nil
}

// modelKind is what the profile of a model without a table depends on.
type modelKind struct {
	fixed, perRow, square time.Duration
	step, rows            int
	objective             time.Duration
}

func (m *Model) options() automatic.Options {
	return automatic.Options{MaxRows: m.MaxRows, Instances: 1, Profile: m.profile, Objective: m.Objective}
}

// Untouched returns the batching configuration of a model file without configuration.
func Untouched(m *Model) batching.Config {
	policy := automatic.New(m.options())
	cfg := batching.Config{Policy: policy, MaxRows: m.MaxRows, TakeTurns: true}
	if m.Objective > 0 {
		cfg.Predictor, cfg.Objective = policy, m.Objective
	}
	return cfg
}
