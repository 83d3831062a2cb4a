package xds

import (
	"errors"
	"maps"
	"net"
	"slices"
	"strconv"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	mutation_rulesv3 "github.com/envoyproxy/go-control-plane/envoy/config/common/mutation_rules/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	previous_hostsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/retry/host/previous_hosts/v3"
	previous_prioritiesv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/retry/priority/previous_priorities/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/shoal-serving/shoal/internal/cell"
)

const (
	// RouteConfig is the name of the routes that Envoy's listener asks for.
	RouteConfig = "shoal"
	// ClusterHeader is the header in which Envoy's Lua filter puts the cluster of a request.
	ClusterHeader = "x-shoal-cluster"
	// Requests for a model go to the cluster with its name after one of these prefixes; requests
	// for none go to the one with nothing after it.
	httpPrefix = "http/"
	grpcPrefix = "grpc/"
	// versionHeader has the version for requests that name none. Nodes read it.
	versionHeader = "shoal-model-version"
)

const (
	// A node that dies takes its requests in flight with it: some retries are always allowed.
	retryShare       = 10 // percent of active requests
	retryConcurrency = 64
	// Least request prefers a dead node, which has no requests in flight: of two nodes it is
	// chosen three times out of four. A retry chooses again until it finds another node, and
	// with five tries one of four went to the dead node again.
	maxChoices = 64

	// Envoy counts a success when a node that stands still accepts a request, before its hedge is a
	// failure. Frequent requests never fail three times in a row: then the share decides.
	ejectAfter  = 3  // consecutive failures
	ejectShare  = 40 // percent of what was counted
	ejectVolume = 3  // or more, between two looks
	ejectLook   = 250 * time.Millisecond
	// An ejected node is tried again after this time, the second time after twice as long.
	ejectFor    = 5 * time.Second
	ejectAtMost = 67 // percent of a model's nodes

	// Every model has connections of its own to each of its nodes. Unused ones are closed before
	// a node does it, after two minutes: then no request is on its way.
	idleFor = time.Minute
)

// cluster returns the cluster of a model for one protocol.
func cluster(name string, http2 bool, files TLS) (*clusterv3.Cluster, error) {
	options := &httpv3.HttpProtocolOptions_ExplicitHttpConfig{ProtocolConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_HttpProtocolOptions{HttpProtocolOptions: &corev3.Http1ProtocolOptions{}}}
	if http2 {
		options.ProtocolConfig = &httpv3.HttpProtocolOptions_ExplicitHttpConfig_Http2ProtocolOptions{Http2ProtocolOptions: &corev3.Http2ProtocolOptions{}}
	}
	protocol, invalid := anypb.New(&httpv3.HttpProtocolOptions{
		CommonHttpProtocolOptions: &corev3.HttpProtocolOptions{IdleTimeout: durationpb.New(idleFor)},
		UpstreamProtocolOptions:   &httpv3.HttpProtocolOptions_ExplicitHttpConfig_{ExplicitHttpConfig: options},
	})
	encrypted, err := files.socket()
	if err := errors.Join(invalid, err); err != nil {
		return nil, err
	}
	many := wrapperspb.UInt32(1 << 30) // nodes limit themselves, with 429
	return &clusterv3.Cluster{
		Name:                 name,
		ConnectTimeout:       durationpb.New(time.Second),
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS},
		EdsClusterConfig:     &clusterv3.Cluster_EdsClusterConfig{EdsConfig: &corev3.ConfigSource{ResourceApiVersion: corev3.ApiVersion_V3, ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}}}},
		LbPolicy:             clusterv3.Cluster_LEAST_REQUEST,
		TransportSocket:      encrypted,
		OutlierDetection: &clusterv3.OutlierDetection{
			Interval: durationpb.New(ejectLook), BaseEjectionTime: durationpb.New(ejectFor), MaxEjectionPercent: wrapperspb.UInt32(ejectAtMost),
			SplitExternalLocalOriginErrors: true, ConsecutiveLocalOriginFailure: wrapperspb.UInt32(ejectAfter),
			Consecutive_5Xx: wrapperspb.UInt32(0), EnforcingConsecutive_5Xx: wrapperspb.UInt32(0), // a model's error is not its node's
			ConsecutiveGatewayFailure: wrapperspb.UInt32(ejectAfter), EnforcingConsecutiveGatewayFailure: wrapperspb.UInt32(0), // nor is a 503 while it loads
			FailurePercentageThreshold: wrapperspb.UInt32(ejectShare), FailurePercentageRequestVolume: wrapperspb.UInt32(ejectVolume), FailurePercentageMinimumHosts: wrapperspb.UInt32(1), EnforcingFailurePercentage: wrapperspb.UInt32(0), EnforcingFailurePercentageLocalOrigin: wrapperspb.UInt32(100),
			EnforcingSuccessRate: wrapperspb.UInt32(0), EnforcingLocalOriginSuccessRate: wrapperspb.UInt32(0),
		},
		CircuitBreakers: &clusterv3.CircuitBreakers{Thresholds: []*clusterv3.CircuitBreakers_Thresholds{{
			MaxConnections: many, MaxPendingRequests: many, MaxRequests: many,
			RetryBudget: &clusterv3.CircuitBreakers_Thresholds_RetryBudget{BudgetPercent: &typev3.Percent{Value: retryShare}, MinRetryConcurrency: wrapperspb.UInt32(retryConcurrency)},
		}}},
		TypedExtensionProtocolOptions: map[string]*anypb.Any{"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": protocol},
	}, nil
}

