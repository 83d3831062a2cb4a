package cell

import (
	"slices"
	"strings"
	"time"

	"github.com/shoal-serving/shoal/internal/placement"
)

// Time is the time since 1970. It must survive a restart, because plans do.
type Time = placement.Time

// Wanted is what an operator asks for.
type Wanted struct {
	Nodes  []Node
	Models []Model
	Quotas map[string]placement.Quota // by tenant
}

// A Node is a server that may exist.
type Node struct {
	Name string `json:"name"`
	HTTP string `json:"http"`           // host:port
	GRPC string `json:"grpc,omitempty"` // host:port; empty means that it has no such port
	DNS  string `json:"-"`              // the name that has its address; empty if an operator named it
}

// A Model is one that must be served.
type Model struct {
	Name      string
	Tenant    string
	Objective time.Duration // 0 means what the nodes report
	Copies    int           // active copies at any rate; 0 means that the first request loads it
	Hedge     time.Duration // a request without an answer after this time goes to a second node, too; 0 means never
	Split     []Share       // of requests that name no version; empty means that nodes choose
}

// A Share is the part of a model's requests that one version gets.
type Share struct {
	Version string `json:"version"`
	Percent uint32 `json:"percent"`
}

// A Route is where proxies send the requests of a model.
type Route struct {
	Model  string // empty for requests that concern no model
	Active []Node // sorted by name
	Spare  []Node // for requests that active nodes cannot answer
	Hedge  time.Duration
	Split  []Share
	Mirror Share // a version that gets copies of requests; needs a split, which says which one answers
	Home   bool  // no copy is loaded: the active node loads it for its first request
}

func (r *Route) equal(o *Route) bool {
	return r.Model == o.Model && r.Home == o.Home && r.SameRules(*o) && slices.Equal(r.Active, o.Active) && slices.Equal(r.Spare, o.Spare)
}

// SameRules reports whether requests are divided and hedged in the same way.
func (r Route) SameRules(o Route) bool {
	return r.Hedge == o.Hedge && r.Mirror == o.Mirror && slices.Equal(r.Split, o.Split)
}

// An Order is a control request to a node.
type Order struct {
	Number uint64 // no other order of the process has it
	Node   Node
	Model  string
	Unload bool // it loads the model otherwise
	Epoch  uint64
}

// Verb returns load or unload.
func (o Order) Verb() string {
	if o.Unload {
		return "unload"
	}
	return "load"
}

func (w *Wanted) sort() {
	slices.SortFunc(w.Nodes, func(a, b Node) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(w.Models, func(a, b Model) int { return strings.Compare(a.Name, b.Name) })
}

// find returns a model of what is wanted; nil if it has none.
func (w *Wanted) find(model string) *Model {
	i, wanted := slices.BinarySearchFunc(w.Models, model, func(m Model, name string) int { return strings.Compare(m.Name, name) })
	if !wanted {
		return nil
	}
	return &w.Models[i]
}
