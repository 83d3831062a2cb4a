package python

import (
	"context"
	"errors"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/shoal-serving/shoal/internal/memfd"
)

// read returns the length of the next message, 0 if the other end is closed, and the
// descriptors that came with it, which are the caller's.
func read(conn *net.UnixConn, message []byte) (int, []int, error) {
	var control [64]byte // more than two descriptors need
	for {
		n, oob, _, _, err := conn.ReadMsgUnix(message, control[:])
		switch {
		case errors.Is(err, syscall.ECONNRESET): // said once, of what it will not read any more. What it sent comes after
		case oob > 0:
			return n, memfd.Descriptors(control[:oob]), err
		default:
			return n, nil, err
		}
	}
}

// lineOf makes a connection of a descriptor, which it takes over.
func lineOf(fd int) (*net.UnixConn, error) {
	f := os.NewFile(uintptr(fd), "line")
	defer func() { _ = f.Close() }() // the connection has a copy
	conn, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	line, ok := conn.(*net.UnixConn)
	if !ok {
		_ = conn.Close()
		return nil, errors.New("a line that is not a socket of this machine")
	}
	return line, nil
}

// receive returns the next frame of a line, and its parcel if it has one. What it
// returns of a line that was closed is no frame, and no error.
func receive(line *net.UnixConn) (f frame, p *parcel, err error) {
	var message [frameSize + 1]byte
	n, fds, err := read(line, message[:])
	defer memfd.CloseAll(fds)
	if err != nil || n == 0 {
		return frame{}, nil, err
	}
	if f, err = readFrame(message[:n]); err != nil || f.b == 0 {
		return f, nil, err
	}
	if len(fds) != 1 {
		return f, nil, errors.New("a parcel without its memory")
	}
	p, err = readParcel(fds[0], f.a, f.b)
	return f, p, err
}

// until makes reads of a line end when ctx does. The caller calls what it returns.
func until(ctx context.Context, line *net.UnixConn) (stop func() bool) {
	return context.AfterFunc(ctx, func() { _ = line.SetReadDeadline(time.Unix(1, 0)) })
}
