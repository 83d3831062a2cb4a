package kserve

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/shoal-serving/shoal/internal/infer"
)

// TritonError replaces the text of err with Triton's message for its reason. Clients match
// these messages, so they must not change. The result has the code, the RetryAfter and
// the Hint of err, and wraps it. An error without a reason, or with one that
// has no message, is returned unchanged. req is the request that failed, or nil if the call was
// not an inference.
func TritonError(err error, req *infer.Request) error {
	e, ok := errors.AsType[*infer.Error](err)
	if !ok || messages[e.Reason] == "" {
		return err
	}
	return &infer.Error{Code: e.Code, Text: strings.Replace(err.Error(), e.Text, tritonMessage(e, req), 1), RetryAfter: e.RetryAfter, Hint: e.Hint, Cause: err}
}

// messages are formats by reason, including reasons that only Shoal has. Their arguments
// are the model [1], the version [2], the cause [3], and the id [4], the number of rows
// [5] and the sequence [6] of the request. Errors with other reasons keep their text.
var messages = [...]string{
	infer.UnknownModel:    "Request for unknown model: '%[1]s' is not found",
	infer.UnknownVersion:  "Request for unknown model: '%[1]s' version %[2]s is not found",
	infer.NoVersionServes: "Request for unknown model: '%[1]s' has no available versions",
	infer.ModelLoading:    "Request for unknown model: '%[1]s' is not at ready state, it is being loaded",
	infer.VersionNotReady: "Request for unknown model: '%[1]s' version %[2]s is not at ready state",

	infer.TooManyRows:       "[request id: %[4]s] the request has %[5]d rows, which is none or more than the model takes",
	infer.QueueFull:         "[request id: %[4]s] Exceeds maximum queue size",
	infer.QueueWaitExceeded: "Request timeout expired",
	infer.WouldBeLate:       "[request id: %[4]s] the model is so busy that the answer would come too late",
	infer.DeadlinePassed:    "[request id: %[4]s] the deadline passed before the answer was there",
	infer.ClientLeft:        "[request id: %[4]s] the client left",
	infer.ShuttingDown:      "Server is stopping, scheduler for model has stopped accepting new inference requests",
	infer.NoInstance:        "[request id: %[4]s] no instance of the model can be started; the server's log has the reason",
	infer.InstanceLeft:      "[request id: %[4]s] the instance that holds the request's sequence has left",

	infer.SequenceNotStarted: "inference request for sequence %[6]s to model '%[1]s' must specify the START flag on the first request of the sequence",
	infer.SequenceEnded:      "[request id: %[4]s] an earlier request of the sequence was cancelled or late, and the sequence has ended",
	infer.SequenceTimedOut:   "timeout of the corresponding sequence has been expired",

	infer.LoadNotAllowed:     "explicit model load / unload is not allowed if polling is enabled",
	infer.LoadRefused:        "failed to load '%[1]s', failed to poll from model repository: %[3]v",
	infer.LoadFailed:         "load failed for model '%[1]s': version %[2]s is at UNAVAILABLE state: %[3]v;",
	infer.ConfigMissing:      "Load parameter 'config' must be specified for model file override",
	infer.NoVersionAvailable: "at least one version must be available under the version policy of model '%[1]s': %[3]v",
}

func tritonMessage(e *infer.Error, req *infer.Request) string {
	format := messages[e.Reason]
	if !strings.Contains(format, "%") {
		return format
	}
	req = cmp.Or(req, &infer.Request{})
	cause := ""
	if e.Cause != nil { // of a load, which names files
		cause = infer.WithoutPaths(e.Model, TritonError(e.Cause, nil).Error())
	}
	sequence := cmp.Or(req.CorrelationName, strconv.FormatUint(req.Correlation, 10))
	return fmt.Sprintf(format, cmp.Or(e.Model, req.Model), e.Version, cause, req.IDOrUnknown(), req.Rows, sequence)
}
