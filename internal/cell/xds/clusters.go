package xds

import (
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/service/cluster/v3"
	"google.golang.org/grpc"
)

// registerClusters adds the service that Envoy's on-demand filter asks. It has a file of its
// own because its package has the same name as that of the clusters themselves.
func registerClusters(g *grpc.Server, s clusterv3.ClusterDiscoveryServiceServer) {
	clusterv3.RegisterClusterDiscoveryServiceServer(g, s)
}
