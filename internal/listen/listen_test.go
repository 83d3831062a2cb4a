package listen

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/identity"
	"github.com/shoal-serving/shoal/internal/identity/identitytest"
	"github.com/shoal-serving/shoal/internal/leak"
	"github.com/shoal-serving/shoal/internal/pause"
)

func TestMain(m *testing.M) { leak.Main(m) }

// a drainer never has requests in flight.
type drainer struct{ drained atomic.Bool }

func (d *drainer) Drain()        { d.drained.Store(true) }
func (d *drainer) InFlight() int { return 0 }

// open opens an HTTP port that answers with 200, and with 503 once it drains.
func open(t *testing.T) (*Ports, string) {
	t.Helper()
	d := &drainer{}
	return openHTTP(t, d, Options{}, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if d.drained.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
}

// openHTTP opens a port, and returns its address.
func openHTTP(t *testing.T, d Drainer, opts Options, handler http.HandlerFunc) (*Ports, string) {
	t.Helper()
	var address string
	port := HTTP("http", "127.0.0.1:0", handler, "")
	listen := port.listen
	port.listen = func() (net.Listener, error) {
		l, err := listen()
		if err == nil {
			address = l.Addr().String()
		}
		return l, err
	}
	opts.Log = slog.New(slog.DiscardHandler)
	ports, err := Open(d, []Port{port}, opts)
	if err != nil {
		t.Fatal(err)
	}
	return ports, address
}

// A client sends requests on one connection.
type client struct {
	net.Conn
	r *bufio.Reader
}

func dial(address string) (*client, error) {
	c, err := net.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	return &client{c, bufio.NewReader(c)}, nil
}

// post returns the status of a request, and whether the response asks to close the
// connection.
func (c *client) post() (status int, closes bool, err error) {
	if _, err := io.WriteString(c, "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhello"); err != nil {
		return 0, false, err
	}
	resp, err := http.ReadResponse(c.r, nil)
	if err != nil {
		return 0, false, err
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, resp.Close, errors.Join(err, resp.Body.Close())
}

// A handler that answers without the body makes net/http wait for it.
func TestABodyThatIsNotReadHasATimeLimit(t *testing.T) {
	ports, address := openHTTP(t, &drainer{}, Options{BodyTimeout: 50 * time.Millisecond}, func(http.ResponseWriter, *http.Request) {})
	defer func() { _ = ports.Stop(time.Second) }()
	for _, body := range []string{"Content-Length: 1\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\n1\r\n"} {
		c, err := dial(address)
		if err != nil {
			t.Fatal(err)
		}
		_ = c.SetDeadline(time.Now().Add(20 * time.Second))
		if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: localhost\r\n"+body); err != nil {
			t.Error(err)
		}
		if _, err := io.Copy(io.Discard, c.r); err != nil { // until the server closes the connection
			t.Errorf("%q: %v", body, err)
		}
		_ = c.Close()
	}
}

// Clients open connections that they use later. One that the server closed when it is used would fail
// the request, which clients do not repeat.
func TestANewConnectionMayBeIdleAndThenHasItsTimes(t *testing.T) {
	cert, key := identitytest.NewCA(t).Issue(t, "server")
	certificates, err := identity.OpenTLS(identity.TLSOptions{Cert: cert, Key: key}, "http/1.1")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(certificates.Close)
	const timeout = 300 * time.Millisecond
	for name, encrypted := range map[string]*identity.TLS{"plain": nil, "TLS": certificates} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ports, address := openHTTP(t, &drainer{}, Options{HeaderTimeout: timeout, BodyTimeout: timeout, IdleTimeout: time.Minute, TLS: encrypted}, func(w http.ResponseWriter, r *http.Request) {
				if _, err := io.Copy(io.Discard, r.Body); err != nil {
					w.WriteHeader(http.StatusRequestTimeout)
				}
			})
			defer func() { _ = ports.Stop(time.Second) }()
			begin := func() *client {
				c, err := dial(address)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = c.Close() })
				if encrypted != nil {
					shaken := tls.Client(c.Conn, &tls.Config{InsecureSkipVerify: true})
					if err := shaken.Handshake(); err != nil {
						t.Fatal(err)
					}
					c = &client{shaken, bufio.NewReader(shaken)}
				}
				time.Sleep(3 * timeout)
				_ = c.SetDeadline(time.Now().Add(30 * time.Second))
				return c
			}
			if encrypted != nil { // handshakes do not wait
				c, err := dial(address)
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = c.Close() }()
				_ = c.SetDeadline(time.Now().Add(30 * time.Second))
				if _, err := io.Copy(io.Discard, c.r); err != nil {
					t.Errorf("without a handshake: %v", err)
				}
			}
			c := begin()
			if status, _, err := c.post(); err != nil || status != http.StatusOK {
				t.Errorf("the first request of a connection: %d, %v", status, err)
			}
			for _, part := range []string{"P", "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhell"} {
				c := begin()
				began := time.Now()
				if _, err := io.WriteString(c, part); err != nil {
					t.Fatal(err)
				}
				if _, err := io.Copy(io.Discard, c.r); err != nil || time.Since(began) < timeout/2 {
					t.Errorf("after %q the server closed the connection after %v: %v", part, time.Since(began), err)
				}
			}
		})
	}
}

