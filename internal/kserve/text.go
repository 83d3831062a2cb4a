package kserve

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/shoal-serving/shoal/internal/infer"
)

// Infer runs req with backend. Its errors have the sentences of [Worded].
func Infer(ctx context.Context, backend Backend, req *infer.Request, resp *infer.Response) error {
	return Worded(backend.Infer(ctx, req, resp), req)
}

// Worded returns err with the sentence that clients of Triton know for its reason, if
// there is one. Clients look for these sentences, so they do not change. The code, the
// time to wait and what is in the chain of err stay the same. req is the request that
// err answers; nil if it answers another call.
func Worded(err error, req *infer.Request) error {
	e, ok := errors.AsType[*infer.Error](err)
	if !ok || e.Reason == infer.Unspecified {
		return err
	}
	text := strings.Replace(err.Error(), e.Text, sentence(e, req), 1)
	return &infer.Error{Code: e.Code, Text: text, RetryAfter: e.RetryAfter, Cause: err}
}

// sentence returns what clients of Triton know e by. Errors that only Shoal has are
// here, too, so that all that clients read is in one place.
func sentence(e *infer.Error, req *infer.Request) string {
	switch e.Reason {
	case infer.UnknownModel:
		return fmt.Sprintf("Request for unknown model: '%s' is not found", e.Model)
	case infer.UnknownVersion:
		return fmt.Sprintf("Request for unknown model: '%s' version %s is not found", e.Model, e.Version)
	case infer.NoVersionServes:
		return fmt.Sprintf("Request for unknown model: '%s' has no available versions", e.Model)
	case infer.ModelLoading:
		return fmt.Sprintf("Request for unknown model: '%s' is not at ready state, it is being loaded", e.Model)
	case infer.VersionNotReady:
		return fmt.Sprintf("Request for unknown model: '%s' version %s is not at ready state", e.Model, e.Version)
	case infer.LoadNotAllowed:
		return "explicit model load / unload is not allowed if polling is enabled"
	case infer.LoadRefused:
		return fmt.Sprintf("failed to load '%s', failed to poll from model repository: %v", e.Model, Worded(e.Cause, nil))
	case infer.LoadFailed:
		return fmt.Sprintf("load failed for model '%s': version %s is at UNAVAILABLE state: %v;", e.Model, e.Version, Worded(e.Cause, nil))
	case infer.ConfigMissing:
		return "Load parameter 'config' must be specified for model file override"
	case infer.NoVersionAvailable:
		return fmt.Sprintf("at least one version must be available under the version policy of model '%s': %v", e.Model, e.Cause)
	case infer.QueueWaitExceeded:
		return "Request timeout expired"
	case infer.ShuttingDown:
		return "Server is stopping, scheduler for model has stopped accepting new inference requests"
	}
	if req == nil {
		req = &infer.Request{}
	}
	return "[request id: " + req.IDOrUnknown() + "] " + aboutRequest(e, req)
}

// aboutRequest returns the sentence of an error that is about one request, without its id.
func aboutRequest(e *infer.Error, req *infer.Request) string {
	switch e.Reason {
	case infer.TooManyRows:
		return fmt.Sprintf("the request has %d rows, which is none or more than the model takes", req.Rows)
	case infer.QueueFull:
		return "Exceeds maximum queue size"
	case infer.WouldBeLate:
		return "the model is so busy that the answer would come too late"
	case infer.DeadlinePassed:
		return "the deadline passed before the answer was there"
	case infer.ClientLeft:
		return "the client left"
	case infer.NoInstance:
		return "no instance of the model can be started; the server's log has the reason"
	case infer.InstanceLeft:
		return "the instance that holds the request's sequence has left"
	}
	return e.Text
}
