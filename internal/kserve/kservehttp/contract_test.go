package kservehttp

import (
	"bytes"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/iotest"

	"golang.org/x/net/nettest"

	"github.com/shoal-serving/shoal/internal/budget"
	"github.com/shoal-serving/shoal/internal/buf"
	"github.com/shoal-serving/shoal/internal/kserve"
)

// pipe returns both ends of a connection: that of the server as Listener accepts it, and
// that of a client.
func pipe() (server *conn, client net.Conn, stop func(), err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, nil, err
	}
	defer func() { _ = l.Close() }()
	if client, err = net.Dial("tcp", l.Addr().String()); err != nil {
		return nil, nil, nil, err
	}
	accepted, err := listener{l, &Drain{}, 0}.Accept()
	if err != nil {
		return nil, nil, nil, errors.Join(err, client.Close())
	}
	stop = func() {
		_ = accepted.Close() // tests close it, too
		_ = client.Close()
	}
	return accepted.(*conn), client, stop, nil
}

func TestAConnectionIsANetConn(t *testing.T) {
	nettest.TestConn(t, func() (net.Conn, net.Conn, func(), error) { return pipe() })
}

// Write and io.Copy, which finds io.ReaderFrom, write in the order of the calls, also while
// writes are buffered.
func TestAConnectionWritesInOrder(t *testing.T) {
	for _, buffered := range []bool{false, true} {
		server, client, stop, err := pipe()
		if err != nil {
			t.Fatal(err)
		}
		if buffered {
			server.held = buf.Get(maxHeld)
			server.held.B = server.held.B[:0]
		}
		long := strings.Repeat("long", maxHeld)
		var want strings.Builder
		write := func(text string, n int64, err error) {
			if err != nil || int(n) != len(text) {
				t.Errorf("%d bytes are written as %d: %v", len(text), n, err)
			}
			want.WriteString(text)
		}
		for _, text := range []string{"short", long, "", "short again"} {
			n, err := server.Write([]byte(text))
			write(text, int64(n), err)
			m, err := io.Copy(server, strings.NewReader("copied "+text))
			write("copied "+text, m, err)
		}
		if buffered {
			server.flush()
		}
		if err := server.Close(); err != nil {
			t.Error(err)
		}
		if got, err := io.ReadAll(client); err != nil || string(got) != want.String() {
			t.Errorf("buffered %v: the client receives %d bytes in another order than the %d written: %v", buffered, len(got), want.Len(), err)
		}
		stop()
	}
}

// A writer must not change or keep what it is given.
func TestAConnectionKeepsNothingOfAWrite(t *testing.T) {
	server, client, stop, err := pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	server.held = buf.Get(maxHeld)
	server.held.B = server.held.B[:0]
	p := []byte("before")
	if _, err := server.Write(p); err != nil || string(p) != "before" {
		t.Errorf("%q, %v", p, err)
	}
	copy(p, "after!")
	server.flush()
	if err := server.Close(); err != nil {
		t.Error(err)
	}
	if got, err := io.ReadAll(client); err != nil || string(got) != "before" {
		t.Errorf("the client receives %q, %v", got, err)
	}
}

// content is longer than the buffers of decompressors.
var content = bytes.Repeat([]byte("tensor data, "), 10_000)

func compressed(t *testing.T, encoding string) []byte {
	t.Helper()
	p := compress(encoding, len(content), &budget.Charge{}, func(w io.Writer) error { _, err := w.Write(content); return err })
	defer p.release()
	return bytes.Clone(p.bytes())
}

func TestABodyIsAReader(t *testing.T) {
	limits := kserve.Limits{Ratio: 1000}.WithDefaults()
	for name, wrap := range map[string]func(io.Reader) io.Reader{
		"at once":          func(r io.Reader) io.Reader { return r },
		"byte by byte":     iotest.OneByteReader,
		"half of it first": iotest.HalfReader,
	} {
		t.Run(name, func(t *testing.T) {
			if err := iotest.TestReader(&bodyReader{body: wrap(bytes.NewReader(content)), limits: &limits}, content); err != nil {
				t.Error(err)
			}
			for _, encoding := range []string{"gzip", "deflate"} {
				for range 2 { // the second has a decompressor that was used before
					in := &inflater{from: bodyReader{body: wrap(bytes.NewReader(compressed(t, encoding))), limits: &limits}, length: -1}
					if err := in.open(encoding); err != nil {
						t.Fatal(err)
					}
					if err := iotest.TestReader(in, content); err != nil {
						t.Errorf("%s: %v", encoding, err)
					}
					in.close()
				}
			}
		})
	}
}

// The error of a body reaches the reader of what is decompressed from it, and stays.
func TestABodyThatFailsFailsItsReader(t *testing.T) {
	broken := errors.New("broken")
	limits := kserve.Limits{Ratio: 1000}.WithDefaults()
	failing := func(b []byte) io.Reader {
		return io.MultiReader(bytes.NewReader(b[:len(b)/2]), iotest.ErrReader(broken))
	}
	readers := map[string]io.Reader{"as sent": &bodyReader{body: failing(content), limits: &limits}}
	for _, encoding := range []string{"gzip", "deflate"} {
		in := &inflater{from: bodyReader{body: failing(compressed(t, encoding)), limits: &limits}, length: -1}
		if err := in.open(encoding); err != nil {
			t.Fatal(err)
		}
		readers[encoding] = in
	}
	for name, r := range readers {
		if got, err := io.ReadAll(r); !errors.Is(err, broken) || !bytes.HasPrefix(content, got) {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
		if n, err := r.Read(make([]byte, 10)); n != 0 || !errors.Is(err, broken) {
			t.Errorf("%s: after the error: %d bytes, %v", name, n, err)
		}
	}
}
