//go:build e2e

package e2e

import (
	"net/http"
	"strings"
	"testing"
	"time"
)

func TestAServerWhoseLogNobodyReadsAnyMoreGoesOn(t *testing.T) {
	t.Setenv("SHOAL_LOG_VERBOSE", "1") // each request is a record
	s := start(t, repositoryOf(t, map[string]string{"m": config(time.Millisecond, "1", "")}))
	if !strings.Contains(s.logged(), "msg=setting name=log-verbose value=1 source=environment at=SHOAL_LOG_VERBOSE") {
		t.Errorf("the log does not begin with the settings:\n%s", s.logged())
	}
	if err := s.stderr.Close(); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if status, err := oneRow(t.Context(), s); err != nil || status != http.StatusOK {
			t.Fatalf("status %d, %v", status, err)
		}
	}
	s.signal()
	if !s.endsWithin(10*time.Second) || s.err != nil {
		t.Errorf("the server did not end well: %v", s.err)
	}
}
