// Package discovery gives resources to Envoys by delta xDS: those that each has asked for, and
// those of them that change. It knows neither what the resources are for, nor the protocol of
// whole states.
package discovery

import (
	"cmp"
	"hash/fnv"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"sync"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/service/cluster/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// Types of resources, in the order in which Envoy should get them.
const (
	Clusters  = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
	Endpoints = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
	Routes    = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration"
)

// maxMissing is how many names of one stream that do not exist are remembered: clients invent them.
// Those beyond are answered and forgotten. Envoy asks once for each, so a stream that forgot some
// gets every resource that is new, and ignores those that it has not asked for.
const maxMissing = 10_000

var types = []string{Clusters, Endpoints, Routes}

// missing is the version of a resource that does not exist. A client that asked for one gets
// that answer at once: Envoy would wait, and with it a request that misspells a model.
const missing = "-"

// A Table has the resources of Envoys, and the streams over which they ask for them. A change
// costs each stream a look at the names that changed, however many it has asked for (ADR 35). Its
// methods may be called concurrently.
type Table struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	log  *slog.Logger
	open chan struct{} // closed by Open
	once sync.Once     // for Open

	mu        sync.Mutex                                  // guards the following
	resources map[string]map[string]*discoveryv3.Resource // by type and name
	streams   map[*stream]struct{}
	rejected  uint64 // responses
}

// A stream is one of an Envoy. The lock of its table guards it.
type stream struct {
	wake    chan struct{}                  // size 1: changes that come while it sends are sent together
	sent    map[string]map[string]string   // by type and name: version; "" if it was asked for, and not sent yet
	changed map[string]map[string]struct{} // by type: names to look at
	missing int                            // names in sent that do not exist
	forgot  bool                           // names beyond those
}

// New returns an empty table. Envoys get nothing until [Table.Open]: an Envoy that has resources from
// another cell, or from before a restart, would give them up.
func New(log *slog.Logger) *Table {
	return &Table{log: log, open: make(chan struct{}), resources: map[string]map[string]*discoveryv3.Resource{Clusters: {}, Endpoints: {}, Routes: {}}, streams: map[*stream]struct{}{}}
}

// Open says that the table has all resources that there are. It may be called more than once.
func (t *Table) Open() { t.once.Do(func() { close(t.open) }) }

// Register adds the services of the table to a gRPC server.
func (t *Table) Register(g *grpc.Server) {
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(g, t)
	clusterv3.RegisterClusterDiscoveryServiceServer(g, clusterService{table: t})
}

// clusterService is what Envoy's on-demand filter asks.
type clusterService struct {
	clusterv3.UnimplementedClusterDiscoveryServiceServer
	table *Table
}

// DeltaClusters implements the service.
func (s clusterService) DeltaClusters(rpc deltaStream) error { return s.table.serve(rpc, Clusters) }

// Figures returns the number of streams of Envoys, and how often one refused its configuration.
func (t *Table) Figures() (streams int, rejected uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.streams), t.rejected
}

