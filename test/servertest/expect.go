package servertest

import (
	"strings"
	"testing"
	"time"
)

// Contains fails the test if any part of a text is missing.
func Contains(t testing.TB, what, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("%s: %q is not in: %s", what, part, text)
		}
	}
}

// Eventually asks again and again until the answer is yes, for a minute: on a busy machine a
// browser may take half of it for a page.
func Eventually(t *testing.T, what string, yes func() bool) {
	t.Helper()
	patience := time.Now().Add(time.Minute)
	for !yes() {
		if time.Now().After(patience) {
			t.Fatalf("%s has not come true in a minute", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}
