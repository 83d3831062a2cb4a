package server

import (
	"testing"
	"time"
)

func TestTheLogOfFailedLoadsIsLimited(t *testing.T) {
	var l logLimit
	now := time.Unix(1000, 0)
	for i := range maxFailures {
		if ok, skipped := l.allow(now); !ok || skipped != 0 {
			t.Fatalf("record %d: logged %v, %d skipped", i, ok, skipped)
		}
	}
	for range 7 {
		if ok, _ := l.allow(now.Add(59 * time.Second)); ok {
			t.Fatal("a record beyond the limit is logged")
		}
	}
	if ok, skipped := l.allow(now.Add(time.Minute)); !ok || skipped != 7 {
		t.Errorf("the next minute: logged %v, %d skipped, want 7", ok, skipped)
	}
	if ok, skipped := l.allow(now.Add(time.Minute)); !ok || skipped != 0 {
		t.Errorf("the record after it: logged %v, %d skipped", ok, skipped)
	}
}
