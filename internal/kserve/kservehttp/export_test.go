package kservehttp

import (
	"net/http"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/kserve"
)

// SetStallTimeout changes how long a client may take for a part of a response.
func SetStallTimeout(t *testing.T, d time.Duration) {
	t.Helper()
	stallTimeout = d
	t.Cleanup(func() { stallTimeout = kserve.AnswerTimeout })
}

// Routes returns the patterns of a handler that New made, with their allowed methods.
func Routes(h http.Handler) map[string]string { return h.(*handler).routes }
