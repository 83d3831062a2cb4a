package kservegrpc

import (
	"context"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/contexttest"
)

func TestAPunctualContextKeepsTheContract(t *testing.T) {
	contexttest.Check(t, func() (context.Context, func()) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
		return withEarlyDeadline(ctx), cancel
	}, func() {})
}