// TLS are files on the machines of Envoys, PEM, with which they connect to nodes. Without an
// authority connections are not encrypted.
type TLS struct {
	CA        string // whose certificates nodes have: it must issue no others
	Cert, Key string // Envoy's own
}

// socket returns how Envoy connects; nil means without encryption.
func (f TLS) socket() (*corev3.TransportSocket, error) {
	if f.CA == "" {
		return nil, nil
	}
	file := func(name string) *corev3.DataSource {
		return &corev3.DataSource{Specifier: &corev3.DataSource_Filename{Filename: name}}
	}
	common := &tlsv3.CommonTlsContext{ValidationContextType: &tlsv3.CommonTlsContext_ValidationContext{ValidationContext: &tlsv3.CertificateValidationContext{TrustedCa: file(f.CA)}}}
	if f.Cert != "" {
		common.TlsCertificates = []*tlsv3.TlsCertificate{{CertificateChain: file(f.Cert), PrivateKey: file(f.Key)}}
	}
	config, err := anypb.New(&tlsv3.UpstreamTlsContext{CommonTlsContext: common})
	if err != nil {
		return nil, err
	}
	return &corev3.TransportSocket{Name: "envoy.transport_sockets.tls", ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: config}}, nil
}

// endpoints returns the nodes of a cluster: active ones, and spare ones of a lower priority.
func endpoints(name string, route *cell.Route, address func(cell.Node) string) *endpointv3.ClusterLoadAssignment {
	a := &endpointv3.ClusterLoadAssignment{ClusterName: name}
	for _, nodes := range [][]cell.Node{route.Active, route.Spare} {
		group := &endpointv3.LocalityLbEndpoints{Priority: uint32(len(a.Endpoints))}
		for _, n := range nodes {
			if e := endpoint(address(n)); e != nil {
				group.LbEndpoints = append(group.LbEndpoints, e)
			}
		}
		if len(group.LbEndpoints) > 0 { // Envoy wants priorities without gaps
			a.Endpoints = append(a.Endpoints, group)
		}
	}
	return a
}

// endpoint returns an endpoint; nil if the node has no such port.
func endpoint(address string) *endpointv3.LbEndpoint {
	host, service, _ := net.SplitHostPort(address) // without a port, which is no number, if it fails
	port, err := strconv.ParseUint(service, 10, 16)
	if err != nil {
		return nil
	}
	return &endpointv3.LbEndpoint{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: &corev3.Address{Address: &corev3.Address_SocketAddress{
		SocketAddress: &corev3.SocketAddress{Address: host, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(port)}},
	}}}}}
}

// refused are paths that clients must not reach through a proxy: only the cell changes what
// nodes hold.
var refused = []string{"/v2/repository/models/", "/inference.GRPCInferenceService/RepositoryModelLoad", "/inference.GRPCInferenceService/RepositoryModelUnload", "/v2/node"}

// escaped matches paths with an escape before the name of a model. Nodes decode it, and then find
// one of the paths that are refused here.
const escaped = "/(v[12]/)?(repository/)?[^/]*%.*"

// streamInfer is a path whose answers have no end that a timeout could be for.
const streamInfer = "/inference.GRPCInferenceService/ModelStreamInfer"

// routes returns Envoy's routes: every request goes to the cluster that the Lua filter found.
// Models in own have routes of their own.
func routes(timeout time.Duration, own map[string]cell.Route) (*routev3.RouteConfiguration, error) {
	host := &routev3.VirtualHost{Name: RouteConfig, Domains: []string{"*"}}
	refuse := func(match *routev3.RouteMatch) {
		host.Routes = append(host.Routes, &routev3.Route{Match: match, Action: &routev3.Route_DirectResponse{DirectResponse: &routev3.DirectResponseAction{
			Status: 403, Body: &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: `{"error":"this is not available through the proxy of a cell: shoal cell loads and unloads models"}`}},
		}}})
	}
	for _, prefix := range refused {
		refuse(under(prefix))
	}
	refuse(&routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_SafeRegex{SafeRegex: &matcherv3.RegexMatcher{Regex: escaped}}})
	again, err := retries()
	if err != nil {
		return nil, err
	}
	add := func(prefix string, timeout time.Duration) {
		host.Routes = append(host.Routes, &routev3.Route{Match: under(prefix), Action: &routev3.Route_Route{Route: found(timeout, again)}})
	}
	add(streamInfer, 0)
	for _, model := range slices.Sorted(maps.Keys(own)) {
		for _, prefix := range []string{httpPrefix, grpcPrefix} {
			host.Routes = append(host.Routes, ownRoute(own[model], prefix+model, timeout, again))
		}
	}
	add("/", timeout)
	return &routev3.RouteConfiguration{Name: RouteConfig, VirtualHosts: []*routev3.VirtualHost{host}}, nil
}

