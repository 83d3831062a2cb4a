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
		began := now
		if *batch++; a.greedily(*batch) {
			now += ms
		} else {
			now += ours
		}
		n++
		a.deviations++
		lost = a.batchEnded(now, *batch, &run{began: began, rows: 1})
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

// Five batches of the largest size of a curve that bends upwards take as long as fifty of the best.
func TestTheBatchesOfAnAuditAreAtMostTwiceAsLargeAsTheBest(t *testing.T) {
	profile := line(3*ms, 0, 1, 2, 4, 8, 16, 32, 64)
	for i := range profile.Sizes {
		one := &profile.Sizes[i]
		one.Median += time.Duration(one.Rows*one.Rows) * 20 * us
		one.P95 = one.Median
	}
	p := New(Options{MaxRows: 64, Profile: profile})
	p.audit.part = auditGreedy
	if got, want := p.target(), 2*p.sizes.peak; got != want || want > 40 {
		t.Errorf("%d rows during an audit, want %d", got, want)
	}
	p.audit = audit{greedyUntil: 1000}
	if got := p.target(); got != 64 {
		t.Errorf("%d rows after greedy has won, want 64", got)
	}
}

// A round of probing lasts for as many batches as a part of an audit, and is no better known than
// greedy.
func TestARoundOfProbingIsNotAudited(t *testing.T) {
	p := New(Options{MaxRows: 8, Instances: 2, Profile: line(ms, ms/10, 1, 2, 4, 8)})
	p.returns.closedLoop = true
	for p.ledger.batch = range uint64(10_000) {
		if p.probed = 0; p.ledger.batch%200 >= 100 {
			p.probed = probeBatches + 1 // the round is over
		}
		probing := p.probing() > 0
		p.audit.deviations++
		now := batching.Time(p.ledger.batch) * ms
		p.auditEnded(now, &run{began: now - ms, rows: 1})
		if probing && p.audit.part != noAudit {
			t.Fatal("an audit compares a round of probing with greedy")
		}
	}
	if p.audit.audited == 0 {
		t.Error("no audit has ended between rounds")
	}
}

// It does not wait for the round of probing that follows a lost audit: all instances run meanwhile.
func TestGreedyEndsEarlyDuringARoundOfProbing(t *testing.T) {
	p := New(Options{MaxRows: 8, Instances: 2, Profile: line(ms, ms/10, 1, 2, 4, 8)})
	p.returns.closedLoop = true
	p.audit = audit{greedyUntil: auditOff, before: 8 / float64(ms), took: auditBatches * ms}
	for p.ledger.batch = range uint64(auditBatches) {
		if p.probing() == 0 {
			t.Fatal("the policy does not probe")
		}
		now := batching.Time(p.ledger.batch) * 2 * ms
		p.auditEnded(now, &run{began: now - 2*ms, rows: 8})
	}
	if p.audit.greedily(p.ledger.batch) {
		t.Error("the policy is still greedy, at half of what it did before")
	}
}

