package infer

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// A Code is one of the ways in which an inference can fail, one for each thing
// that a client should do differently. Faces map it to their statuses.
type Code uint8

// The closed set of codes.
const (
	Internal     Code = iota // a defect or a failing model: report it
	Invalid                  // fix the request
	NotFound                 // fix the name
	Unsupported              // the server cannot do this: ask for something else
	Unavailable              // the model is not ready, or is going away: try elsewhere or later
	Overloaded               // the queue is full: back off
	Late                     // would be answered after its deadline, or later than the model should: back off, or allow more time
	QueueTimeout             // waited longer than the model's queue policy allows: back off
	Deadline                 // the client's own deadline passed
	Cancelled                // the client left
)

var codeNames = [...]string{
	"internal", "invalid", "not found", "unsupported", "unavailable", "overloaded", "would be late", "queue timeout", "deadline", "cancelled",
}

// Codes is how many there are.
const Codes = len(codeNames)

func (c Code) String() string { return codeNames[c] }

// An Error is a failure with its code and the sentence that the client sees.
type Error struct {
	Code Code
	Text string
	// RetryAfter is how long the client should wait before it tries again, for
	// Overloaded, Late and Unavailable. Zero means unknown.
	RetryAfter time.Duration

	cause error
}

// ErrMany is in the chain of the error that a request gets which takes one response,
// of a model that may give none or many. Protocols have their own words for it.
var ErrMany = errors.New("the model answers a request as often as it likes, and this request takes one answer")

// Errorf makes an [Error]. Its format takes %w, as [fmt.Errorf] does, also more
// than once.
func Errorf(code Code, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Code: code, Text: err.Error(), cause: err}
}

func (e *Error) Error() string { return e.Text }

// Unwrap returns what the error was made from, if anything.
func (e *Error) Unwrap() error { return e.cause }

// CodeOf returns the code of err: that of the outermost [Error] in its chain,
// Deadline or Cancelled for a context's error, and Internal for all else.
func CodeOf(err error) Code {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return Deadline
	case errors.Is(err, context.Canceled):
		return Cancelled
	}
	return Internal
}
