package client

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"maps"
	"math/rand/v2"
	"net"
	"time"

	"github.com/shoal-serving/shoal/internal/kserve/kservepb"
	"github.com/shoal-serving/shoal/internal/pause"
)

// DefaultMaxResponse is the size limit of a response if [Options] sets none: 1 GiB.
const DefaultMaxResponse = 1 << 30

// Options of a client. The zero Options work.
type Options struct {
	// Retry says which calls are sent again. The zero Retry sends each call once.
	Retry Retry

	// MaxResponse is the most bytes of a response. A larger one fails with [TooLarge], an
	// error over HTTP has its code and the beginning of its text. Zero means
	// [DefaultMaxResponse].
	MaxResponse int64

	// TLS encrypts connections, and has the client's certificate if the server asks for one.
	// Over gRPC nil means no encryption. Over HTTP the scheme of the URL decides, and nil
	// means the defaults of package tls.
	TLS *tls.Config

	// Token is an API key of the server, or a token of an issuer that it accepts. It is sent
	// with every call, as "Authorization: Bearer TOKEN". Without TLS everyone on the network
	// can read it.
	Token string

	// Header is sent with every call: as HTTP headers, or as metadata of gRPC.
	Header map[string]string

	// DialContext opens connections, for example to a Unix socket. network is always
	// "tcp". Nil means a plain [net.Dialer].
	DialContext func(ctx context.Context, network, address string) (net.Conn, error)
}

// A Client calls one server. Its methods may be called by several goroutines at once;
// they share connections, which are opened when they are first needed and kept for the
// next call.
type Client struct {
	transport transport
	retry     Retry
	chance    func() float64 // for the jitter of retries, at least 0 and less than 1
}

// A transport carries calls in one of the two forms of the protocol. All errors that it
// returns are of type *Error.
type transport interface {
	live(ctx context.Context) (bool, error)
	ready(ctx context.Context) (bool, error)
	modelReady(ctx context.Context, model, version string) (bool, error)
	serverMetadata(ctx context.Context) (*kservepb.ServerMetadataResponse, error)
	metadata(ctx context.Context, model, version string) (*kservepb.ModelMetadataResponse, error)
	config(ctx context.Context, model, version string) (json.RawMessage, error)
	statistics(ctx context.Context, model, version string) (*kservepb.ModelStatisticsResponse, error)
	explain(ctx context.Context, model, version string) (json.RawMessage, error)
	index(ctx context.Context) (*kservepb.RepositoryIndexResponse, error)
	load(ctx context.Context, model string, opts LoadOptions) error
	unload(ctx context.Context, model string) error
	infer(ctx context.Context, req *Request) (*Response, error)
	stream(ctx context.Context) (*Stream, error)
	close() error
}

// NewHTTP returns a client of the server at url, such as "http://localhost:8000" or
// "https://example.org/models". The scheme may be left out; then it is https if
// [Options.TLS] is set, and http otherwise. NewHTTP does not connect: an error means that
// url is not valid.
func NewHTTP(url string, opts Options) (*Client, error) {
	opts.Header = opts.headers()
	opts.MaxResponse = cmp.Or(opts.MaxResponse, DefaultMaxResponse)
	t, err := newHTTP(url, opts)
	if err != nil {
		return nil, err
	}
	return &Client{transport: t, retry: opts.Retry, chance: rand.Float64}, nil
}

// NewGRPC returns a client of the server at target, such as "localhost:8001". Target is
// a name as [google.golang.org/grpc.NewClient] takes it. NewGRPC does not connect: an
// error means that target is not valid.
//
// All calls share one connection. A program that sends so much that the connection is
// what limits it can use several clients.
func NewGRPC(target string, opts Options) (*Client, error) {
	opts.Header = opts.headers()
	opts.MaxResponse = cmp.Or(opts.MaxResponse, DefaultMaxResponse)
	t, err := newGRPC(target, opts)
	if err != nil {
		return nil, err
	}
	return &Client{transport: t, retry: opts.Retry, chance: rand.Float64}, nil
}

// headers returns the header of every call, with the token.
func (o *Options) headers() map[string]string {
	if o.Token == "" {
		return o.Header
	}
	all := map[string]string{}
	maps.Copy(all, o.Header)
	all["Authorization"] = "Bearer " + o.Token
	return all
}

// Close closes the connections of the client, which must not be used any more. Wait for
// calls to return before you close: those that have not may fail.
func (c *Client) Close() error { return c.transport.close() }

// Infer runs a model once and returns its outputs. It retries as [Options.Retry] says.
//
// Infer reads the data of the inputs until it returns, and never changes it.
//
// Infer fails with [Unsupported] if the model is decoupled, which means that it answers
// a request any number of times: use [Client.Stream] for it.
func (c *Client) Infer(ctx context.Context, req *Request) (*Response, error) {
	if err := req.check(); err != nil {
		return nil, err
	}
	_, stateful := req.Parameters["sequence_id"]
	return retried(ctx, c, stateful, func() (*Response, error) { return c.transport.infer(ctx, req) })
}

// Stream opens a stream of requests and responses. It needs gRPC: over HTTP it fails
// with [Unsupported]. The stream ends when ctx does. The caller must close the stream.
func (c *Client) Stream(ctx context.Context) (*Stream, error) { return c.transport.stream(ctx) }

// retried calls a function until it succeeds or its error is not to be retried. A call
// that is stateful is only retried if the server has refused it for now.
func retried[T any](ctx context.Context, c *Client, stateful bool, call func() (T, error)) (T, error) {
	began := time.Now()
	for retries := 0; ; retries++ {
		v, err := call()
		if err == nil {
			return v, nil
		}
		a := attempt{retries: retries, began: began, stateful: stateful, chance: c.chance()}
		a.deadline, _ = ctx.Deadline()
		a.err, _ = errors.AsType[*Error](err)
		wait, again := c.retry.next(a, time.Now())
		if !again {
			return v, err
		}
		if pause.For(ctx, wait) != nil {
			return v, failed(ctx, ctx.Err())
		}
	}
}
