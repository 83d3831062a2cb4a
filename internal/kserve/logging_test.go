package kserve_test

import (
	"errors"
	"testing"

	"github.com/shoal-serving/shoal/internal/kserve"
)

// A recordedLog counts changes.
type recordedLog struct{ changes int }

func (l *recordedLog) ChangeLog(c kserve.LogChange) (kserve.LogSettings, error) {
	if c != (kserve.LogChange{}) {
		l.changes++
	}
	return kserve.LogSettings{Info: true}, nil
}

func TestAReadOnlyLogReportsItsSettingsAndRejectsChanges(t *testing.T) {
	var log recordedLog
	readOnly, no, level := kserve.ReadOnly(&log), false, uint32(1)
	if s, err := readOnly.ChangeLog(kserve.LogChange{}); err != nil || !s.Info {
		t.Errorf("settings %+v, %v, want those of the log", s, err)
	}
	for _, c := range []kserve.LogChange{{Info: &no}, {Error: &no}, {Verbose: &level}} {
		if _, err := readOnly.ChangeLog(c); !errors.Is(err, kserve.ErrLogChange) {
			t.Errorf("%+v: error %v, want %v", c, err, kserve.ErrLogChange)
		}
	}
	if log.changes != 0 {
		t.Errorf("the log was changed %d times", log.changes)
	}
}
