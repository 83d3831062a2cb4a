package automatic

import "testing"

func TestRetestsGetRarerWhileTheyConfirmTheCurve(t *testing.T) {
	var r retest
	batch := uint64(100)
	for _, want := range []uint64{16, 32, 64, 128, 256, 512, 1024, 1024} {
		r.started(batch)
		if r.next != batch+want {
			t.Errorf("the next retest is %d batches later, want %d", r.next-batch, want)
		}
		batch = r.next
	}
	r.restart(batch)
	if r.next != batch+retestFirst {
		t.Errorf("after a curve that was wrong the next retest is %d batches later, want %d", r.next-batch, retestFirst)
	}
	r.started(r.next)
	if r.wait != retestFirst {
		t.Errorf("then the next one is %d batches later, want %d", r.wait, retestFirst)
	}
}

func TestAChangeOfSpeedBringsTheNextRetestForward(t *testing.T) {
	for _, tt := range []struct {
		name       string
		next, want uint64 // retests, counted from the change
	}{
		{"due long after", 1000, retestDrift},
		{"due soon", 50, 50},
		{"due then", retestDrift, retestDrift},
		{"due now", 0, retestDrift},
	} {
		const now = 5000
		r := retest{next: now + tt.next, wait: 1024}
		r.drifted(now)
		if r.next != now+tt.want {
			t.Errorf("%s: the next retest is %d batches later, want %d", tt.name, r.next-now, tt.want)
		}
		r.started(r.next)
		if r.wait != retestDrift {
			t.Errorf("%s: the one after it is %d batches later, want %d", tt.name, r.wait, retestDrift)
		}
	}
}
