package bench

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"

	"google.golang.org/grpc/mem"
)

// A Raw is a request to a server that need not speak KServe v2, as it is sent.
type Raw struct {
	Address string // host:port
	Path    string // what is posted to; over gRPC the full name of a method
	Header  string // further lines of an HTTP request's header, each with its end
	Body    []byte // over gRPC the message, encoded; the caller keeps it
}

// NewRawHTTP returns a caller that sends this one request over HTTP.
func NewRawHTTP(r Raw) Caller {
	return &rawHTTP{request: post(r.Address, r.Path, r.Header, r.Body), wires: wires{to: &url.URL{Scheme: "http", Host: r.Address}}}
}

// NewRawGRPC returns a caller that sends this one message over gRPC, each time in a
// call of its own.
func NewRawGRPC(r Raw) (Caller, error) {
	c, err := newGRPC(&grpcCaller{address: r.Address, method: r.Path, requests: []mem.BufferSlice{{mem.SliceBuffer(r.Body)}}})
	if err != nil {
		return nil, err
	}
	return &rawGRPC{caller: c}, nil
}

// post returns a request as it goes over the wire: the header and the body in one
// piece, which is one packet if it is small.
func post(host, path, header string, body ...[]byte) []byte {
	size := 0
	for _, part := range body {
		size += len(part)
	}
	head := fmt.Appendf(nil, "POST %s HTTP/1.1\r\nHost: %s\r\nUser-Agent: shoal-bench\r\n%sContent-Length: %d\r\n\r\n", path, host, header, size)
	return slices.Concat(append([][]byte{head}, body...)...)
}

type rawHTTP struct {
	untold
	request []byte
	wires   wires
}

// Infer implements [Caller].
func (c *rawHTTP) Infer(ctx context.Context, _ int) error { return c.wires.exchange(ctx, c.request) }

// Close implements [Caller].
func (c *rawHTTP) Close() error { return c.wires.close() }

type rawGRPC struct {
	untold
	caller Caller
}

// Infer implements [Caller].
func (c *rawGRPC) Infer(ctx context.Context, _ int) error { return c.caller.Infer(ctx, 0) }

// Close implements [Caller].
func (c *rawGRPC) Close() error { return c.caller.Close() }

// untold is what a caller does not do that only knows what to send.
type untold struct{}

var errUntold = errors.New("a request that is sent as it is has no model to ask about")

// Model implements [Caller].
func (untold) Model(context.Context) (Model, error) { return Model{}, errUntold }

// Prepare implements [Caller].
func (untold) Prepare([]Request) error { return errUntold }

// Statistics implements [Caller].
func (untold) Statistics(context.Context) (Statistics, error) { return Statistics{}, errUntold }
