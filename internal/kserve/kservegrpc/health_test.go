package kservegrpc_test

import (
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/shoal-serving/shoal/internal/kserve/kservegrpc"
)

// Anyone may watch, and a look at all models costs time.
func TestManyWatchesLookAtTheModelsTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		backend, conn := newServer(t, kservegrpc.Options{})
		for range 50 {
			if _, err := grpc_health_v1.NewHealthClient(conn).Watch(t.Context(), &grpc_health_v1.HealthCheckRequest{}); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		before := backend.ReadyCalls.Load()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if n := backend.ReadyCalls.Load() - before; n < 9 || n > 21 {
			t.Errorf("the models were looked at %d times in ten seconds", n)
		}
	})
}

func TestWatchTellsOfEachChangeAndEndsWithTheServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		backend, conn := newServer(t, kservegrpc.Options{})
		backend.Stop = make(chan struct{})
		watch, err := grpc_health_v1.NewHealthClient(conn).Watch(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: "nosuch"})
		if err != nil {
			t.Fatal(err)
		}
		expect := func(want grpc_health_v1.HealthCheckResponse_ServingStatus, after time.Duration) {
			t.Helper()
			began := time.Now()
			got, err := watch.Recv()
			if err != nil || got.GetStatus() != want || time.Since(began) != after {
				t.Fatalf("%v, %v after %v, want %v after %v", got, err, time.Since(began), want, after)
			}
		}
		expect(grpc_health_v1.HealthCheckResponse_SERVING, 0)
		time.Sleep(2500 * time.Millisecond)
		backend.NotReady.Store(true)
		expect(grpc_health_v1.HealthCheckResponse_NOT_SERVING, 500*time.Millisecond)
		backend.NotReady.Store(false)
		expect(grpc_health_v1.HealthCheckResponse_SERVING, time.Second)

		backend.NotReady.Store(true)
		close(backend.Stop)
		expect(grpc_health_v1.HealthCheckResponse_NOT_SERVING, 0)
		if _, err := watch.Recv(); status.Code(err) != codes.Unavailable {
			t.Errorf("the watch ended with %v", err)
		}
	})
}
