package client

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// A Code is one of the ways in which a call can fail, one for each thing that a program
// can do about it. Codes are errors, so that a program can ask
// errors.Is(err, client.Overloaded).
type Code uint8

// The codes.
const (
	Unknown     Code = iota // the server gave no code, as for a request of a stream that failed
	Internal                // the model failed, or the server has a defect: report it
	Invalid                 // fix the request
	TooLarge                // the request or the response exceeds a size limit
	NotFound                // fix the name of the model, or load it
	Unsupported             // the server, or this transport, cannot do it
	Denied                  // the credentials are missing or do not suffice
	Unavailable             // the server cannot be reached, or the model is not ready: try again
	Overloaded              // the queue of the model is full: send less, and try again
	Deadline                // the deadline passed; also matches context.DeadlineExceeded
	Canceled                // the context was canceled; also matches context.Canceled
)

var codeNames = [...]string{
	Unknown: "unknown", Internal: "internal", Invalid: "invalid", TooLarge: "too large", NotFound: "not found", Unsupported: "unsupported",
	Denied: "denied", Unavailable: "unavailable", Overloaded: "overloaded", Deadline: "deadline exceeded", Canceled: "canceled",
}

// String returns the name of the code in lower case, such as "not found".
func (c Code) String() string {
	if int(c) >= len(codeNames) {
		return fmt.Sprintf("Code(%d)", uint8(c))
	}
	return codeNames[c]
}

// Error returns the name of the code. It makes codes errors.
func (c Code) Error() string { return c.String() }

// CodeOf returns the code of the [*Error] in the chain of err, and [Unknown] if there is
// none.
func CodeOf(err error) Code {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	return Unknown
}

// An Error is why a call failed.
type Error struct {
	Code    Code
	Message string // the server's sentence, or that of Err

	// Status is the status that the server answered with, such as "404 Not Found" or
	// "NotFound". It is empty if there was no answer.
	Status string

	// RetryAfter is how long the server asks the client to wait before it tries again.
	// Zero means that the server did not ask.
	RetryAfter time.Duration

	// Err is the error of the network, of the context or of gRPC. It is nil if there is
	// none, as where an HTTP server has answered.
	Err error
}

// Error returns the message, and the status in parentheses if there is one.
func (e *Error) Error() string {
	if e.Status == "" {
		return e.Message
	}
	return fmt.Sprintf("%s (%s)", e.Message, e.Status)
}

// Unwrap returns e.Err.
func (e *Error) Unwrap() error { return e.Err }

// Is reports whether target is the code of e. [Deadline] and [Canceled] also match the
// errors of package context, since a server may notice a deadline before the client does.
func (e *Error) Is(target error) bool {
	switch target {
	case e.Code:
		return true
	case context.DeadlineExceeded:
		return e.Code == Deadline
	case context.Canceled:
		return e.Code == Canceled
	}
	return false
}

// invalid returns an error of a call that was not sent, because it cannot succeed.
func invalid(format string, args ...any) *Error {
	return &Error{Code: Invalid, Message: fmt.Sprintf(format, args...)}
}

// malformed returns an error of a response that is not valid KServe v2.
func malformed(err error) *Error {
	return &Error{Code: Internal, Message: fmt.Sprintf("the response is not valid KServe v2: %v", err), Err: err}
}

// failed returns the error of a call that was not answered, by what ended it.
func failed(ctx context.Context, err error) *Error {
	e := &Error{Code: Unavailable, Message: err.Error(), Err: err}
	switch ended := ctx.Err(); {
	case errors.Is(err, context.DeadlineExceeded) || errors.Is(ended, context.DeadlineExceeded):
		e.Code = Deadline
	case errors.Is(err, context.Canceled) || errors.Is(ended, context.Canceled):
		e.Code = Canceled
	}
	return e
}
