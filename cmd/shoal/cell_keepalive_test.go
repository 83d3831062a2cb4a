package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/shoal-serving/shoal/internal/access"
	"github.com/shoal-serving/shoal/internal/discovery"
	"github.com/shoal-serving/shoal/internal/identity"
)

// Envoys of the template ping every ten seconds, and have no stream until a request needs one.
func TestACellKeepsConnectionsOfEnvoysThatPing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		guarded, err := openSecurity(&accessOptions{}, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		g, l, ended := grpc.NewServer(grpcOptions(guarded)...), bufconn.Listen(1<<16), make(chan error)
		go func() { ended <- g.Serve(l) }()
		conn, err := l.DialContext(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			_ = conn.Close() // the server ends anyway
			g.Stop()
			if err := errors.Join(<-ended, guarded.close()); err != nil {
				t.Error(err)
			}
		}()
		if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
			t.Fatal(err)
		}
		framer, acks := http2.NewFramer(conn, conn), 0
		if err := framer.WriteSettings(); err != nil {
			t.Fatal(err)
		}
		for i := range byte(20) {
			time.Sleep(10 * time.Second)
			if err := framer.WritePing(false, [8]byte{i}); err != nil {
				t.Fatal(err)
			}
			for acked := false; !acked; {
				frame, err := framer.ReadFrame()
				if err != nil {
					t.Fatalf("after %d pings: %v", i, err)
				}
				switch frame := frame.(type) {
				case *http2.GoAwayFrame:
					t.Fatalf("after %d pings the cell closes the connection: %s", i, frame.DebugData())
				case *http2.PingFrame:
					if acked = frame.IsAck(); !acked {
						err = framer.WritePing(true, frame.Data)
					} else {
						acks++
					}
				}
				if err != nil {
					t.Fatal(err)
				}
			}
		}
		if acks != 20 {
			t.Errorf("%d pings were answered", acks)
		}
	})
}

func TestAnEnvoyWhoseKeyWasRevokedLosesItsStreamInMinutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "keys.json")
		key, secret, err := identity.CreateKey(path, identity.Key{Grants: []access.Grant{{Role: access.Read}}}, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		guarded, err := openSecurity(&accessOptions{keys: path}, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		g, l, ended := grpc.NewServer(grpcOptions(guarded)...), bufconn.Listen(1<<16), make(chan error)
		discovery.New(slog.New(slog.DiscardHandler)).Register(g)
		go func() { ended <- g.Serve(l) }()
		conn, err := grpc.NewClient("passthrough:cell", grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			g.Stop()
			if err := errors.Join(conn.Close(), <-ended, guarded.close()); err != nil {
				t.Error(err)
			}
		}()
		ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+secret)
		open := func() (end func() error) {
			stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx)
			if err != nil {
				t.Fatal(err)
			}
			got := make(chan error, 1)
			go func() {
				_, err := stream.Recv()
				got <- err
			}()
			return func() error {
				synctest.Wait()
				select {
				case err := <-got:
					return err
				default:
					return nil
				}
			}
		}
		end := open()
		time.Sleep(time.Minute)
		if err := end(); err != nil {
			t.Fatalf("a stream with a valid key: %v", err)
		}
		if _, err := identity.RevokeKey(path, key.ID, time.Now()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Minute)
		if end() == nil {
			t.Error("the stream goes on with a key that was revoked")
		}
		if err := open()(); status.Code(err) != codes.Unauthenticated {
			t.Errorf("the next stream: %v", err)
		}
	})
}
