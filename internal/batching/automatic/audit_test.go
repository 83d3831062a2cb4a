package automatic

import (
	"testing"
	"time"

	"github.com/shoal-serving/shoal/internal/batching"
)

// runAudit runs batches of one row that take ours, or a millisecond while the audit is greedy,
// until it has ended. It returns whether greedy has won, and the number of batches.
func runAudit(a *audit, batch *uint64, ours time.Duration) (lost bool, n int) {
	now := batching.Time(*batch) * time.Second
	audited := a.audited
	for a.audited == audited {
		if *batch++; a.greedily(*batch) {
			now += ms
		} else {
			now += ours
		}
		n++
		a.deviations++
		lost = a.batchEnded(now, *batch, 1)
	}
	return lost, n
}

func TestAnAuditIsLostIfGreedyIsFasterBothTimes(t *testing.T) {
	for _, tt := range []struct {
		name string
		ours time.Duration
		lost bool
	}{
		{"twice as slow", 2 * ms, true},
		{"a little slower", 1100 * us, true},
		{"as fast", ms, false},
		{"faster", ms / 2, false},
	} {
		var a audit
		batch := uint64(0)
		a.doubt(batch)
		lost, _ := runAudit(&a, &batch, tt.ours)
		if lost != tt.lost {
			t.Errorf("%s: lost %t, want %t", tt.name, lost, tt.lost)
		}
		if a.greedily(batch) != tt.lost {
			t.Errorf("%s: the policy is greedy afterwards: %t", tt.name, !tt.lost)
		}
	}
}

// On a device that is slower with large batches, greedy may take a hundred times as long for
// each of its batches.
func TestAnAuditInWhichGreedyBatchesAreLargeIsShort(t *testing.T) {
	var a audit
	now, batch, greedy := batching.Time(0), uint64(0), 0
	for a.doubt(batch); a.audited == 0; {
		batch++
		rows, takes := 1, ms
		if a.greedily(batch) {
			rows, takes = 10, 100*ms
			greedy++
		}
		a.deviations++
		now += takes
		if a.batchEnded(now, batch, rows) {
			t.Error("greedy has won")
		}
	}
	if greedy != 1+auditFewest {
		t.Errorf("%d greedy batches, want %d: each takes longer than all that they are compared with", greedy, 1+auditFewest)
	}
}

func TestAuditsGetRarerWhileTheyConfirmThePolicy(t *testing.T) {
	var a audit
	batch := uint64(0)
	for _, want := range []uint64{32, 128, 512, 2048, 8192, 8192} {
		if lost, _ := runAudit(&a, &batch, ms/2); lost {
			t.Fatal("greedy has won")
		}
		if a.wait != want {
			t.Errorf("the next audit is %d batches later, want %d", a.wait, want)
		}
	}
	a.doubt(batch)
	if a.next != batch+auditFirst {
		t.Errorf("after a doubt the next audit is %d batches later, want %d", a.next-batch, auditFirst)
	}
}

func TestAnAuditThatGreedyClearlyLosesIsShort(t *testing.T) {
	var a audit
	batch := uint64(0)
	a.doubt(batch)
	if _, n := runAudit(&a, &batch, ms/2); n > auditBatches+auditSkip+auditBatches/3+2 {
		t.Errorf("the audit took %d batches", n)
	}
}

func TestWhereThePolicyIsGreedyThereIsNoAudit(t *testing.T) {
	var a audit
	for batch := range uint64(1000) {
		a.batchEnded(batching.Time(batch)*ms, batch, 1)
		if a.part != noAudit {
			t.Fatal("an audit has begun without a decision that greedy would not have made")
		}
	}
}

func TestEachLostAuditCountsForLonger(t *testing.T) {
	var a audit
	batch := uint64(0)
	a.doubt(batch)
	for _, want := range []uint64{256, 512, 1024} {
		if lost, _ := runAudit(&a, &batch, 2*ms); !lost || a.greedyUntil != batch+want {
			t.Errorf("the policy is greedy for %d batches, want %d", a.greedyUntil-batch, want)
		}
		batch = a.next
	}
}
