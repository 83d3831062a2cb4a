package python

import (
	"slices"
	"testing"
	"time"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// pauses returns the restart delays of a worker that dies the given number of times, each
// time after it has run for lives.
func pauses(deaths int, lives time.Duration, answered bool, random float64) (all []time.Duration) {
	var c backoff
	for now, n := epoch, 0; n < deaths; n++ {
		now = now.Add(lives)
		pause := c.recordDeath(now, answered, random)
		all = append(all, pause)
		now = now.Add(pause)
	}
	return all
}

func TestAWorkerComesBackTheLaterTheMoreOftenItDies(t *testing.T) {
	const ms, s = time.Millisecond, time.Second
	for _, tt := range []struct {
		name     string
		lives    time.Duration
		answered bool
		want     []time.Duration
	}{
		{"now and then", time.Minute, true, []time.Duration{0, 0, 0}},
		{"some requests kill it", s, true, []time.Duration{0, 100 * ms, 200 * ms, 400 * ms, 500 * ms, 500 * ms}},
		{"it cannot even start", s, false, []time.Duration{0, 100 * ms, 200 * ms, 400 * ms, 800 * ms, 1600 * ms, 3200 * ms, 6400 * ms, 12800 * ms, 25600 * ms, 30 * s, 30 * s, 30 * s}},
		{"it starts for long and in vain", 2 * time.Minute, false, []time.Duration{0, 100 * ms, 200 * ms}},
	} {
		if got := pauses(len(tt.want), tt.lives, tt.answered, 1); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}

func TestWorkersThatDiedTogetherComeBackApart(t *testing.T) {
	early, late := pauses(3, time.Second, true, 0), pauses(3, time.Second, true, 1)
	if early[2] != 100*time.Millisecond || late[2] != 200*time.Millisecond {
		t.Errorf("pauses from %v to %v, want from half to all of 200ms", early[2], late[2])
	}
}

func TestACrashLoopIsCalledSo(t *testing.T) {
	var c backoff
	for n := 1; n <= crashLoopDeaths; n++ {
		if c.crashLooping() {
			t.Errorf("a loop after %d deaths", n-1)
		}
		c.recordDeath(epoch, false, 0)
	}
	if !c.crashLooping() {
		t.Error("no loop")
	}
	if c.recordDeath(epoch, true, 0); c.crashLooping() {
		t.Error("a loop of a worker that answered")
	}
}

func TestAFloodOfLinesIsCutShort(t *testing.T) {
	var b logLimiter
	written := 0
	for range 10 * logBurst {
		if ok, _ := b.allow(epoch); ok {
			written++
		}
	}
	if written != logBurst {
		t.Errorf("%d lines were written at once, want %d", written, logBurst)
	}
	if ok, lost := b.allow(epoch.Add(time.Second)); !ok || lost != 9*logBurst {
		t.Errorf("a second later: written %v, %d lost", ok, lost)
	}
}
