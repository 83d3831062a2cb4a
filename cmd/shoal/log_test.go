package main

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoal-serving/shoal/internal/infer"
	"github.com/shoal-serving/shoal/internal/kserve"
)

var allLevels = logOptions{format: "text", verbose: 1, info: true, warning: true, err: true}

func TestOneRecordIsOneLine(t *testing.T) {
	nasty := "a\r\nlevel=ERROR msg=\"all is lost\"\n\x1b[31m\u2028\x00 \xff"
	for _, format := range []string{"text", "json", "default", "ISO8601"} {
		var out bytes.Buffer
		opts := allLevels
		opts.format = format
		newLog(opts, &out).With(nasty, nasty).WithGroup(nasty).Info(nasty, "model", nasty, nasty, 1)
		if got := out.String(); strings.Count(got, "\n") != 1 || strings.ContainsAny(got, "\r\x1b\u2028\x00") {
			t.Errorf("%s: got %q", format, got)
		}
	}
}

func TestLevelsAreTurnedOnOneByOne(t *testing.T) {
	for _, tt := range []struct {
		opts logOptions
		want string
	}{
		{logOptions{}, ""},
		{logOptions{verbose: 2}, "debug"},
		{logOptions{info: true}, "info"},
		{logOptions{warning: true}, "warning"},
		{logOptions{err: true}, "error"},
		{allLevels, "debug info warning error"},
	} {
		var out bytes.Buffer
		log := newLog(tt.opts, &out).With("a", 1).WithGroup("g")
		log.Debug("debug")
		log.Info("info")
		log.Warn("warning")
		log.Error("error")
		var got []string
		for line := range strings.Lines(out.String()) {
			_, message, _ := strings.Cut(line, "msg=")
			got = append(got, strings.Fields(message)[0])
		}
		if strings.Join(got, " ") != tt.want {
			t.Errorf("%+v: got %q, want %q", tt.opts, got, tt.want)
		}
	}
}

func TestWhatIsLoggedChangesWhileTheLogIsInUse(t *testing.T) {
	var out bytes.Buffer
	log := newLog(logOptions{format: "text", info: true, file: "x.log"}, &out)
	part := log.With("part", 1) // made before the change, as most are
	logging := loggingOf(log)
	yes, no, level := true, false, uint32(1)
	now, err := logging.ChangeLog(kserve.LogChange{Info: &no, Warning: &yes, Verbose: &level})
	if want := (kserve.LogSettings{File: "x.log", Warning: true, Verbose: 1, Format: "text"}); err != nil || now != want {
		t.Errorf("%+v, %v, want %+v", now, err, want)
	}
	part.Info("info")
	part.Warn("warning")
	part.Debug("debug")
	if got := out.String(); strings.Contains(got, "msg=info") || !strings.Contains(got, "msg=warning") || !strings.Contains(got, "msg=debug") {
		t.Errorf("logged %s", got)
	}
	json := "json"
	if after, err := logging.ChangeLog(kserve.LogChange{Info: &yes, Format: &json}); infer.CodeOf(err) != infer.Unsupported || after != now {
		t.Errorf("to another format: %+v, %v, want it as before", after, err)
	}
	if loggingOf(slog.New(slog.DiscardHandler)) != nil {
		t.Error("a log of another kind can be changed")
	}
}

func TestTheLogFileIsAppendedTo(t *testing.T) {
	opts := allLevels
	opts.file = filepath.Join(t.TempDir(), "shoal.log")
	for range 2 {
		log, err := openLog(opts, nil)
		if err != nil {
			t.Fatal(err)
		}
		log.Info("here")
		if err := log.Close(); err != nil {
			t.Error(err)
		}
	}
	if text, err := os.ReadFile(opts.file); err != nil || strings.Count(string(text), "msg=here\n") != 2 {
		t.Errorf("the file has %q, %v", text, err)
	}
	opts.file = filepath.Join(opts.file, "below")
	if _, err := openLog(opts, nil); err == nil || !strings.Contains(err.Error(), "--log-file") {
		t.Errorf("a file that cannot be made: %v", err)
	}
}

func TestALogThatCannotBeWrittenStopsNothing(t *testing.T) {
	full := allLevels
	full.file = "/dev/full"
	if _, err := os.Stat(full.file); err != nil {
		t.Skip("no /dev/full here")
	}
	log, err := openLog(full, nil)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		log.Info("lost")
	}
	if err := log.Close(); err != nil {
		t.Error(err)
	}
	closed, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
	newLog(allLevels, closed).Log(t.Context(), slog.LevelError, "lost")
}
