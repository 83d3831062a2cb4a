package kserve

import (
	"errors"
	"net/http"
	"strconv"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/shoal-serving/shoal/internal/infer"
)

// statusClientClosedRequest is nginx's status for a client that disconnected before the
// response. It is only logged.
const statusClientClosedRequest = 499

var statuses = [...]struct {
	http int
	grpc codes.Code
}{
	infer.Internal:        {http.StatusInternalServerError, codes.Internal},
	infer.Invalid:         {http.StatusBadRequest, codes.InvalidArgument},
	infer.NotFound:        {http.StatusNotFound, codes.NotFound},
	infer.Unsupported:     {http.StatusNotImplemented, codes.Unimplemented},
	infer.Unavailable:     {http.StatusServiceUnavailable, codes.Unavailable},
	infer.Overloaded:      {http.StatusTooManyRequests, codes.ResourceExhausted},
	infer.Late:            {http.StatusTooManyRequests, codes.ResourceExhausted},
	infer.QueueTimeout:    {http.StatusServiceUnavailable, codes.Unavailable},
	infer.Deadline:        {http.StatusGatewayTimeout, codes.DeadlineExceeded},
	infer.Cancelled:       {statusClientClosedRequest, codes.Canceled},
	infer.Forbidden:       {http.StatusForbidden, codes.PermissionDenied},
	infer.Unauthenticated: {http.StatusUnauthorized, codes.Unauthenticated},
	infer.Outdated:        {http.StatusConflict, codes.FailedPrecondition},
}

// TritonCode returns the code that Triton uses in place of c. Triton does not distinguish
// a full queue from a server that is unavailable.
func TritonCode(c infer.Code) infer.Code {
	if retryable(c) {
		return infer.Unavailable
	}
	return c
}

// retryable reports whether a client should retry later after this error.
func retryable(c infer.Code) bool { return c == infer.Overloaded || c == infer.Late }

// RetryDelay returns how long a client that received err should wait before it retries; 0 if
// this is not known, or if waiting does not help.
func RetryDelay(err error) time.Duration {
	e, ok := errors.AsType[*infer.Error](err)
	if !ok || !retryable(e.Code) && e.Code != infer.Unavailable {
		return 0
	}
	return e.RetryAfter
}

// RetryAfter returns the value of the Retry-After header for err. It is "" for errors that
// waiting does not resolve, and if the delay is not known.
func RetryAfter(err error) string {
	if !retryable(infer.CodeOf(err)) && RetryDelay(err) == 0 {
		return ""
	}
	return RetrySeconds(RetryDelay(err))
}

// RetrySeconds returns a delay as the value of a Retry-After header: whole seconds, and at least
// one, because a client that reads 0 retries immediately.
func RetrySeconds(delay time.Duration) string {
	return strconv.Itoa(int(max(1, (delay+time.Second-1)/time.Second)))
}

// HTTPStatus returns the HTTP status for a code.
func HTTPStatus(c infer.Code) int { return statuses[c].http }

// GRPCCode returns the gRPC code for a code.
func GRPCCode(c infer.Code) codes.Code { return statuses[c].grpc }
