package kservegrpc

import (
	"context"
	"strings"

	"google.golang.org/grpc/tap"

	"github.com/shoal-serving/shoal/internal/kserve"
)

// headers are the headers of a call that inferences use. They are read when they arrive, by two
// lookups: [metadata.ValueFromIncomingContext] compares a name that is absent with all headers,
// which took one of 75 instructions of a request.
type headers struct {
	version                 string
	traceparent, tracestate string
}

type headersKey struct{}

var versionHeader = strings.ToLower(kserve.VersionHeader) // as gRPC has it

// tap puts the headers into the context of a call that has any of them.
func (s *service) tap(ctx context.Context, info *tap.Info) (context.Context, error) {
	version, traceparent := info.Header[versionHeader], info.Header["traceparent"]
	if len(version) > 0 || len(traceparent) > 0 {
		ctx = context.WithValue(ctx, headersKey{}, &headers{
			kserve.FirstValue(version), kserve.FirstValue(traceparent), kserve.FirstValue(info.Header["tracestate"]),
		})
	}
	if s.opts.Tap == nil {
		return ctx, nil
	}
	return s.opts.Tap(ctx, info)
}

// headersOf returns the headers of a call; none of them if it has none.
func headersOf(ctx context.Context) headers {
	if h, ok := ctx.Value(headersKey{}).(*headers); ok {
		return *h
	}
	return headers{}
}
