package infer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/shoal-serving/shoal/internal/buf"
	"github.com/shoal-serving/shoal/tensor"
)

func TestCodeOfFindsTheCodeInsideAnError(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want Code
	}{
		{Errorf(NotFound, "no model %q", "a"), NotFound},
		{fmt.Errorf("while loading: %w", Errorf(Unavailable, "gone")), Unavailable},
		{fmt.Errorf("call: %w", context.DeadlineExceeded), Deadline},
		{context.Canceled, Cancelled},
		{Errorf(Invalid, "body: %w", context.Canceled), Invalid},
		{io.EOF, Internal},
	} {
		if got := CodeOf(tt.err); got != tt.want {
			t.Errorf("CodeOf(%v) = %v, want %v", tt.err, got, tt.want)
		}
	}
}

func TestAnErrorKeepsWhatItWasMadeFrom(t *testing.T) {
	err := Errorf(Internal, "read: %w", io.ErrUnexpectedEOF)
	if !errors.Is(err, io.ErrUnexpectedEOF) || err.Error() != "read: unexpected EOF" {
		t.Errorf("the error is %v", err)
	}
}

func TestReleaseMakesAResponseReadyForUse(t *testing.T) {
	before := buf.Live()
	r := Response{Outputs: make([]tensor.Tensor, 2), Memory: buf.Get(10)}
	r.Release()
	r.Release() // a response without memory is valid
	if buf.Live() != before || len(r.Outputs) != 0 || cap(r.Outputs) != 2 {
		t.Errorf("%d buffers live, outputs %d of %d", buf.Live()-before, len(r.Outputs), cap(r.Outputs))
	}
}
