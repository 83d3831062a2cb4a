package kservehttp

import (
	"testing"
	"time"
)

// SetStallTimeout changes how long a client may take for a part of a response.
func SetStallTimeout(t *testing.T, d time.Duration) {
	t.Helper()
	stallTimeout = d
	t.Cleanup(func() { stallTimeout = defaultStallTimeout })
}
