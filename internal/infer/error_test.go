package infer

import (
	"context"
	"errors"
	"testing"
)

func TestAnErrorWrapsAllThatItsFormatNames(t *testing.T) {
	first, second := errors.New("first"), errors.New("second")
	err := Errorf(Invalid, "both: %w, %w", first, second)
	if !errors.Is(err, first) || !errors.Is(err, second) || err.Error() != "both: first, second" {
		t.Errorf("%v wraps the first: %t, and the second: %t", err, errors.Is(err, first), errors.Is(err, second))
	}
	if err := Errorf(Invalid, "one: %w", first); !errors.Is(err, first) {
		t.Errorf("%v does not wrap its cause", err)
	}
	if err := Errorf(Deadline, "late: %w", context.Canceled); CodeOf(err) != Deadline {
		t.Errorf("code %v, want that of the error and not of its cause", CodeOf(err))
	}
}

func TestAReasonNamesItsModelAndVersion(t *testing.T) {
	err := Errorf(NotFound, "text").WithReason(UnknownVersion, "m", "3")
	if err.Reason != UnknownVersion || err.Model != "m" || err.Version != "3" || err.Text != "text" || err.Code != NotFound {
		t.Errorf("the error is %+v", err)
	}
}
