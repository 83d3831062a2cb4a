package arrivals

import (
	"bytes"
	"errors"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shoal-serving/shoal/internal/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

// A disk holds one file, and no more bytes than it has room for.
type disk struct {
	room int
	hold chan struct{} // if not nil, writes after the header wait for it

	mu   sync.Mutex // guards the following
	text []byte
}

var errFull = errors.New("no space left on device")

// Write implements [io.Writer].
func (d *disk) Write(p []byte) (int, error) {
	if d.hold != nil && len(d.content()) > 0 {
		<-d.hold
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	n := min(len(p), d.room-len(d.text))
	d.text = append(d.text, p[:n]...)
	if n < len(p) {
		return n, errFull
	}
	return n, nil
}

// Truncate implements file.
func (d *disk) Truncate(size int64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.text = d.text[:size]
	return nil
}

// Close implements [io.Closer].
func (d *disk) Close() error { return nil }

func (d *disk) content() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return string(d.text)
}

const (
	start = Header + "\n" + columns + "\n"
	first = "0.000000 a 1 0\n" // of a request that comes at once
)

// begin records to a disk, and returns its log, which is to be read after Close.
func begin(t *testing.T, d *disk, opts Options) (*Writer, *bytes.Buffer) {
	t.Helper()
	log := &bytes.Buffer{}
	opts.Log = slog.New(slog.NewTextHandler(log, nil))
	w, err := record(d, "trace.txt", opts)
	if err != nil {
		t.Fatal(err)
	}
	return w, log
}

func finish(t *testing.T, w *Writer) {
	t.Helper()
	if err := w.Close(); err != nil {
		t.Error(err)
	}
}

func TestWhatIsRecordedCanBeRead(t *testing.T) {
	name := filepath.Join(t.TempDir(), "trace.txt")
	w, err := Create(name, Options{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	want := []Arrival{{0, "a", 1, 0}, {ms, "b c", 2, 3}, {time.Hour, "a", 8, 0}}
	for _, a := range want {
		w.Note(w.began.Add(a.At), a.Model, a.Rows, a.Priority)
	}
	finish(t, w)
	w.Note(w.began, "late", 1, 0)
	if got, err := ReadFile(name); err != nil || !slices.Equal(got, want) {
		t.Errorf("read %+v (%v), want %+v", got, err, want)
	}
}

func TestARecordingIsNotReplacedWhileItIsWritten(t *testing.T) {
	name := filepath.Join(t.TempDir(), "trace.txt")
	opts := Options{Log: slog.New(slog.DiscardHandler)}
	w, err := Create(name, opts)
	if err != nil {
		t.Fatal(err)
	}
	w.Note(w.began, "a", 1, 0)
	if second, err := Create(name, opts); err == nil || !strings.Contains(err.Error(), "trace.txt: another server records to this file") {
		t.Errorf("a second recording: %v", err)
		_ = second.Close()
	}
	finish(t, w)
	if got, err := ReadFile(name); err != nil || !slices.Equal(got, []Arrival{{0, "a", 1, 0}}) {
		t.Errorf("read %+v (%v), want the one arrival", got, err)
	}
	if w, err = Create(name, opts); err != nil {
		t.Fatal(err)
	}
	finish(t, w)
	if got, err := ReadFile(name); err != nil || len(got) > 0 {
		t.Errorf("read %+v (%v), want a new recording", got, err)
	}
}

func TestTheFileIsUpToDateEachSecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &disk{room: 1 << 20}
		w, _ := begin(t, d, Options{})
		w.Note(time.Now(), "a", 1, 0)
		time.Sleep(flushEvery - ms)
		synctest.Wait()
		if got := d.content(); got != start {
			t.Errorf("before a second has passed the file has %q", got)
		}
		time.Sleep(ms)
		synctest.Wait()
		if got := d.content(); got != start+first {
			t.Errorf("after a second the file has %q", got)
		}
		finish(t, w)
	})
}

func TestAFullDiskEndsTheRecordingAndIsSaidOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &disk{room: len(start) + len(first) + 5}
		w, log := begin(t, d, Options{})
		for range 3 {
			w.Note(w.began, "a", 1, 0)
			time.Sleep(2 * flushEvery)
			synctest.Wait()
		}
		finish(t, w)
		if got := d.content(); got != start+first {
			t.Errorf("the file has %q, want whole lines", got)
		}
		if got := log.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "no space left on device") || !strings.Contains(got, "arrivals=1 ") {
			t.Errorf("logged %s", got)
		}
	})
}

func TestAFileThatCannotBeWrittenToIsToldAtOnce(t *testing.T) {
	if _, err := record(&disk{room: 3}, "trace.txt", Options{}); !errors.Is(err, errFull) {
		t.Errorf("got %v, want %v", err, errFull)
	}
}

func TestTheRecordingEndsAtItsLargestSize(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &disk{room: 1 << 20}
		w, log := begin(t, d, Options{Limit: int64(len(start) + 2*len(first) + 1)})
		for range 5 {
			w.Note(w.began, "a", 1, 0)
		}
		finish(t, w)
		if got := d.content(); got != start+first+first {
			t.Errorf("the file has %q, want two arrivals", got)
		}
		if got := log.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, errLimit.Error()) {
			t.Errorf("logged %s", got)
		}
	})
}

func TestASlowDiskDropsArrivalsAndNobodyWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &disk{room: 1 << 20, hold: make(chan struct{})}
		w, log := begin(t, d, Options{})
		w.Note(w.began, "a", 1, 0)
		time.Sleep(flushEvery)
		synctest.Wait() // it is being written
		for range queueSize + 7 {
			w.Note(w.began, "a", 1, 0)
		}
		close(d.hold)
		finish(t, w)
		if got := log.String(); !strings.Contains(got, "arrivals=8193 dropped=7") {
			t.Errorf("logged %s", got)
		}
	})
}

func TestNotingAllocatesNothing(t *testing.T) {
	w, _ := begin(t, &disk{room: 1 << 20}, Options{})
	defer finish(t, w)
	now := time.Now()
	if n := testing.AllocsPerRun(100, func() { w.Note(now, "a", 1, 0) }); n >= 1 {
		t.Errorf("%v allocations for each arrival", n)
	}
}

func TestWithoutAWriterNothingIsRecorded(t *testing.T) {
	var w *Writer
	w.Note(time.Now(), "a", 1, 0)
	finish(t, w)
}
