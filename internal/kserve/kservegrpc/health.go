package kservegrpc

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/shoal-serving/shoal/internal/kserve"
)

// health tells load balancers whether the server takes requests, whatever
// service they name.
type health struct {
	grpc_health_v1.UnimplementedHealthServer

	catalog kserve.Catalog
}

func (h *health) Check(context.Context, *grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse, error) {
	return h.now(), nil
}

func (h *health) now() *grpc_health_v1.HealthCheckResponse {
	if h.catalog.Ready() {
		return &grpc_health_v1.HealthCheckResponse{Status: grpc_health_v1.HealthCheckResponse_SERVING}
	}
	return &grpc_health_v1.HealthCheckResponse{Status: grpc_health_v1.HealthCheckResponse_NOT_SERVING}
}

// errStopping is what those are told who would keep the server from stopping.
var errStopping = status.Error(codes.Unavailable, "the server is shutting down")

// stoppingOf returns what is closed when the server begins to stop, if it tells:
// nil never ends a wait.
func stoppingOf(catalog kserve.Catalog) <-chan struct{} {
	if s, ok := catalog.(kserve.Stopper); ok {
		return s.Stopping()
	}
	return nil
}

// watchEvery is how often those who watch are told of a change.
const watchEvery = time.Second

// Watch tells the same as Check, at once and after each change, until the client
// leaves or the server begins to stop.
func (h *health) Watch(_ *grpc_health_v1.HealthCheckRequest, stream grpc.ServerStreamingServer[grpc_health_v1.HealthCheckResponse]) error {
	stopping := stoppingOf(h.catalog)
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for told := grpc_health_v1.HealthCheckResponse_UNKNOWN; ; {
		if now := h.now(); now.GetStatus() != told {
			if err := stream.Send(now); err != nil {
				return err
			}
			told = now.GetStatus()
		}
		select {
		case <-tick.C:
		case <-stream.Context().Done():
			return status.FromContextError(stream.Context().Err()).Err()
		case <-stopping:
			if told == grpc_health_v1.HealthCheckResponse_SERVING {
				_ = stream.Send(h.now()) // it ends in any case
			}
			return errStopping
		}
	}
}
