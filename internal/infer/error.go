package infer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// A Code classifies the failure of an inference by what the client should do about it.
// Protocols map it to their status codes.
type Code uint8

// The codes. Switches over them may rely on the list being complete.
const (
	Internal        Code = iota // a bug or a failing model: report it
	Invalid                     // fix the request
	NotFound                    // fix the name
	Unsupported                 // the server does not support this: change the request
	Unavailable                 // the model is not ready or is stopping: retry later or elsewhere
	Overloaded                  // the queue is full: back off
	Late                        // the response would miss the deadline or the model's objective: back off or allow more time
	QueueTimeout                // the request waited longer than the model's queue policy allows: back off
	Deadline                    // the client's deadline passed
	Cancelled                   // the client cancelled the request
	Forbidden                   // the client may not do this: ask the operator of the server
	Unauthenticated             // the client sent no valid credentials: send some
	Outdated                    // a newer client controls the server: stop
)

var codeNames = [...]string{
	"internal", "invalid", "not found", "unsupported", "unavailable", "overloaded", "would be late", "queue timeout", "deadline", "cancelled", "forbidden", "unauthenticated", "outdated",
}

// NumCodes is the number of codes.
const NumCodes = len(codeNames)

func (c Code) String() string { return codeNames[c] }

// A Reason is why the server rejected a request or a load. Where clients of a protocol
// expect a certain message for a reason, that protocol replaces [Error.Text] with it.
type Reason uint8

// The reasons. Switches over them may rely on the list being complete.
const (
	Unspecified Reason = iota // all protocols send the text of the error

	// A model or a version cannot be used.
	UnknownModel    // the repository has no such model
	UnknownVersion  // the model has no such version
	NoVersionServes // the model is known, and none of its versions is loaded
	ModelLoading    // the first version of the model is being loaded
	VersionNotReady // the version is known, but does not serve
	NotInMemory     // the server loads models on demand, and does not load this one now, or it was unloaded while it was loaded; all protocols send the text of the error
	NoMemory        // the same, because other models have the memory

	// A request was not run, or not to completion.
	TooManyRows       // it has no rows, or more than the model accepts
	QueueFull         // the queue of the model is full
	QueueWaitExceeded // it waited longer than the model's queue policy allows
	WouldBeLate       // the response would miss the deadline
	DeadlinePassed    // the deadline passed before the response was ready
	ClientLeft        // the client cancelled the request
	ShuttingDown      // the model accepts no more requests
	NoInstance        // no instance of the model can be started
	InstanceLeft      // the instance that holds the request's sequence is gone

	// A request does not fit into its sequence.
	SequenceNotStarted // its sequence does not exist, and it does not start one
	SequenceEnded      // an earlier request of its sequence did not run
	SequenceTimedOut   // its sequence waited too long for a slot

	// A model was not loaded.
	LoadNotAllowed     // clients of this server cannot load and unload models
	LoadRefused        // Cause: the model cannot be read
	LoadFailed         // Cause: a version of the model cannot be started
	ConfigMissing      // files came without a configuration
	NoVersionAvailable // the version policy selects no version that exists
)

// An Error is a failure: its code, its reason, and a message for the client.
type Error struct {
	Code   Code
	Reason Reason
	Text   string

	Model, Version string // what the error is about; may be "" if Reason is Unspecified

	// RetryAfter is how long the client should wait before it retries, for Overloaded,
	// Late and Unavailable. Zero means unknown.
	RetryAfter time.Duration

	// Hint says what the client can do. It is not part of Text, because clients of some
	// protocols expect certain texts; protocols that can send it beside the text do. "" means
	// none.
	Hint string

	// Mismatch is set if the request does not match the inputs and outputs of the model, so
	// that a protocol may add what the model expects.
	Mismatch bool

	Cause error // the wrapped error; nil if there is none
}

// ErrDecoupled is wrapped by the error of a request that accepts exactly one response, for a
// decoupled model, which may send none or many. Protocols replace its message.
var ErrDecoupled = errors.New("the model is decoupled and may send any number of responses, but the request accepts exactly one")

// Errorf returns an [Error] with a formatted message. Like [fmt.Errorf], it wraps the
// operands of %w, of which there may be several.
func Errorf(code Code, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Code: code, Text: err.Error(), Cause: cmp.Or(errors.Unwrap(err), err)}
}

// WithReason sets the reason of e and the model and version that it is about, and returns e.
func (e *Error) WithReason(r Reason, model, version string) *Error {
	e.Reason, e.Model, e.Version = r, model, version
	return e
}

// WithHint sets the hint of e, and returns e.
func (e *Error) WithHint(format string, args ...any) *Error {
	e.Hint = fmt.Sprintf(format, args...)
	return e
}

func (e *Error) Error() string { return e.Text }

// Unwrap returns the wrapped error, or nil.
func (e *Error) Unwrap() error { return e.Cause }

// HasReason reports whether an [Error] in the chain of err has one of the reasons. An ensemble wraps
// the errors of its members, for example.
func HasReason(err error, reasons ...Reason) bool {
	for e, ok := errors.AsType[*Error](err); ok; e, ok = errors.AsType[*Error](e.Cause) {
		if slices.Contains(reasons, e.Reason) {
			return true
		}
	}
	return false
}

// CodeOf returns the code of err: that of the outermost [Error] in its chain, Deadline or
// Cancelled for the error of a context, and Internal for any other error.
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
