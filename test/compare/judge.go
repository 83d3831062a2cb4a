package main

import (
	"fmt"
	"slices"

	"github.com/shoal-serving/shoal/test/measure"
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
// What is behind is repeated, too: one short look is not enough to say so. What is
// further ahead is "clear", which is not the same as met.
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

// gateName is what known misses are listed under.
func (g gate) gateName() string {
	return fmt.Sprintf("compare: %v, %s beside %s, %s", g.cell, g.name, g.peer, g.want())
}

func (g gate) want() measure.Bound {
	if g.lower {
		return measure.AtMost(g.bound)
	}
	return measure.AtLeast(g.bound)
}

// judge returns the verdict of the pairs that were measured in turn.
func (g gate) judge() (measure.Verdict, error) {
	return measure.Judge(g.gateName(), g.want(), g.got.pairs)
}

// clear reports whether one look is enough: the figure was further ahead of the promise
// than two looks differ.
func (g gate) clear() bool { return g.ok && len(g.got.pairs) == 0 && !g.near() }

// met reports whether the promise is: by the median of at least [measure.MinSamples]
// pairs, or because Shoal is clearly ahead.
func (g gate) met() bool {
	if !g.ok || g.clear() {
		return g.ok
	}
	v, err := g.judge()
	return err == nil && v.Met()
}

// outcome returns the verdict in words.
func (g gate) outcome() string {
	switch v, err := g.judge(); {
	case !g.ok:
		return "not measured"
	case g.clear():
		return "clearly met, in one look"
	case err != nil:
		return fmt.Sprintf("no verdict with %d pairs, which takes %d", len(g.got.pairs), measure.MinSamples)
	default:
		return v.Outcome()
	}
}

// near reports whether the figure has to be measured again, in turn with the peer's.
func (g gate) near() bool {
	if g.lower {
		return g.got.mid > g.bound*(1-closeBy)
	}
	return g.got.mid < g.bound*(1+closeBy)
}

func (g gate) String() string {
	if !g.ok {
		return fmt.Sprintf("%v, %s beside %s: not measured, want %v", g.cell, g.name, g.peer, g.want())
	}
	return fmt.Sprintf("%v, %s beside %s: %v times, want %v: %s", g.cell, g.name, g.peer, g.got, g.want(), g.outcome())
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
		if g.cell == c && g.ok && (g.near() || len(g.got.pairs) > 0) && !slices.Contains(names, g.peer) {
			names = append(names, g.peer)
		}
	}
	return names
}
