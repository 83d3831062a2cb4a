package placement

import (
	"time"

	"github.com/shoal-serving/shoal/internal/device"
)

// Time is the time since a start that the caller chose. It must never decrease.
type Time = time.Duration

// A Node is the report of a node that answers. A node that does not answer has no report.
type Node struct {
	Name     string
	Zone     string
	Bytes    int64    // memory for models
	Speed    float64  // device time that it has, in seconds per second; 0 means 1
	Draining bool     // it will leave: its copies move to other nodes
	Copies   []Loaded // the models that it holds or loads
	Cached   []string // digests of model files on its disk
	Failed   []string // models that it could not load a moment ago: it does not try again yet
	Avoided  []string // models that it could not load, of which other nodes should have the copies
}

// A Loaded is a model on a node.
type Loaded struct {
	Model string
	Bytes int64   // memory that it uses
	Ready bool    // false while it is loading
	Rate  float64 // requests per second that it gets
}

// A Model is a wanted model, with what the nodes reported about it.
type Model struct {
	Name   string
	Tenant string
	Digest string // of its files
	Bytes  int64  // resident memory of a copy

	// The measured curve, and the smallest batch with nearly the best throughput. A model
	// without measurements has zeros, and counts as one that needs few copies.
	Curve     device.Curve
	Efficient int
	Objective time.Duration // latency objective; 0 means none

	Copies   int     // active copies at any rate
	Rate     float64 // requests per second, all nodes together
	Asked    bool    // a client has ever asked for it
	Reported Time    // when the rate was last reported; a report counts once
}

// A Quota limits the models of one tenant, all nodes together. Zeros mean no limit.
type Quota struct {
	Bytes  int64
	Copies int
	Device float64 // device time, in seconds per second
}

// Config has the limits that an operator sets.
type Config struct {
	Quotas map[string]Quota // by tenant
}

// A Plan says where copies of models should be. It has all the state that the next plan
// depends on, and can be stored as JSON.
type Plan struct {
	At     Time
	Nodes  []string    // nodes that answered a moment ago, sorted
	Models []Placement // sorted by name

	// Frozen says why this plan repeats the previous one; empty if it does not. FrozenAt is
	// when that began.
	Frozen   string `json:",omitempty"`
	FrozenAt Time   `json:",omitempty"`

	Vanished map[string]Time `json:",omitempty"` // nodes that did not answer, and since when
}

// A Placement is the part of a plan about one model.
type Placement struct {
	Model  string
	Copies []Copy // sorted by node; all on different nodes
	Home   string // node that loads the model when a client asks for it; set if there are no copies

	Active    int  // number of active copies that the model needs; fewer have a place if memory is short
	Spare     int  // number of spare copies that it needs
	InUse     bool // clients ask for it: its last ready copy is never unloaded
	OverQuota bool `json:",omitempty"` // its tenant has no room for it

	// The state of the delays between a change of the rate and that of the number of copies.
	Counted  Time `json:",omitempty"` // the last report that was considered
	Raises   int  `json:",omitempty"` // consecutive reports that asked for more copies
	LowSince Time `json:",omitempty"` // first of the consecutive reports that asked for fewer copies
	LowPeak  int  `json:",omitempty"` // largest number of copies that those asked for
}

// A Copy is a planned copy of a model.
type Copy struct {
	Node   string
	Active bool
}

// Find returns the placement of a model; nil if the plan has none.
func (p *Plan) Find(model string) *Placement {
	if p == nil {
		return nil
	}
	return find(p.Models, model, func(m *Placement) string { return m.Model })
}
