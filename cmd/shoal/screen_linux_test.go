package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A terminal is a pseudoterminal, and what was written to it.
type terminal struct {
	file *os.File // for the program

	mu      sync.Mutex // guards the following
	text    bytes.Buffer
	written chan struct{} // closed at the next write
}

// openTerminal opens a terminal of the given width.
func openTerminal(t *testing.T, columns int) *terminal {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("there are no pseudoterminals: %v", err)
	}
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	err = errors.Join(err, unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0),
		unix.IoctlSetWinsize(int(master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: uint16(columns)}))
	if err != nil {
		t.Fatal(err)
	}
	tty := &terminal{written: make(chan struct{})}
	tty.file, err = os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(tty, master) // it ends with an error when the terminal is closed
	}()
	t.Cleanup(func() {
		_ = tty.file.Close()
		<-done
		_ = master.Close()
	})
	t.Setenv("COLUMNS", "")
	t.Setenv("TERM", "xterm")
	return tty
}

// Write implements [io.Writer], for what the terminal shows.
func (tty *terminal) Write(b []byte) (int, error) {
	tty.mu.Lock()
	defer tty.mu.Unlock()
	close(tty.written)
	tty.written = make(chan struct{})
	tty.text.Write(bytes.ReplaceAll(b, []byte("\r\n"), []byte("\n")))
	return len(b), nil
}

// await returns what the terminal shows once that contains text, apart from colors and line
// breaks.
func (tty *terminal) await(t *testing.T, text string) string {
	t.Helper()
	patience := time.NewTimer(20 * time.Second)
	defer patience.Stop()
	for {
		tty.mu.Lock()
		shown, next := tty.text.String(), tty.written
		tty.mu.Unlock()
		if strings.Contains(strings.Join(strings.Fields(uncolored(shown)), " "), text) {
			return shown
		}
		select {
		case <-next:
		case <-patience.C:
			t.Errorf("the terminal never showed %q, but\n%s", text, shown)
			return shown
		}
	}
}

func TestStartUpIsShownToAPersonAtATerminal(t *testing.T) {
	for _, tt := range []struct {
		columns int
		noColor string
	}{{80, ""}, {80, "1"}, {120, ""}, {120, "1"}} {
		t.Run(strconv.Itoa(tt.columns)+tt.noColor, func(t *testing.T) {
			tty := openTerminal(t, tt.columns)
			t.Setenv("NO_COLOR", tt.noColor)
			ctx, stop := context.WithCancel(t.Context())
			status := make(chan int, 1)
			go func() {
				status <- execute(ctx, []string{"serve", "../../examples/seed-device", "--http-port=0", "--grpc-port=0", "--metrics-port=0", "--calibration-dir="}, tty.file, tty.file)
			}()
			tty.await(t, "--random -u 127.0.0.1:")
			stop()
			shown := tty.await(t, "Stopping: requests in flight have 30 s to complete; Ctrl-C again stops at once")
			if got := <-status; got != exitOK {
				t.Errorf("exit status %d", got)
			}
			if colored := strings.Contains(shown, "\x1b["); colored != (tt.noColor == "") {
				t.Errorf("NO_COLOR=%q shows\n%q", tt.noColor, shown)
			}
			plain := uncolored(shown)
			for _, want := range []string{
				"  Shoal " + version + " · ", "  ✓ seed_auto input.1 FP32[n,1,32,100] → 308 FP32[n,26,37] · rows can share a",
				"  Ready in ", " ms: http://127.0.0.1:", " · gRPC 127.0.0.1:", "\n  Try: shoal infer seed_auto --random -u 127.0.0.1:",
			} {
				if !strings.Contains(plain, want) {
					t.Errorf("no %q in\n%s", want, plain)
				}
			}
			if strings.Contains(plain, "msg=") || strings.Count(plain, "\n") > 20 {
				t.Errorf("the terminal shows\n%s", plain)
			}
			checkWidth(t, "serve", plain, strconv.Itoa(tt.columns))
		})
	}
}

func TestModelsThatFailedToLoadAreShownAtStartUp(t *testing.T) {
	broken := directory(t, map[string]string{"plan/config.pbtxt": `platform: "tensorrt_plan"`, "plan/1/model.plan": "x"})
	tty := openTerminal(t, 80)
	ctx, stop := context.WithCancel(t.Context())
	status := make(chan int, 1)
	go func() {
		status <- execute(ctx, []string{"serve", "../../examples/seed-device", broken, "--exit-on-error=false", "--http-port=0", "--grpc-port=0", "--metrics-port=0", "--calibration-dir="}, tty.file, tty.file)
	}()
	shown := uncolored(tty.await(t, "--random -u 127.0.0.1:"))
	stop()
	if got := <-status; got != exitOK {
		t.Errorf("exit status %d", got)
	}
	if text := strings.Join(strings.Fields(shown), " "); !strings.Contains(text, "✗ plan ") || !strings.Contains(text, `"tensorrt_plan" is not supported`) {
		t.Errorf("the terminal shows\n%s", shown)
	}
}

