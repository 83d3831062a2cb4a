//go:build e2e

package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/shoal-serving/shoal/test/servertest"
)

func TestAServerWhoseLogNobodyReadsAnyMoreGoesOn(t *testing.T) {
	t.Setenv("SHOAL_LOG_VERBOSE", "1") // each request is a record
	s := servertest.Start(t, servertest.Repository(t, map[string]string{"m": servertest.Config(time.Millisecond, "1", "")}))
	if !strings.Contains(s.Log(), "msg=setting name=log-verbose value=1 source=environment at=SHOAL_LOG_VERBOSE") {
		t.Errorf("the log does not begin with the settings:\n%s", s.Log())
	}
	if err := s.Stderr.Close(); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := oneRow(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	s.Terminate()
	if !s.EndsWithin(10*time.Second) || s.Err != nil {
		t.Errorf("the server did not end well: %v", s.Err)
	}
}
