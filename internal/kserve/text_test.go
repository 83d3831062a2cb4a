package kserve

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/infer"
)

// Clients of released servers match these messages: a change breaks them.
func TestEveryReasonHasItsSentence(t *testing.T) {
	sentences := []string{
		infer.Unspecified:        "plain",
		infer.UnknownModel:       "Request for unknown model: 'm' is not found",
		infer.UnknownVersion:     "Request for unknown model: 'm' version 7 is not found",
		infer.NoVersionServes:    "Request for unknown model: 'm' has no available versions",
		infer.ModelLoading:       "Request for unknown model: 'm' is not at ready state, it is being loaded",
		infer.VersionNotReady:    "Request for unknown model: 'm' version 7 is not at ready state",
		infer.NotInMemory:        "plain",
		infer.NoMemory:           "plain",
		infer.TooManyRows:        "[request id: five] the request has 9 rows, which is none or more than the model takes",
		infer.QueueFull:          "[request id: five] Exceeds maximum queue size",
		infer.QueueWaitExceeded:  "Request timeout expired",
		infer.WouldBeLate:        "[request id: five] the model is so busy that the answer would come too late",
		infer.DeadlinePassed:     "[request id: five] the deadline passed before the answer was there",
		infer.ClientLeft:         "[request id: five] the client left",
		infer.ShuttingDown:       "Server is stopping, scheduler for model has stopped accepting new inference requests",
		infer.NoInstance:         "[request id: five] no instance of the model can be started; the server's log has the reason",
		infer.InstanceLeft:       "[request id: five] the instance that holds the request's sequence has left",
		infer.SequenceNotStarted: "inference request for sequence 0 to model 'm' must specify the START flag on the first request of the sequence",
		infer.SequenceEnded:      "[request id: five] an earlier request of the sequence was cancelled or late, and the sequence has ended",
		infer.SequenceTimedOut:   "timeout of the corresponding sequence has been expired",
		infer.LoadNotAllowed:     "explicit model load / unload is not allowed if polling is enabled",
		infer.LoadRefused:        "failed to load 'm', failed to poll from model repository: cause",
		infer.LoadFailed:         "load failed for model 'm': version 7 is at UNAVAILABLE state: cause;",
		infer.ConfigMissing:      "Load parameter 'config' must be specified for model file override",
		infer.NoVersionAvailable: "at least one version must be available under the version policy of model 'm': cause",
	}
	cause, req := errors.New("cause"), &infer.Request{ID: "five", Rows: 9}
	for reason, want := range sentences {
		err := &infer.Error{
			Code: infer.Overloaded, Reason: infer.Reason(reason), Model: "m", Version: "7", Text: "plain", RetryAfter: time.Second, Cause: cause,
		}
		got := TritonError(err, req)
		if got.Error() != want || infer.CodeOf(got) != infer.Overloaded || RetryDelay(got) != time.Second || !errors.Is(got, cause) {
			t.Errorf("reason %d: %v (%v, %v), want %s", reason, got, infer.CodeOf(got), RetryDelay(got), want)
		}
		if again := TritonError(got, nil); again.Error() != want {
			t.Errorf("reason %d, worded again: %v", reason, again)
		}
	}
}

func TestAnErrorInsideAnotherHasItsSentence(t *testing.T) {
	inner := &infer.Error{Code: infer.Invalid, Reason: infer.ConfigMissing, Text: "plain"}
	for want, err := range map[string]error{
		"failed to load 'm', failed to poll from model repository: Load parameter 'config' must be specified for model file override": &infer.Error{
			Reason: infer.LoadRefused, Model: "m", Text: "not loaded", Cause: inner,
		},
		"while loading: Load parameter 'config' must be specified for model file override": fmt.Errorf("while loading: %w", inner),
		"[request id: <id_unknown>] Exceeds maximum queue size":                            &infer.Error{Reason: infer.QueueFull},
	} {
		if got := TritonError(err, nil); got.Error() != want {
			t.Errorf("%v, want %s", got, want)
		}
	}
}

func TestWhatHasNoReasonStaysAsItIs(t *testing.T) {
	plain := errors.New("plain")
	if got := TritonError(plain, nil); !errors.Is(got, plain) || got.Error() != "plain" {
		t.Errorf("got %v", got)
	}
	if got := TritonError(nil, nil); got != nil {
		t.Errorf("got %v", got)
	}
}