// Update changes and removes resources of one type.
func (t *Table) Update(typeURL string, changed map[string]proto.Message, removed []string) error {
	all := make(map[string]*discoveryv3.Resource, len(changed))
	for name, m := range changed {
		body, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
		if err != nil {
			return err
		}
		hash := fnv.New64a()
		hash.Write(body)
		// Cells that have the same plan give resources the same version, so that an Envoy that
		// goes from one to the other gets only what differs.
		all[name] = &discoveryv3.Resource{Name: name, Version: strconv.FormatUint(hash.Sum64(), 16), Resource: &anypb.Any{TypeUrl: typeURL, Value: body}}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for s := range t.streams {
		for name := range all {
			if _, asked := s.sent[typeURL][name]; s.forgot && s.sent[typeURL] != nil && !asked && t.resources[typeURL][name] == nil {
				s.sent[typeURL][name] = ""
			}
			s.note(typeURL, name)
		}
		for _, name := range removed {
			s.note(typeURL, name)
		}
	}
	maps.Copy(t.resources[typeURL], all)
	for _, name := range removed {
		delete(t.resources[typeURL], name)
	}
	return nil
}

// note takes note of a name to look at, if it was asked for.
func (s *stream) note(typeURL, name string) {
	if _, asked := s.sent[typeURL][name]; !asked {
		return
	}
	if s.changed[typeURL] == nil {
		s.changed[typeURL] = map[string]struct{}{}
	}
	s.changed[typeURL][name] = struct{}{}
	select {
	case s.wake <- struct{}{}:
	default: // it will look anyway
	}
}

type deltaStream = grpc.BidiStreamingServer[discoveryv3.DeltaDiscoveryRequest, discoveryv3.DeltaDiscoveryResponse]

// DeltaAggregatedResources implements the service that Envoys get endpoints and routes from.
func (t *Table) DeltaAggregatedResources(rpc deltaStream) error { return t.serve(rpc, "") }

// serve serves one stream until the client ends it. Requests without a type are for typeURL.
func (t *Table) serve(rpc deltaStream, typeURL string) error {
	s := &stream{wake: make(chan struct{}, 1), sent: map[string]map[string]string{}, changed: map[string]map[string]struct{}{}}
	t.mu.Lock()
	t.streams[s] = struct{}{}
	t.mu.Unlock()
	var sender sync.WaitGroup
	ended := make(chan struct{})
	sender.Go(func() { t.send(rpc, s, ended) })
	defer sender.Wait()
	defer close(ended)
	defer func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.streams, s)
	}()
	for {
		request, err := rpc.Recv()
		if err != nil {
			return err
		}
		t.ask(s, request, cmp.Or(request.GetTypeUrl(), typeURL))
	}
}

// ask takes note of what a client asks for.
func (t *Table) ask(s *stream, r *discoveryv3.DeltaDiscoveryRequest, typeURL string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if r.GetErrorDetail() != nil {
		t.rejected++
		t.log.Error("an Envoy refused its configuration, and keeps the one before", "type", typeURL, "error", r.GetErrorDetail().GetMessage())
	}
	if s.sent[typeURL] == nil {
		s.sent[typeURL] = map[string]string{}
	}
	for _, name := range r.GetResourceNamesUnsubscribe() {
		s.forget(typeURL, name)
	}
	for _, name := range r.GetResourceNamesSubscribe() {
		s.forget(typeURL, name)
		s.sent[typeURL][name] = r.GetInitialResourceVersions()[name]
		s.note(typeURL, name)
	}
}

// forget forgets what was sent of a name.
func (s *stream) forget(typeURL, name string) {
	if s.sent[typeURL][name] == missing {
		s.missing--
	}
	delete(s.sent[typeURL], name)
}

// send sends what changes, until the stream has ended or fails. If it fails, Recv does, too.
func (t *Table) send(rpc deltaStream, s *stream, ended <-chan struct{}) {
	select {
	case <-ended:
		return
	case <-t.open:
	}
	for nonce := uint64(1); ; {
		select {
		case <-ended:
			return
		case <-s.wake:
		}
		for _, response := range t.take(s) {
			response.Nonce = strconv.FormatUint(nonce, 10)
			if rpc.Send(response) != nil {
				return
			}
			nonce++
		}
	}
}

// take returns what a stream must send now.
func (t *Table) take(s *stream) (all []*discoveryv3.DeltaDiscoveryResponse) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for typeURL, names := range s.changed {
		response := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: typeURL}
		for name := range names {
			r, version := t.resources[typeURL][name], missing
			if r != nil {
				version = r.GetVersion()
			}
			before, asked := s.sent[typeURL][name]
			switch {
			case !asked || before == version:
				continue
			case r != nil:
				response.Resources = append(response.Resources, r)
			default:
				response.RemovedResources = append(response.RemovedResources, name)
			}
			s.forget(typeURL, name)
			if r == nil && s.missing >= maxMissing {
				s.forgot = true
				continue
			}
			if r == nil {
				s.missing++
			}
			s.sent[typeURL][name] = version
		}
		if len(response.GetResources())+len(response.GetRemovedResources()) > 0 {
			all = append(all, response)
		}
	}
	clear(s.changed)
	slices.SortFunc(all, func(x, y *discoveryv3.DeltaDiscoveryResponse) int {
		return cmp.Compare(slices.Index(types, x.GetTypeUrl()), slices.Index(types, y.GetTypeUrl()))
	})
	return all
}
