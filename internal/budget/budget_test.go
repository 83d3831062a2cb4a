package budget

import (
	"math/rand/v2"
	"sync"
	"testing"
)

func TestABudgetIsShared(t *testing.T) {
	b := New(100)
	x, y := b.Open("x"), b.Open("y")
	if !x.Grow(50) || !y.Grow(40) {
		t.Fatal("90 of 100 bytes do not fit")
	}
	if y.Grow(11) {
		t.Error("101 of 100 bytes fit")
	}
	if !y.Grow(10) {
		t.Error("100 of 100 bytes do not fit")
	}
	x.Close()
	if got := b.State(); got != (State{Total: 100, Used: 50, Peak: 100, Rejected: 1}) {
		t.Errorf("state %+v", got)
	}
	x.Close() // the second time gives nothing back
	y.Close()
	if got := b.State().Used; got != 0 {
		t.Errorf("%d bytes in use after all charges are closed", got)
	}
}

// Otherwise a client could take the whole budget with names that it makes up.
func TestModelsThatDoNotExistGetHalfTogether(t *testing.T) {
	b := New(100)
	b.Exists = func(model string) bool { return model == "known" }
	first, second, known := b.OpenModel("a"), b.OpenModel("b"), b.OpenModel("known")
	if !first.Grow(30) || !second.Grow(20) {
		t.Fatal("half of the budget does not fit")
	}
	if second.Grow(1) {
		t.Error("models that do not exist get more than half")
	}
	if !known.Grow(50) {
		t.Error("a model that exists does not get its share")
	}
	var none *Budget
	if free := none.OpenModel("a"); !free.Grow(1 << 40) {
		t.Error("no budget has a limit")
	}
}

func TestOneKeyGetsHalf(t *testing.T) {
	b := New(100)
	first, second, other := b.Open("x"), b.Open("x"), b.Open("y")
	if !first.Grow(30) || !second.Grow(20) {
		t.Fatal("half of the budget does not fit")
	}
	if second.Grow(1) {
		t.Error("one key gets more than half")
	}
	if !other.Grow(50) {
		t.Error("another key does not get the other half")
	}
	first.Close()
	if !second.Grow(30) {
		t.Error("what one charge of a key gives back is not free for another")
	}
}

func TestARejectedChargeIsUnchanged(t *testing.T) {
	b := New(100)
	c := b.Open("x")
	if !c.Grow(10) || c.Grow(1000) || c.Bytes() != 10 || b.State().Used != 10 {
		t.Errorf("charge %d, in use %d, want 10", c.Bytes(), b.State().Used)
	}
}

func TestWithoutABudgetEverythingFits(t *testing.T) {
	var b *Budget
	c := b.Open("x")
	if !c.Grow(1<<60) || b.State() != (State{}) {
		t.Error("a charge of no budget is limited")
	}
	c.Close()
}

func TestKeysOfClientsAreForgotten(t *testing.T) {
	b := New(1000)
	for i := range 100 {
		c := b.Open(string(rune('a' + i)))
		c.Grow(1)
		c.Close()
	}
	if len(b.byKey) != 0 {
		t.Errorf("%d keys are remembered", len(b.byKey))
	}
}

func TestConcurrentChargesNeverExceedTheBudget(t *testing.T) {
	b := New(1000)
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			random := rand.New(rand.NewPCG(uint64(i), 0))
			for range 1000 {
				c := b.Open(string(rune('a' + random.IntN(4))))
				for c.Grow(random.Int64N(200)) && random.IntN(3) > 0 {
				}
				c.Close()
			}
		})
	}
	all.Wait()
	if got := b.State(); got.Used != 0 || got.Peak > got.Total || got.Rejected == 0 {
		t.Errorf("state %+v", got)
	}
}

func BenchmarkCharge(b *testing.B) {
	budget := New(1 << 30)
	b.ReportAllocs()
	for b.Loop() {
		c := budget.Open("model")
		c.Grow(12800)
		c.Grow(400)
		c.Close()
	}
}
