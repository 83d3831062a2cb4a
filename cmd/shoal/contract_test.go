package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/slogtest"

	"github.com/spf13/pflag"
)

func TestTheLogIsASlogHandler(t *testing.T) {
	var out bytes.Buffer
	log := newLog(logOptions{format: "json", info: true, warning: true, err: true}, &out)
	err := slogtest.TestHandler(log.Handler(), func() (records []map[string]any) {
		for line := range bytes.Lines(out.Bytes()) {
			var record map[string]any
			if err := json.Unmarshal(line, &record); err != nil {
				t.Fatal(err)
			}
			records = append(records, record)
		}
		return records
	})
	if err != nil {
		t.Error(err)
	}
}

func TestAScreenKeepsTheAttributesOfEachLogApart(t *testing.T) {
	var out strings.Builder
	base := slog.New(newScreen(&out)).With("model", "a")
	// The second log of the same base must not overwrite what the first one has appended.
	first, second := base.With("version", 1), base.With("version", 2)
	first.Warn("slow")
	second.Warn("slow")
	base.WithGroup("group").With("node", "n").Warn("slow")
	base.Warn("slow", slog.Any("error", valuer{}))
	want := "  ! slow model=a version=1\n  ! slow model=a version=2\n  ! slow model=a node=n\n  ! slow model=a error=resolved\n"
	if out.String() != want {
		t.Errorf("the screen shows\n%swant\n%s", &out, want)
	}
}

// A valuer is an attribute that computes its value when it is logged.
type valuer struct{}

func (valuer) LogValue() slog.Value { return slog.StringValue("resolved") }

func TestAScreenWritesEachRecordWhole(t *testing.T) {
	var out strings.Builder // which is no place for two writers at once
	log := slog.New(newScreen(&out))
	const writers, records = 8, 50
	var all sync.WaitGroup
	for range writers {
		all.Go(func() {
			for range records {
				log.Warn("slow")
			}
		})
	}
	all.Wait()
	if want := strings.Repeat("  ! slow\n", writers*records); out.String() != want {
		t.Errorf("the screen shows %d bytes, want %d records of %q", out.Len(), writers*records, "  ! slow\n")
	}
}

func TestALogFileLosesNothingWhileItIsReopened(t *testing.T) {
	name := filepath.Join(t.TempDir(), "log")
	f := &logFile{name: name}
	if err := f.reopen(); err != nil {
		t.Fatal(err)
	}
	const writers, records, rotations = 4, 200, 20
	var all sync.WaitGroup
	for w := range writers {
		all.Go(func() {
			for i := range records {
				line := fmt.Sprintf("writer %d record %d\n", w, i)
				if n, err := f.Write([]byte(line)); n != len(line) || err != nil {
					t.Errorf("Write returns %d, %v for %d bytes", n, err, len(line))
				}
			}
		})
	}
	for i := range rotations {
		if err := os.Rename(name, fmt.Sprintf("%s.%d", name, i)); err != nil {
			t.Error(err)
		}
		if err := f.reopen(); err != nil {
			t.Error(err)
		}
	}
	all.Wait()
	if err := f.close(); err != nil {
		t.Error(err)
	}
	files, err := filepath.Glob(name + "*")
	if err != nil || len(files) != rotations+1 {
		t.Fatalf("%d files, %v; want the log and %d older ones", len(files), err, rotations)
	}
	seen := map[string]int{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			seen[line]++
		}
	}
	for w := range writers {
		for i := range records {
			if line := fmt.Sprintf("writer %d record %d\n", w, i); seen[line] != 1 {
				t.Errorf("%q was written %d times", line, seen[line])
			}
		}
	}
}

func TestFlagValues(t *testing.T) {
	yes, word := truth(true), "none"
	var others foreign
	for _, c := range []struct {
		value    pflag.Value
		accepted []string
		rejected []string
	}{
		{&yes, []string{"false", "true"}, []string{"", "no", "2"}},
		{&choice{&word, []string{"none", "poll"}}, []string{"poll", "none"}, []string{"", "NONE", "other"}},
		{&others, []string{"", "a=b"}, nil},
	} {
		t.Run(fmt.Sprintf("%T", c.value), func(t *testing.T) {
			for _, text := range c.accepted {
				if err := c.value.Set(text); err != nil {
					t.Errorf("Set(%q) fails: %v", text, err)
				}
				if got := c.value.String(); !strings.HasSuffix(got, text) {
					t.Errorf("String is %q after Set(%q)", got, text)
				}
			}
			for _, text := range c.rejected {
				before := c.value.String()
				if c.value.Set(text) == nil {
					t.Errorf("Set(%q) succeeds", text)
				}
				if got := c.value.String(); got != before {
					t.Errorf("Set(%q) fails, and changes the value from %q to %q", text, before, got)
				}
			}
			if c.value.Type() == "" {
				t.Error("it has no type to show in a help text")
			}
		})
	}
}
