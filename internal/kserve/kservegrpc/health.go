package kservegrpc

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/shoal-serving/shoal/internal/kserve"
)

// health implements gRPC's health checks for load balancers. It reports the same for every
// service name.
type health struct {
	grpc_health_v1.UnimplementedHealthServer

	catalog kserve.Catalog

	mu      sync.Mutex                          // guards the following
	watched *grpc_health_v1.HealthCheckResponse // what all calls of Watch saw last
	at      time.Time                           // when
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

// errStopping ends calls that would otherwise delay the shutdown.
var errStopping = status.Error(codes.Unavailable, "the server is shutting down")

// stopping returns the channel that is closed when the server begins to stop, or nil if
// the catalog has none.
func stopping(catalog kserve.Catalog) <-chan struct{} {
	if s, ok := catalog.(kserve.Stopper); ok {
		return s.Stopping()
	}
	return nil
}

// watchInterval is how often Watch checks for a change.
const watchInterval = time.Second

// recent is now for all calls of Watch together: anyone may watch, and each look at all models
// costs time.
func (h *health) recent() *grpc_health_v1.HealthCheckResponse {
	h.mu.Lock()
	defer h.mu.Unlock()
	if now := time.Now(); h.watched == nil || now.Sub(h.at) >= watchInterval/2 {
		h.watched, h.at = h.now(), now
	}
	return h.watched
}

// Watch sends the result of Check immediately and after each change, until the client
// disconnects or the server begins to stop.
func (h *health) Watch(_ *grpc_health_v1.HealthCheckRequest, stream grpc.ServerStreamingServer[grpc_health_v1.HealthCheckResponse]) error {
	stopping := stopping(h.catalog)
	tick := time.NewTicker(watchInterval)
	defer tick.Stop()
	for told := grpc_health_v1.HealthCheckResponse_UNKNOWN; ; {
		if now := h.recent(); now.GetStatus() != told {
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
				_ = stream.Send(h.now()) // the stream ends in any case
			}
			return errStopping
		}
	}
}
