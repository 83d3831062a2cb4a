package panics

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"
)

func TestTenPanicsInAMinuteAreFrequent(t *testing.T) {
	var h history
	now := time.Unix(1000, 0)
	for i := range Limit {
		if h.frequent(now) {
			t.Fatalf("frequent after %d panics", i)
		}
		if !h.add(now) {
			t.Errorf("panic %d is not logged", i+1)
		}
		now = now.Add(time.Second)
	}
	if !h.frequent(now) {
		t.Errorf("not frequent after %d panics in %d s", Limit, Limit)
	}
	if h.add(now) {
		t.Error("a panic beyond the limit is logged")
	}
	if later := now.Add(Window - time.Second); h.frequent(later) {
		t.Error("still frequent when fewer than the limit came in the last minute")
	}
}

func TestPanicsThatAreRareAreNeverFrequent(t *testing.T) {
	var h history
	now := time.Unix(1000, 0)
	for range 10 * Limit {
		if !h.add(now) || h.frequent(now) {
			t.Fatalf("after %d panics: frequent %v", h.count, h.frequent(now))
		}
		now = now.Add(Window/(Limit-1) + 1)
	}
}

func TestAPanicIsOneRecordWithItsStack(t *testing.T) {
	var out bytes.Buffer
	before := Count()
	func() {
		defer func() { Report(slog.New(slog.NewTextHandler(&out, nil)), "a test", recover(), "model", "m") }()
		panic("a defect")
	}()
	if Count() != before+1 {
		t.Errorf("%d panics counted, want one", Count()-before)
	}
	text := out.String()
	for _, want := range []string{`where="a test"`, `cause="a defect"`, "TestAPanicIsOneRecordWithItsStack", "model=m"} {
		if !strings.Contains(text, want) {
			t.Errorf("the log has no %s:\n%s", want, text)
		}
	}
	if strings.Count(text, "\n") != 1 {
		t.Errorf("the log has more than one record:\n%s", text)
	}
}
