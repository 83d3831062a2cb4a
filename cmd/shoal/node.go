package main

import (
	"time"

	"github.com/shoal-serving/shoal/internal/machine"
	"github.com/shoal-serving/shoal/internal/node"
)

// newReporter returns what reports the server's page, GET /v2/node.
func newReporter(p parts, opts serveOptions) *node.Reporter {
	page := node.Page{Build: version, ID: opts.id, Zone: opts.zone, Labels: opts.nodeLabels, Cores: machine.Cores(machine.Root()), Memory: machine.ReadMemory(machine.Root()).Limit}
	return node.NewReporter(node.Options{
		Read: func() node.Page {
			now := page
			now.Ready, now.Draining, now.Epoch, now.Models = p.backend.Ready(), p.backend.Unready(), p.models.Epoch(), p.backend.NodeModels()
			if c, ok := p.models.DemandCounts(); ok {
				now.Memory = c.Room
			}
			return now
		},
		Figures: p.backend.NodeFigures, Changed: p.backend.Changed, Stopping: p.backend.Stopping(), Started: time.Now(),
	})
}
