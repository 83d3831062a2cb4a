package sched

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shoal-serving/shoal/internal/infer"
)

func TestAClientThatKeepsOffendingRunsAlone(t *testing.T) {
	var o quarantine
	alone := func(client uint64, now time.Duration) bool {
		_, alone := o.isolate(client, now)
		return alone
	}
	for range maxFailures - 1 {
		o.recordFailure(7, time.Second)
	}
	if alone(7, time.Second) {
		t.Error("alone before it has offended often enough")
	}
	o.recordFailure(7, 2*time.Second)
	if !alone(7, 3*time.Second) || alone(8, 3*time.Second) || alone(0, 3*time.Second) {
		t.Error("want client 7 alone, and nobody else")
	}
	a, _ := o.isolate(7, 3*time.Second)
	b, _ := o.isolate(7, 3*time.Second)
	if a == b {
		t.Error("two of its requests may share a batch")
	}
	if !alone(7, 2*time.Second+failureMemory) || alone(7, 2*time.Second+failureMemory+1) {
		t.Error("want it to be forgiven after a minute")
	}
	if o.nonEmpty.Load() {
		t.Error("requests still look, although there is nobody")
	}
}

func TestFailuresThatAreFarApartDoNotAddUp(t *testing.T) {
	var o quarantine
	for i := range 2 * maxFailures {
		now := time.Duration(i+1) * (failureMemory + 1)
		o.recordFailure(7, now)
		if _, isolated := o.isolate(7, now); isolated {
			t.Errorf("isolated at failure %d, more than %v after the one before", i+1, failureMemory)
		}
	}
}

func TestOffendersAreNotRememberedWithoutBound(t *testing.T) {
	var o quarantine
	for client := range uint64(2 * maxFailingClients) {
		o.recordFailure(client+1, time.Second)
	}
	if len(o.clients) != maxFailingClients {
		t.Errorf("%d are remembered", len(o.clients))
	}
	o.recordFailure(1<<40, 2*failureMemory)
	if len(o.clients) != 1 {
		t.Errorf("%d are remembered after a while", len(o.clients))
	}
}

func TestOthersDoNotPayForAnOffender(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, eng := startBisecting(t, poisoned)
		bad := func(at, ends time.Duration) {
			r := request("bad", 1)
			r.Client = 7
			b.submit(at, r, ends, infer.Internal)
		}
		bad(20*ms, 21*ms) // three times by itself
		bad(22*ms, 23*ms)
		bad(24*ms, 25*ms)
		b.submit(30*ms, request("z", 1), 31*ms)
		b.submit(30*ms+1, request("a", 1), 32*ms)
		bad(30*ms+2, 33*ms)
		b.submit(30*ms+3, request("b", 1), 34*ms)
		b.submit(30*ms+4, request("c", 1), 34*ms)
		b.finish()
		if got, want := eng.Batches(), []int{8, 1, 1, 1, 1, 1, 1, 2}; !slices.Equal(got, want) {
			t.Errorf("batches of %v rows, want %v", got, want)
		}
	})
}
