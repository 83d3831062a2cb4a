package listen

import (
	"context"
	"errors"
	"net"
	"testing"
)

// Close ends an Accept that waits, with net.ErrClosed, whether or not the port refused
// connections before.
func TestCloseEndsAccept(t *testing.T) {
	for _, refuses := range []bool{false, true} {
		tcp, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		l := newListener(tcp, &Connections{})
		accepted := make(chan error, 1)
		go func() {
			_, err := l.Accept()
			accepted <- err
		}()
		if refuses {
			l.refuse(context.Background())
			select {
			case err := <-accepted:
				t.Errorf("Accept returns %v before Close", err)
				accepted <- err
			default:
			}
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		if err := <-accepted; !errors.Is(err, net.ErrClosed) {
			t.Errorf("refuses %v: Accept returns %v, want %v", refuses, err, net.ErrClosed)
		}
		if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("refuses %v: Accept after Close returns %v, want %v", refuses, err, net.ErrClosed)
		}
	}
}