// uncolored removes escape sequences.
func uncolored(text string) string {
	var out strings.Builder
	for part := range strings.SplitSeq("m"+text, "\x1b[") {
		_, after, _ := strings.Cut(part, "m")
		out.WriteString(after)
	}
	return out.String()
}

func TestHelpHasColorsOnlyOnATerminal(t *testing.T) {
	for _, columns := range []int{80, 120} {
		for noColor, colored := range map[string]bool{"": true, "1": false} {
			tty := openTerminal(t, columns)
			t.Setenv("NO_COLOR", noColor)
			if status := execute(t.Context(), []string{"serve", "--help"}, tty.file, tty.file); status != exitOK {
				t.Errorf("status %d", status)
			}
			shown := tty.await(t, "--model-server")
			if strings.Contains(shown, "\x1b[1mNetwork:\x1b[0m") != colored {
				t.Errorf("NO_COLOR=%q shows\n%q", noColor, shown)
			}
			checkWidth(t, "serve --help", uncolored(shown), strconv.Itoa(columns))
		}
	}
}

func TestAScreenShowsWhatMatters(t *testing.T) {
	var out bytes.Buffer
	s := newScreen(&out)
	log := newLogger(allLevels, s).With("model", "m")
	log.Info("listening", "protocol", "http", "address", "127.0.0.1:8000")
	log.Info("model loaded")
	log.Error("model not loaded")
	log.Info("model measured", "batch", 8, "instances", 1, "threads", 2)
	if out.Len() > 0 {
		t.Errorf("before the server is ready: %s", &out)
	}
	s.show(startup{models: []startupModel{{name: "bad", problem: "it\nis broken\x1b[2J"}}})
	log.Info("model loaded")
	log.Warn("a\tb", "c", "d\r\ne")
	log.Error("oh")
	log.WithGroup("g").Debug("detail")
	want := `  ✗ bad it is broken�[2J
  tuned m: best throughput with batches of 8 rows, 1 instance × 2 threads
  Ready in 0 ms: http://127.0.0.1:8000
  model loaded model=m
  ! a b model=m c=d� e
  ✗ oh model=m
  detail model=m
`
	if got := out.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestTheFirstModelThatIsReadyIsTried(t *testing.T) {
	s := newScreen(io.Discard)
	s.addresses = []string{"http", "127.0.0.1:8000"}
	models := []startupModel{{name: "bad", problem: "no"}, {name: "ocr", inputs: described(nil)}}
	if got, want := s.try(startup{models: models}), "shoal infer ocr --random"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := s.try(startup{models: models, requests: map[string]string{"ocr": "a.json"}}), "shoal infer ocr --json a.json --classes 3"; got != want {
		t.Errorf("with a request: got %q, want %q", got, want)
	}
	if got := s.try(startup{models: models[:1]}); got != "" {
		t.Errorf("without a model: %q", got)
	}
}

func TestSIGHUPReopensTheLogFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "log")
	opts := allLevels
	opts.file = name
	log, err := openLog(opts, nil)
	if err != nil {
		t.Fatal(err)
	}
	hangups := make(chan os.Signal)
	ctx, stop := context.WithCancel(t.Context())
	var done sync.WaitGroup
	done.Go(func() { log.reopenOn(ctx, hangups) })
	log.Info("before")
	if err := os.Rename(name, name+".1"); err != nil {
		t.Fatal(err)
	}
	hangups <- syscall.SIGHUP
	stop()
	done.Wait()
	log.Info("after")
	if err := log.Close(); err != nil {
		t.Error(err)
	}
	for file, want := range map[string]string{name + ".1": "msg=before", name: "msg=after"} {
		text, err := os.ReadFile(file)
		if err != nil || !strings.Contains(string(text), want) || file == name && strings.Contains(string(text), "before") {
			t.Errorf("%s: %v: %s", file, err, text)
		}
	}
	other := &logOutput{Logger: slog.New(slog.DiscardHandler)}
	if err := other.Close(); err != nil {
		t.Error(err)
	}
}

func TestDurationsInJSONHaveAUnit(t *testing.T) {
	var out bytes.Buffer
	newLog(logOptions{format: "json", info: true}, &out).Info("m", "took", 1500*time.Microsecond)
	if r := records(t, &out); r[0]["took_ms"] != 1.5 {
		t.Errorf("a duration is logged as %v", r)
	}
}
