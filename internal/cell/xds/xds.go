// Package xds configures Envoys with the routes of a cell, by delta xDS. Each model has a
// cluster for each protocol, which an Envoy asks for when the first request needs it: an Envoy
// with 10,000 models starts at once, and a change concerns one small resource. It leaves out
// what Envoy is configured with by its own file.
package xds

import (
	"context"
	"maps"
	"slices"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/grpc"

	"github.com/shoal-serving/shoal/internal/cell"
)

// A Server has the routes of a cell, and gives them to Envoys. Its methods may be called
// concurrently, except Update, which has one caller at a time.
type Server struct {
	clusters, endpoints, routes *cache.LinearCache
	known                       map[string]bool // clusters
	timeout                     time.Duration
	tls                         TLS
	special                     map[string]special // by model
}

// New returns a server without models. timeout limits requests through Envoy; it must be
// longer than it takes to load a model.
func New(timeout time.Duration, files TLS) (*Server, error) {
	config, err := routes(timeout, nil)
	if err != nil {
		return nil, err
	}
	return &Server{
		clusters:  cache.NewLinearCache(resource.ClusterType),
		endpoints: cache.NewLinearCache(resource.EndpointType),
		known:     map[string]bool{},
		timeout:   timeout,
		tls:       files,
		special:   map[string]special{},
		routes:    cache.NewLinearCache(resource.RouteType, cache.WithInitialResources(map[string]types.Resource{RouteConfig: config})),
	}, nil
}

// Register adds the discovery services to a gRPC server. Streams end with ctx.
func (s *Server) Register(ctx context.Context, g *grpc.Server) {
	caches := &cache.MuxCache{
		Classify:      func(r *cache.Request) string { return r.GetTypeUrl() },
		ClassifyDelta: func(r *cache.DeltaRequest) string { return r.GetTypeUrl() },
		Caches: map[string]cache.Cache{
			resource.ClusterType:  answering{s.clusters},
			resource.EndpointType: answering{s.endpoints},
			resource.RouteType:    s.routes,
		},
	}
	all := server.NewServer(ctx, caches, nil)
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(g, all)
	registerClusters(g, all)
}

// Update changes routes, and removes those of models that are not wanted any more.
func (s *Server) Update(changed []cell.Route, removed []string) error {
	clusters, assignments := map[string]types.Resource{}, map[string]types.Resource{}
	for i := range changed {
		for prefix, address := range protocols {
			name := prefix + changed[i].Model
			assignments[name] = endpoints(name, &changed[i], address)
			if s.known[name] { // settings of clusters are the same for all models, and never change
				continue
			}
			c, err := cluster(name, prefix == grpcPrefix, s.tls)
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
	if err := s.endpoints.UpdateResources(assignments, nil); err != nil {
		return err
	}
	if err := s.clusters.UpdateResources(clusters, gone); err != nil {
		return err
	}
	if err := s.endpoints.UpdateResources(nil, gone); err != nil {
		return err
	}
	return s.updateRoutes(changed, removed)
}

// updateRoutes changes the routes if a model is split or hedged in another way.
func (s *Server) updateRoutes(changed []cell.Route, removed []string) error {
	next := maps.Clone(s.special)
	for _, r := range changed {
		if len(r.Split) > 0 || r.Hedge > 0 {
			next[r.Model] = special{split: r.Split, hedge: r.Hedge, mirror: shareOf(r.Mirror)}
		} else {
			delete(next, r.Model)
		}
	}
	for _, model := range removed {
		delete(next, model)
	}
	if maps.EqualFunc(s.special, next, special.equal) {
		return nil
	}
	config, err := routes(s.timeout, next)
	if err != nil {
		return err
	}
	s.special = next
	return s.routes.UpdateResource(RouteConfig, config)
}

var protocols = map[string]func(cell.Node) string{
	httpPrefix: func(n cell.Node) string { return n.HTTP },
	grpcPrefix: func(n cell.Node) string { return n.GRPC },
}

// special is what a route of its own is needed for.
type special struct {
	split  []cell.Share
	hedge  time.Duration
	mirror cell.Share // a version that gets copies; there is none without a percentage
}

// shareOf returns what a pointer points to. A mirror needs a split, which says which version answers.
func shareOf(s *cell.Share) cell.Share {
	if s == nil {
		return cell.Share{}
	}
	return *s
}

func (s special) equal(o special) bool {
	return s.hedge == o.hedge && s.mirror == o.mirror && slices.Equal(s.split, o.split)
}

// answering answers requests for resources that do not exist at once, so that Envoy can answer
// clients that misspell a model. A linear cache would be silent until the resource appears.
type answering struct{ *cache.LinearCache }

func (a answering) CreateDeltaWatch(r *cache.DeltaRequest, sub cache.Subscription, out chan cache.DeltaResponse) (func(), error) {
	if len(r.GetResourceNamesSubscribe()) == 0 {
		return a.LinearCache.CreateDeltaWatch(r, sub, out)
	}
	return a.LinearCache.CreateDeltaWatch(r, asking{sub, r.GetResourceNamesSubscribe()}, out)
}

// asking is a subscription that claims to have old versions of the names it has just asked
// for. The cache then sends the resources, or that they were removed.
type asking struct {
	cache.Subscription
	names []string
}

func (s asking) ReturnedResources() map[string]string {
	all := make(map[string]string, len(s.names))
	maps.Copy(all, s.Subscription.ReturnedResources())
	for _, name := range s.names {
		if _, returned := all[name]; !returned && name != "*" {
			all[name] = "not sent yet"
		}
	}
	return all
}
