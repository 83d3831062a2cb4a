package infer

import (
	"cmp"
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

// A Reason says why the server refused a request or a load. Where clients of a protocol
// expect a certain sentence for a reason, that protocol replaces [Error.Text] with it.
type Reason uint8

// The closed set of reasons.
const (
	Unspecified Reason = iota // every protocol sends the text of the error

	// A model or a version cannot be used.
	UnknownModel    // the repository has no such model
	UnknownVersion  // the model has no such version
	NoVersionServes // the model is known, and none of its versions is loaded
	ModelLoading    // the first version of the model is being loaded
	VersionNotReady // the version is known and does not serve

	// A request was not run, or not to its end.
	TooManyRows       // it has no rows, or more than the model takes
	QueueFull         // the queue of the model is full
	QueueWaitExceeded // it waited longer than the model's queue policy allows
	WouldBeLate       // the answer would come after the deadline
	DeadlinePassed    // the deadline passed before the answer was ready
	ClientLeft        // the client cancelled the request
	ShuttingDown      // the model takes no more requests
	NoInstance        // no instance of the model can be started
	InstanceLeft      // the instance that holds the request's sequence is gone

	// A model was not loaded.
	LoadNotAllowed     // clients of this server cannot load and unload models
	LoadRefused        // Cause: the model cannot be read
	LoadFailed         // Cause: a version of the model cannot be started
	ConfigMissing      // files came without a configuration
	NoVersionAvailable // the version policy selects no version that exists
)

// An Error is a failure with its code, and a plain sentence about it.
type Error struct {
	Code   Code
	Reason Reason
	Text   string

	Model, Version string // that the error is about; may be "" if Reason is Unspecified

	// RetryAfter is how long the client should wait before it tries again, for
	// Overloaded, Late and Unavailable. Zero means unknown.
	RetryAfter time.Duration

	Cause error // the wrapped error; nil if there is none
}

// ErrMany is in the chain of the error that a request gets which takes one response,
// of a model that may give none or many. Protocols have their own words for it.
var ErrMany = errors.New("the model answers a request as often as it likes, and this request takes one answer")

// Errorf makes an [Error]. Its format takes %w, as [fmt.Errorf] does, also more
// than once.
func Errorf(code Code, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Code: code, Text: err.Error(), Cause: cmp.Or(errors.Unwrap(err), err)}
}

// Because sets the reason of e, and what it is about, and returns e.
func (e *Error) Because(r Reason, model, version string) *Error {
	e.Reason, e.Model, e.Version = r, model, version
	return e
}

func (e *Error) Error() string { return e.Text }

// Unwrap returns what the error was made from, if anything.
func (e *Error) Unwrap() error { return e.Cause }

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
