package listen

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"testing"
	"time"

	"google.golang.org/grpc"
)

// TestConnectionsBeyondTheLimitAreRefused opens connections to an HTTP and a gRPC port, which
// share the limit.
func TestConnectionsBeyondTheLimitAreRefused(t *testing.T) {
	connections := &Connections{Max: 3, Log: slog.New(slog.DiscardHandler)}
	var addresses []string
	noted := func(p Port) Port {
		listen := p.listen
		p.listen = func() (net.Listener, error) {
			l, err := listen()
			if err == nil {
				addresses = append(addresses, l.Addr().String())
			}
			return l, err
		}
		return p
	}
	ports, err := Open(&drainer{}, []Port{
		noted(HTTP("http", "127.0.0.1:0", http.NotFoundHandler(), "")), noted(GRPC("127.0.0.1:0", grpc.NewServer(), nil, "")),
	}, Options{Connections: connections, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	var open []net.Conn
	for i := range 3 {
		open = append(open, connect(t, addresses[i%2]))
		await(t, connections, int64(i+1), 0)
	}
	for i, address := range addresses {
		c := connect(t, address)
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("a connection beyond the limit: %v, want that it is closed", err)
		}
		await(t, connections, 3, uint64(i+1))
		_ = c.Close()
	}
	_ = open[0].Close()
	await(t, connections, 2, 2)
	c := connect(t, addresses[1])
	await(t, connections, 3, 2)
	for _, c := range append(open[1:], c) {
		_ = c.Close()
	}
	if err := ports.Stop(time.Second); err != nil {
		t.Error(err)
	}
	await(t, connections, 0, 2)
}

func connect(t *testing.T, address string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// await waits until so many connections are open, and so many were refused.
func await(t *testing.T, c *Connections, open int64, refused uint64) {
	t.Helper()
	for began := time.Now(); ; time.Sleep(time.Millisecond) {
		o, r := c.State()
		if o == open && r == refused {
			return
		}
		if time.Since(began) > 10*time.Second {
			t.Fatalf("%d connections are open, and %d were refused; want %d and %d", o, r, open, refused)
		}
	}
}
