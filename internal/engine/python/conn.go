package python

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/shoal-serving/shoal/internal/memfd"
)

// read returns the length of the next message, or 0 if the peer has closed the connection,
// and the descriptors that came with it, which the caller owns.
func read(conn *net.UnixConn, message []byte) (int, []int, error) {
	var control [64]byte // enough for two descriptors
	for {
		n, oob, _, _, err := conn.ReadMsgUnix(message, control[:])
		switch {
		case errors.Is(err, syscall.ECONNRESET): // reported once, if the peer closed with unread data; its last messages follow
		case errors.Is(err, io.EOF):
			return 0, nil, nil
		case oob > 0:
			return n, memfd.Descriptors(control[:oob]), err
		default:
			return n, nil, err
		}
	}
}

// connFromFD returns a connection for a descriptor. It takes ownership of fd.
func connFromFD(fd int) (*net.UnixConn, error) {
	f := os.NewFile(uintptr(fd), "conn")
	defer func() { _ = f.Close() }() // net.FileConn duplicates it
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	conn, ok := c.(*net.UnixConn)
	if !ok {
		_ = c.Close()
		return nil, errors.New("a connection that is not a Unix socket")
	}
	return conn, nil
}

// receive returns the next frame of a connection, and its payload if it has one. If the
// peer has closed the connection, it returns the zero frame and no error.
func receive(conn *net.UnixConn) (f frame, p *payload, err error) {
	var message [frameSize + 1]byte
	n, fds, err := read(conn, message[:])
	defer memfd.CloseAll(fds)
	if err != nil || n == 0 {
		return frame{}, nil, err
	}
	if f, err = readFrame(message[:n]); err != nil || f.b == 0 {
		return f, nil, err
	}
	if len(fds) != 1 {
		return f, nil, errors.New("a payload without its memory")
	}
	p, err = readPayload(fds[0], f.a, f.b)
	return f, p, err
}

// interruptReads makes reads of conn fail when ctx ends. The caller calls stop after its
// read.
func interruptReads(ctx context.Context, conn *net.UnixConn) (stop func() bool) {
	return context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) })
}
