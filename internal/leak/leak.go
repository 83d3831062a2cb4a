// Package leak fails the tests of a package if they leave goroutines running or pooled
// buffers unreleased. A package enables it with
//
//	func TestMain(m *testing.M) { leak.Main(m) }
package leak

import (
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/shoal-serving/shoal/internal/buf"
)

// gracePeriod is how long Main waits for goroutines that are about to exit, such as those
// of a connection whose peer has just closed it.
const gracePeriod = 2 * time.Second

// Main runs the tests of m, and exits with status 1 if they pass but leak. It does not
// check after a failure: a test that stops halfway cannot clean up.
func Main(m *testing.M) {
	before := goleak.IgnoreCurrent()
	if m.Run() != 0 {
		return // the testing package exits with the code that Run returned
	}
	if found := await(gracePeriod, before); found != "" {
		fmt.Fprintln(os.Stderr, found)
		os.Exit(1)
	}
}

// await checks until nothing is leaked or the timeout has passed, and returns a
// description of the leak, "" if there is none. Goroutines in before are ignored.
func await(timeout time.Duration, before goleak.Option) string {
	for deadline := time.Now().Add(timeout); ; time.Sleep(time.Millisecond) {
		found := check(before)
		if found == "" || time.Now().After(deadline) {
			return found
		}
	}
}

func check(before goleak.Option) string {
	if err := goleak.Find(before); err != nil {
		return fmt.Sprintf("The tests left goroutines running: the code that starts a goroutine must wait for it. %v", err)
	}
	if n := buf.Live(); n != 0 {
		return fmt.Sprintf("The tests left pooled buffers in use (%d): the last owner of each must release it.", n)
	}
	return ""
}
