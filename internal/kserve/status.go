package kserve

import (
	"errors"
	"net/http"
	"strconv"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/shoal-serving/shoal/internal/infer"
)

// statusClientLeft is what web servers log, by custom, for a client that did
// not wait for its answer. Nobody receives it.
const statusClientLeft = 499

var statuses = [...]struct {
	http int
	grpc codes.Code
}{
	infer.Internal:     {http.StatusInternalServerError, codes.Internal},
	infer.Invalid:      {http.StatusBadRequest, codes.InvalidArgument},
	infer.NotFound:     {http.StatusNotFound, codes.NotFound},
	infer.Unsupported:  {http.StatusNotImplemented, codes.Unimplemented},
	infer.Unavailable:  {http.StatusServiceUnavailable, codes.Unavailable},
	infer.Overloaded:   {http.StatusTooManyRequests, codes.ResourceExhausted},
	infer.Late:         {http.StatusTooManyRequests, codes.ResourceExhausted},
	infer.QueueTimeout: {http.StatusServiceUnavailable, codes.Unavailable},
	infer.Deadline:     {http.StatusGatewayTimeout, codes.DeadlineExceeded},
	infer.Cancelled:    {statusClientLeft, codes.Canceled},
}

// TritonCode returns the code whose statuses a client of Triton expects. Triton
// does not tell a full queue from a server that cannot serve.
func TritonCode(c infer.Code) infer.Code {
	if backsOff(c) {
		return infer.Unavailable
	}
	return c
}

// backsOff reports whether a client that is told so should come back later.
func backsOff(c infer.Code) bool { return c == infer.Overloaded || c == infer.Late }

// RetryIn returns how long a client that received err should wait before it tries
// again; 0 if that is not known, or if waiting does not help.
func RetryIn(err error) time.Duration {
	e, ok := errors.AsType[*infer.Error](err)
	if !ok || !backsOff(e.Code) && e.Code != infer.Unavailable {
		return 0
	}
	return e.RetryAfter
}

// RetryAfter returns how long a client that received err should wait, in whole seconds,
// and at least one: a client that reads 0 comes back at once. It is "" for errors that
// waiting does not help against, and where it is not known whether it does.
func RetryAfter(err error) string {
	if !backsOff(infer.CodeOf(err)) && RetryIn(err) == 0 {
		return ""
	}
	return strconv.Itoa(int(max(1, (RetryIn(err)+time.Second-1)/time.Second)))
}

// HTTPStatus returns the status of an HTTP answer that tells of an error.
func HTTPStatus(c infer.Code) int { return statuses[c].http }

// GRPCCode returns the code of a gRPC answer that tells of an error.
func GRPCCode(c infer.Code) codes.Code { return statuses[c].grpc }