// found sends requests to the cluster that the Lua filter found.
func found(timeout time.Duration, again *routev3.RetryPolicy) *routev3.RouteAction {
	to := &routev3.RouteAction_ClusterHeader{ClusterHeader: ClusterHeader}
	return &routev3.RouteAction{ClusterSpecifier: to, ClusterNotFoundResponseCode: routev3.RouteAction_NOT_FOUND, Timeout: durationpb.New(timeout), RetryPolicy: again}
}

// ownRoute returns the route of a cluster. With a split, all requests go to the same nodes, with
// the version in a header. With a hedge, a node that does not answer in that time counts as
// one that failed, and its request continues while another node gets it, too.
func ownRoute(r cell.Route, cluster string, timeout time.Duration, again *routev3.RetryPolicy) *routev3.Route {
	action := found(timeout, again)
	action.ClusterSpecifier = &routev3.RouteAction_Cluster{Cluster: cluster}
	if len(r.Split) > 0 {
		versions := &routev3.WeightedCluster{} // the cluster as often as it has versions
		for _, s := range r.Split {
			versions.Clusters = append(versions.Clusters, &routev3.WeightedCluster_ClusterWeight{
				Name: cluster, Weight: wrapperspb.UInt32(s.Percent), RequestHeadersToAdd: []*corev3.HeaderValueOption{versioned(s.Version)},
			})
		}
		action.ClusterSpecifier = &routev3.RouteAction_WeightedClusters{WeightedClusters: versions}
	}
	if r.Mirror.Percent > 0 {
		action.RequestMirrorPolicies = []*routev3.RouteAction_RequestMirrorPolicy{{
			Cluster:                 cluster,
			RuntimeFraction:         &corev3.RuntimeFractionalPercent{DefaultValue: &typev3.FractionalPercent{Numerator: r.Mirror.Percent}},
			RequestHeadersMutations: []*mutation_rulesv3.HeaderMutation{{Action: &mutation_rulesv3.HeaderMutation_Append{Append: versioned(r.Mirror.Version)}}},
		}}
	}
	if r.Hedge > 0 {
		action.RetryPolicy = proto.CloneOf(again)
		action.RetryPolicy.PerTryTimeout = durationpb.New(r.Hedge)
		action.HedgePolicy = &routev3.HedgePolicy{HedgeOnPerTryTimeout: true}
	}
	match := under("/")
	match.Headers = []*routev3.HeaderMatcher{{
		Name: ClusterHeader, HeaderMatchSpecifier: &routev3.HeaderMatcher_StringMatch{StringMatch: &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: cluster}}},
	}}
	return &routev3.Route{Match: match, Action: &routev3.Route_Route{Route: action}}
}

// under matches the paths with a prefix.
func under(prefix string) *routev3.RouteMatch {
	return &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: prefix}}
}

// versioned returns the header that gives a request to a version.
func versioned(version string) *corev3.HeaderValueOption {
	return &corev3.HeaderValueOption{Header: &corev3.HeaderValue{Key: versionHeader, Value: version}, AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD}
}

// retries returns the rule for retries: on a spare copy, and then on an active one that was not
// tried. With a zone a third of the nodes can vanish, and one retry of three finds another of them.
func retries() (*routev3.RetryPolicy, error) {
	elsewhere, hosts := anypb.New(&previous_hostsv3.PreviousHostsPredicate{})
	spare, priorities := anypb.New(&previous_prioritiesv3.PreviousPrioritiesConfig{UpdateFrequency: 1})
	if err := errors.Join(hosts, priorities); err != nil {
		return nil, err
	}
	return &routev3.RetryPolicy{
		RetryOn:                       "connect-failure,refused-stream,reset,retriable-status-codes,resource-exhausted,unavailable",
		RetriableStatusCodes:          []uint32{429, 503},
		NumRetries:                    wrapperspb.UInt32(2),
		RetryHostPredicate:            []*routev3.RetryPolicy_RetryHostPredicate{{Name: "envoy.retry_host_predicates.previous_hosts", ConfigType: &routev3.RetryPolicy_RetryHostPredicate_TypedConfig{TypedConfig: elsewhere}}},
		HostSelectionRetryMaxAttempts: maxChoices,
		RetryPriority:                 &routev3.RetryPolicy_RetryPriority{Name: "envoy.retry_priorities.previous_priorities", ConfigType: &routev3.RetryPolicy_RetryPriority_TypedConfig{TypedConfig: spare}},
		RetryBackOff:                  &routev3.RetryPolicy_RetryBackOff{BaseInterval: durationpb.New(5 * time.Millisecond), MaxInterval: durationpb.New(50 * time.Millisecond)},
	}, nil
}