func TestAnAnswerWithoutABodyMayTakeLongerThanABody(t *testing.T) {
	const timeout = 20 * time.Millisecond
	ports, address := openHTTP(t, &drainer{}, Options{BodyTimeout: timeout}, func(w http.ResponseWriter, r *http.Request) {
		if pause.For(r.Context(), 5*timeout) != nil {
			w.WriteHeader(http.StatusRequestTimeout)
		}
	})
	defer func() { _ = ports.Stop(time.Second) }()
	c, err := dial(address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if line, err := c.r.ReadString('\n'); err != nil || line != "HTTP/1.1 200 OK\r\n" {
		t.Errorf("got %q, %v", line, err)
	}
}

func TestAnOpenConnectionGetsOneMoreAnswerWhenTheServerStops(t *testing.T) {
	ports, address := open(t)
	c, err := dial(address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if status, closes, err := c.post(); err != nil || status != http.StatusOK || closes {
		t.Fatalf("status %d, %v, want 200 on a connection that stays open", status, err)
	}
	stopped := make(chan error, 1)
	go func() { stopped <- ports.Stop(time.Minute) }()
	for { // until the port closes, after which only this connection is left
		other, err := net.DialTimeout("tcp", address, 20*time.Millisecond)
		if err != nil {
			break
		}
		_ = other.Close()
	}
	if status, closes, err := c.post(); err != nil || status != http.StatusServiceUnavailable || !closes {
		t.Errorf("status %d, %v, want 503 that asks to close the connection", status, err)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

// openWithIdleConnection opens a port, to which one client is connected that was answered.
func openWithIdleConnection(t *testing.T) *Ports {
	t.Helper()
	ports, address := open(t)
	c, err := dial(address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if _, _, err := c.post(); err != nil {
		t.Fatal(err)
	}
	return ports
}

func TestAServerDoesNotWaitForIdleConnectionsForLong(t *testing.T) {
	ports := openWithIdleConnection(t)
	began := time.Now()
	if err := ports.Stop(time.Minute); err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took < linger || took > 10*linger {
		t.Errorf("stopped after %v, want about %v", took, linger)
	}
}

// TestAServerDoesNotWaitForBodiesForLong has a client that sends half of a body, to a handler that
// reads it and to one that does not.
func TestAServerDoesNotWaitForSilentConnectionsForLong(t *testing.T) {
	ports, address := openHTTP(t, &drainer{}, Options{HeaderTimeout: time.Minute, IdleTimeout: time.Minute}, func(http.ResponseWriter, *http.Request) {})
	c, err := dial(address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	time.Sleep(linger / 4) // until it has been accepted
	began := time.Now()
	if err := ports.Stop(time.Minute); err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took < linger || took > 4*linger {
		t.Errorf("stopped after %v, want %v", took, linger)
	}
}

func TestAServerDoesNotWaitForBodiesForLong(t *testing.T) {
	for _, reads := range []bool{true, false} {
		began := make(chan struct{})
		ports, address := openHTTP(t, &drainer{}, Options{}, func(_ http.ResponseWriter, r *http.Request) {
			close(began)
			if reads {
				_, _ = io.Copy(io.Discard, r.Body)
			}
		})
		c, err := dial(address)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(c, "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nhalf"); err != nil {
			t.Fatal(err)
		}
		<-began
		stopping := time.Now()
		if err := ports.Stop(time.Minute); err != nil {
			t.Error(err)
		}
		if took := time.Since(stopping); took < linger || took > 10*linger {
			t.Errorf("reads %t: stopped after %v, want about %v", reads, took, linger)
		}
		_ = c.Close()
	}
}

func TestAServerWithoutTimeDoesNotLinger(t *testing.T) {
	ports := openWithIdleConnection(t)
	began := time.Now()
	if err := ports.Stop(0); err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took >= linger {
		t.Errorf("stopped after %v, want less than %v", took, linger)
	}
}

// TestEveryClientIsAnsweredOrRefusedWhenTheServerStops has clients that keep asking, on
// connections that they keep for as long as the server lets them, and anew.
func TestEveryClientIsAnsweredOrRefusedWhenTheServerStops(t *testing.T) {
	if !lossless {
		t.Skip("On this system connections that were not accepted yet are lost.")
	}
	const clients = 16
	for range 2 {
		ports, address := open(t)
		var answered, refused atomic.Int64
		errs := make(chan error, clients)
		var all sync.WaitGroup
		for range clients {
			all.Go(func() { errs <- keepAsking(address, &answered, &refused) })
		}
		for answered.Load() < 10*clients {
			time.Sleep(time.Millisecond)
		}
		if err := ports.Stop(time.Minute); err != nil {
			t.Error(err)
		}
		all.Wait()
		close(errs)
		for err := range errs {
			if err != nil {
				t.Errorf("a request without an answer: %v", err)
			}
		}
		if refused.Load() != clients {
			t.Errorf("%d clients were refused in the end, want %d", refused.Load(), clients)
		}
	}
}

// keepAsking asks until the port is closed.
func keepAsking(address string, answered, refused *atomic.Int64) error {
	for {
		c, err := dial(address)
		if errors.Is(err, syscall.ECONNREFUSED) {
			refused.Add(1)
			return nil
		}
		if err != nil {
			return err
		}
		for {
			_, closes, err := c.post()
			if err != nil {
				_ = c.Close()
				return fmt.Errorf("on a connection: %w", err)
			}
			answered.Add(1)
			if closes {
				break
			}
		}
		_ = c.Close()
	}
}

func TestAPortThatCannotBeOpenedClosesTheOthers(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := free.Close(); err != nil {
		t.Fatal(err)
	}
	_, err = Open(&drainer{}, []Port{
		HTTP("http", free.Addr().String(), http.NotFoundHandler(), ""), HTTP("metrics", taken.Addr().String(), http.NotFoundHandler(), "choose another"),
	}, Options{Log: slog.New(slog.DiscardHandler)})
	if !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("error %v, want that the address is in use", err)
	}
	again, err := net.Listen("tcp", free.Addr().String())
	if err != nil {
		t.Fatalf("the other port is still open: %v", err)
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
}

func TestEveryPortThatCannotBeOpenedIsNamed(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	address := taken.Addr().String()
	_, err = Open(&drainer{}, []Port{
		HTTP("http", address, http.NotFoundHandler(), "choose another with --http-port"), HTTP("metrics", address, http.NotFoundHandler(), "choose another with --metrics-port"),
	}, Options{Log: slog.New(slog.DiscardHandler)})
	if err == nil || !strings.Contains(err.Error(), "--http-port") || !strings.Contains(err.Error(), "--metrics-port") {
		t.Errorf("error %v, want both ports", err)
	}
}
