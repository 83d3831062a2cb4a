// Package xds configures Envoys with the routes of a cell, by delta xDS. Each model has a
// cluster for each protocol, which an Envoy asks for when the first request needs it: an Envoy
// with 10,000 models starts at once, and a change concerns one small resource. It leaves out
// what Envoy is configured with by its own file.
package xds

import (
	"errors"
	"maps"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/shoal-serving/shoal/internal/cell"
	"github.com/shoal-serving/shoal/internal/discovery"
)

// A Server gives the routes of a cell to Envoys. It has one caller at a time.
type Server struct {
	opts    Options
	known   map[string]bool       // clusters
	special map[string]cell.Route // by model: those that need a route of their own
}

// Options of a [Server].
type Options struct {
	Timeout time.Duration    // limits requests through Envoy; it must be longer than it takes to load a model
	TLS     TLS              // how Envoys connect to nodes
	Table   *discovery.Table // where Envoys get it from
}

// New returns a server without models.
func New(opts Options) (*Server, error) {
	s := &Server{opts: opts, known: map[string]bool{}, special: map[string]cell.Route{}}
	return s, s.setRoutes(s.special)
}

// Update changes routes, and removes those of models that are not wanted any more.
func (s *Server) Update(changed []cell.Route, removed []string) error {
	defer s.opts.Table.Open()
	clusters, assignments := map[string]proto.Message{}, map[string]proto.Message{}
	for i := range changed {
		for prefix, address := range protocols {
			name := prefix + changed[i].Model
			assignments[name] = endpoints(name, &changed[i], address)
			if s.known[name] { // settings of clusters are the same for all models, and never change
				continue
			}
			c, err := cluster(name, prefix == grpcPrefix, s.opts.TLS)
			if err != nil {
				return err
			}
			clusters[name], s.known[name] = c, true
		}
	}
	var gone []string
	for _, model := range removed {
		for prefix := range protocols {
			gone = append(gone, prefix+model)
			delete(s.known, prefix+model)
		}
	}
	// Endpoints before the clusters that need them, and the other way round at the end.
	return errors.Join(
		s.opts.Table.Update(discovery.Endpoints, assignments, nil),
		s.opts.Table.Update(discovery.Clusters, clusters, gone),
		s.opts.Table.Update(discovery.Endpoints, nil, gone),
		s.updateRoutes(changed, removed),
	)
}

// updateRoutes changes the routes if a model is split or hedged in another way.
func (s *Server) updateRoutes(changed []cell.Route, removed []string) error {
	next := maps.Clone(s.special)
	for _, r := range changed {
		delete(next, r.Model)
		if len(r.Split) > 0 || r.Hedge > 0 {
			next[r.Model] = r
		}
	}
	for _, model := range removed {
		delete(next, model)
	}
	if maps.EqualFunc(s.special, next, cell.Route.SameRules) {
		return nil
	}
	s.special = next
	return s.setRoutes(next)
}

func (s *Server) setRoutes(own map[string]cell.Route) error {
	config, err := routes(s.opts.Timeout, own)
	if err != nil {
		return err
	}
	return s.opts.Table.Update(discovery.Routes, map[string]proto.Message{RouteConfig: config}, nil)
}

var protocols = map[string]func(cell.Node) string{
	httpPrefix: func(n cell.Node) string { return n.HTTP },
	grpcPrefix: func(n cell.Node) string { return n.GRPC },
}
