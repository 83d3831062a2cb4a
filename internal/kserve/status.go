package kserve

import (
	"net/http"

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
	infer.QueueTimeout: {http.StatusServiceUnavailable, codes.Unavailable},
	infer.Deadline:     {http.StatusGatewayTimeout, codes.DeadlineExceeded},
	infer.Cancelled:    {statusClientLeft, codes.Canceled},
}

// HTTPStatus returns the status of an HTTP answer that tells of an error.
func HTTPStatus(c infer.Code) int { return statuses[c].http }

// GRPCCode returns the code of a gRPC answer that tells of an error.
func GRPCCode(c infer.Code) codes.Code { return statuses[c].grpc }
