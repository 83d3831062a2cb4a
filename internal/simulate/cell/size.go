package cell

import "fmt"

// Wanted is the share of requests that a cell must answer in the objective, while a zone is
// lost, to be large enough.
const Wanted = 0.995

// maxNodes is the largest cell that Smallest tries.
const maxNodes = 10_000

// Smallest returns the smallest number of nodes with which the cell answers [Wanted] of its
// requests in the objective although one zone is lost when the measurement begins, and the
// result with that number. nodes returns the nodes of a cell of n. Of the events of cfg only
// flash crowds happen, because the others are about certain nodes.
//
// More nodes are assumed to be never worse, so it doubles the number until it suffices, and
// then halves the distance. each, if not nil, is called for every number that was tried.
func Smallest(cfg Config, nodes func(n int) []Node, each func(n int, r *Result)) (int, *Result, error) {
	var found *Result
	try := func(n int) (bool, error) {
		c := cfg
		c.Nodes = nodes(n)
		c.Events = []Event{{Kind: ZoneLost, At: cfg.WarmUp, Name: c.Nodes[0].Zone}}
		for _, e := range cfg.Events {
			if e.Kind == FlashCrowd {
				c.Events = append(c.Events, e)
			}
		}
		r, err := Run(c)
		if err != nil {
			return false, err
		}
		if each != nil {
			each(n, r)
		}
		enough := r.InObjective >= Wanted
		if enough {
			found = r
		}
		return enough, nil
	}
	zones := map[string]bool{}
	for _, n := range nodes(maxNodes) {
		zones[n.Zone] = true
	}
	if len(zones) < 2 {
		return 0, nil, fmt.Errorf("the nodes are in one zone, and none would be left without it; set nodes.zones to 2 or more")
	}
	tooFew, enough := len(zones)-1, len(zones) // with fewer nodes than zones, another zone would be lost
	for {
		ok, err := try(enough)
		if err != nil {
			return 0, nil, err
		}
		if ok {
			break
		}
		if enough >= maxNodes {
			return 0, nil, fmt.Errorf("%d nodes do not answer %.1f %% of the requests in the objective: is a single request slower than the objective?", enough, 100*Wanted)
		}
		tooFew, enough = enough, min(2*enough, maxNodes)
	}
	for enough-tooFew > 1 {
		n := (tooFew + enough) / 2
		ok, err := try(n)
		switch {
		case err != nil:
			return 0, nil, err
		case ok:
			enough = n
		default:
			tooFew = n
		}
	}
	return enough, found, nil
}
