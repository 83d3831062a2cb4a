package mms

import (
	"fmt"
	"net/http"
	"time"
)

// An Error is a failure with the status and the words that clients of MMS and
// TorchServe know.
type Error struct {
	Status  int
	Type    string // the name of an exception, which clients see
	Message string

	RetryAfter time.Duration // of statuses 429 and 503; zero means that it is not known
}

func (e *Error) Error() string { return e.Message }

func fail(status int, kind, format string, args ...any) *Error {
	return &Error{Status: status, Type: kind, Message: fmt.Sprintf(format, args...)}
}

func badRequest(format string, args ...any) *Error {
	return fail(http.StatusBadRequest, "BadRequestException", format, args...)
}

func invalidModel(format string, args ...any) *Error {
	return fail(http.StatusBadRequest, "InvalidModelException", format, args...)
}

func notFound(format string, args ...any) *Error {
	return fail(http.StatusNotFound, "ModelNotFoundException", format, args...)
}

func internal(format string, args ...any) *Error {
	return fail(http.StatusInternalServerError, "InternalServerException", format, args...)
}

func unavailable(format string, args ...any) *Error {
	return fail(http.StatusServiceUnavailable, "ServiceUnavailableException", format, args...)
}
