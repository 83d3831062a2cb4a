// Package leak fails the tests of a package that leave something behind:
// goroutines that still run, or pooled buffers that nobody gave back. A package
// asks for it with
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

// patience is how long Main waits for goroutines that are about to end, such as
// those of a connection whose other side has just been closed.
const patience = 2 * time.Second

// Main runs the tests of m, and fails if they pass but leave something behind.
// After a failure it looks no further: a test that stops halfway has no chance
// to tidy up.
func Main(m *testing.M) {
	before := goleak.IgnoreCurrent()
	if m.Run() != 0 {
		return // the testing package exits with the code that Run returned
	}
	if found := await(patience, before); found != "" {
		fmt.Fprintln(os.Stderr, found)
		os.Exit(1)
	}
}

// await looks until nothing is left or the time is over, and then says in a
// sentence what is. Goroutines that before knows are not the tests'.
func await(patience time.Duration, before goleak.Option) string {
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		found := look(before)
		if found == "" || time.Now().After(deadline) {
			return found
		}
	}
}

func look(before goleak.Option) string {
	if err := goleak.Find(before); err != nil {
		return fmt.Sprintf("The tests left goroutines running: have whoever starts one wait for it. %v", err)
	}
	if n := buf.Live(); n != 0 {
		return fmt.Sprintf("The tests left pooled buffers in use (%d): have the last owner of each release it.", n)
	}
	return ""
}
