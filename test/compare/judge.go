package main

import (
	"fmt"
	"slices"
)

// What is promised of Shoal beside each peer, as multiples of the peer's figure.
const (
	leastThroughput = 1.0
	mostP99         = 1.0
	timesMMS        = 3.0  // on the tiny model over HTTP
	timesScripted   = 20.0 // the same, where what speaks to clients is written in Python
	timesWaiting    = 1.8  // with one client, where the peer waits for others
)

const tinyModel = "mlp"

// closeBy is how near to a promise a first look may be without being repeated.
// What is behind is repeated, too: one short look is not enough to say so.
const closeBy = 0.10

// A gate is one promise in one cell, and what came of it.
type gate struct {
	cell
	peer string
	figure
	bound float64
	got   ratio
	ok    bool // it was measured; if not, the peer is absent or there was no time
}

// kept reports whether the promise is, as far as can be told: what was measured in
// turn keeps it if its interval reaches it.
func (g gate) kept() bool {
	if g.lower {
		return g.ok && g.got.low < g.bound
	}
	return g.ok && g.got.high >= g.bound
}

// near reports whether the figure has to be measured again, in turn with the peer's.
func (g gate) near() bool {
	if g.lower {
		return g.got.mid > g.bound*(1-closeBy)
	}
	return g.got.mid < g.bound*(1+closeBy)
}

func (g gate) String() string {
	want := fmt.Sprintf("at least %g", g.bound)
	if g.lower {
		want = fmt.Sprintf("below %g", g.bound)
	}
	if !g.ok {
		return fmt.Sprintf("%v, %s beside %s: not measured, want %s", g.cell, g.name, g.peer, want)
	}
	return fmt.Sprintf("%v, %s beside %s: %v times, want %s", g.cell, g.name, g.peer, g.got, want)
}

// clientCounts are the loads.
var clientCounts = []int{1, 8, 32, 64}

// gates returns all promises, model by model, for one of ours.
func gates(r *results, ours string, models []*subject, all []*server) (gates []gate) {
	add := func(c cell, peer *server, f figure, bound float64) {
		got, ok := r.ratio(f, c, ours, peer.name)
		gates = append(gates, gate{c, peer.name, f, bound, got, ok})
	}
	for _, m := range models {
		for _, c := range cells(m.name) {
			for _, s := range all {
				if s.ours || s.wires[c.Protocol] == nil {
					continue
				}
				add(c, s, throughput, leastThroughput)
				add(c, s, p99, mostP99)
				if m.name == tinyModel && c.Protocol == protocolHTTP && s.tiny > 0 {
					add(c, s, throughput, s.tiny)
				}
				if c.Clients == 1 && s.waits && m.peers.rows > 1 {
					add(c, s, throughput, timesWaiting)
				}
			}
		}
	}
	return gates
}

// cells returns those of a model.
func cells(model string) (all []cell) {
	for _, protocol := range []string{protocolHTTP, protocolGRPC} {
		for _, clients := range clientCounts {
			all = append(all, cell{model, protocol, clients})
		}
	}
	return all
}

// rivals returns the peers of a cell that have to be measured again, in turn.
func rivals(all []gate, c cell) (names []string) {
	for _, g := range all {
		if g.cell == c && g.ok && (g.near() || g.got.pairs > 0) && !slices.Contains(names, g.peer) {
			names = append(names, g.peer)
		}
	}
	return names
}
