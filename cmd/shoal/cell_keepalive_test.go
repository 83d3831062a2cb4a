package main

import (
	"errors"
	"io"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"
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
