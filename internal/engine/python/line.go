package python

import (
	"context"
	"errors"
	"net"
	"os"
	"time"

	"github.com/shoal-serving/shoal/internal/buf"
	"github.com/shoal-serving/shoal/internal/memfd"
)

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
	var control [64]byte // more than one descriptor needs
	n, oob, _, _, err := line.ReadMsgUnix(message[:], control[:])
	fds := memfd.Descriptors(control[:oob])
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

// release gives back what a parcel is in, if there is one.
func (p *parcel) release() {
	if p != nil {
		p.memory.Release()
		p.memory = nil
	}
}

// take gives the memory to the caller.
func (p *parcel) take() *buf.Buf {
	m := p.memory
	p.memory = nil
	return m
}