// What it did before is then no longer what it would do without the audit.
func TestAnAuditBeginsAgainIfThePolicyHasFoundAnotherSize(t *testing.T) {
	for _, tt := range []struct {
		before int
		want   auditPart
	}{{9, auditGreedy}, {4, noAudit}, {21, noAudit}} {
		p := New(Options{MaxRows: 64, Profile: line(ms, ms/10, 1, 2, 4, 8)})
		p.returns.closedLoop, p.sizes.peak = true, 10
		p.audit = audit{part: auditGreedy, costs: p.costs, peak: tt.before, deviations: 1}
		if p.auditEnded(ms, &run{rows: 1}); p.audit.part != tt.want {
			t.Errorf("the best size was %d rows, and is 10: the audit is in part %d, want %d", tt.before, p.audit.part, tt.want)
		}
		if tt.want == noAudit && p.audit.next != auditFirst {
			t.Errorf("it begins again at batch %d, want %d", p.audit.next, auditFirst)
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
		if a.batchEnded(now, batch, &run{began: now - takes, rows: rows}) {
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
	for _, tt := range []struct {
		ours   time.Duration
		greedy int // batches
	}{
		{ms / 2, auditFewest + auditFewest},
		{ms * 17 / 20, auditSkip + auditBatches/3},
	} {
		var a audit
		batch := uint64(0)
		a.doubt(batch)
		if _, n := runAudit(&a, &batch, tt.ours); n != 1+auditBatches+tt.greedy {
			t.Errorf("if it takes %v instead of a millisecond, the audit took %d batches, want %d, of which %d are greedy", tt.ours, n, 1+auditBatches+tt.greedy, tt.greedy)
		}
	}
}

func TestWhereThePolicyIsGreedyThereIsNoAudit(t *testing.T) {
	var a audit
	for batch := range uint64(1000) {
		now := batching.Time(batch) * ms
		a.batchEnded(now, batch, &run{began: now - ms, rows: 1})
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

func TestGreedyEndsEarlyIfThePolicyWasBetter(t *testing.T) {
	for _, tt := range []struct {
		name    string
		takes   time.Duration // of a batch while the policy is greedy after the audit
		batches uint64        // for which it is
	}{
		{"as in the audit", ms, auditOff},
		{"worse than the policy", 3 * ms, auditBatches*2/3 + 1}, // as long as the audit measured it
		{"so slow that all of a part would cost too much", 100 * ms, auditFewest + 1},
	} {
		var a audit
		batch := uint64(0)
		a.doubt(batch)
		if lost, _ := runAudit(&a, &batch, 2*ms); !lost {
			t.Fatal("greedy has not won")
		}
		began, now := batch, batching.Time(1000)*time.Second
		for a.greedily(batch) {
			batch++
			now += tt.takes
			a.batchEnded(now, batch, &run{began: now - tt.takes, rows: 1})
		}
		if batch-began != tt.batches {
			t.Errorf("%s: greedy for %d batches, want %d", tt.name, batch-began, tt.batches)
		}
	}
}

// Batches that begin together end together. The first round ends before the audit measures, all of
// it: otherwise greedy would seem to have served three batches more than it did.
func TestAnAuditCountsNoBatchOfTheFirstRound(t *testing.T) {
	const takes = 40 * ms
	var a audit
	a.doubt(0)
	now, greedy := batching.Time(0), 0
	for batch := uint64(1); a.audited == 0; batch++ {
		a.deviations++
		began, rows := now, 1
		if a.part == auditGreedy {
			began, rows = now-takes, 10 // four at once, which serve as many rows per millisecond
			if greedy%4 == 0 {
				began, now = now, now+takes
			}
			greedy++
		} else {
			now += ms
		}
		if a.batchEnded(now, batch, &run{began: began, rows: rows}) {
			t.Error("greedy has won")
		}
	}
	if a.greedy > 1.01/float64(ms) {
		t.Errorf("greedy serves %.2f rows per millisecond, want 1", a.greedy*float64(ms))
	}
}

// With greedy, the largest batches of a model that gains nothing from them run during each burst.
func TestAnAuditIsOverWhenItsGreedyBatchesHaveEmptiedTheQueue(t *testing.T) {
	p := New(Options{MaxRows: 64, Profile: line(ms/10, ms, 1, 2, 4, 8, 16, 32, 64)})
	p.audit.doubt(0)
	greedy := 0
	for p.ledger.batch = range uint64(10_000) {
		if p.waitingRows = 100; p.audit.part == auditGreedy {
			greedy++
			p.waitingRows = 0
		}
		p.audit.deviations++
		now := batching.Time(p.ledger.batch) * ms
		p.auditEnded(now, &run{began: now - ms, rows: 8})
	}
	if greedy == 0 || greedy > 10 {
		t.Errorf("%d greedy batches in 10,000, want one of each of up to 10 audits", greedy)
	}
}

func TestAuditsAreRareIfNothingIsInDoubt(t *testing.T) {
	a := New(Options{MaxRows: 8, Profile: line(ms, ms/10, 1, 2, 4, 8)}).audit
	batch := a.next
	if runAudit(&a, &batch, ms/2); a.wait != auditMax {
		t.Errorf("the second audit is %d batches after the first, want %d", a.wait, auditMax)
	}
}
