package leak

import (
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/shoal-serving/shoal/internal/buf"
)

func TestMain(m *testing.M) { Main(m) }

func TestAGoroutineThatStaysIsFound(t *testing.T) {
	before := goleak.IgnoreCurrent()
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		<-stop
	}()
	found := await(0, before)
	if !strings.HasPrefix(found, "The tests left goroutines running: the code that starts a goroutine must wait for it.") ||
		!strings.Contains(found, "TestAGoroutineThatStaysIsFound") {
		t.Errorf("got %q, want a description that names the test which started it", found)
	}
	close(stop)
	<-stopped
	if found := await(gracePeriod, before); found != "" {
		t.Errorf("after it has ended: %s", found)
	}
}

func TestAGoroutineThatIsAboutToEndIsWaitedFor(t *testing.T) {
	before := goleak.IgnoreCurrent()
	go time.Sleep(gracePeriod / 2)
	if found := await(gracePeriod, before); found != "" {
		t.Error(found)
	}
}

func TestABufferThatIsKeptIsFound(t *testing.T) {
	before := goleak.IgnoreCurrent()
	b := buf.Get(1)
	want := "The tests left pooled buffers in use (1): the last owner of each must release it."
	if found := await(0, before); found != want {
		t.Errorf("got %q, want %q", found, want)
	}
	b.Release()
	if found := await(0, before); found != "" {
		t.Errorf("after its release: %s", found)
	}
}
