package buf

import (
	"sync"
	"testing"
)

func TestMemoryReturnsWhenTheLastUserLetsGo(t *testing.T) {
	before := Live()
	b := Get(5000)
	if len(b.B) != 5000 {
		t.Fatalf("%d bytes, want 5000", len(b.B))
	}
	b.Retain()
	b.Release()
	if Live() != before+1 {
		t.Error("a buffer with a user counts as returned")
	}
	b.Release()
	if Live() != before {
		t.Error("a buffer without users counts as live")
	}
}

func TestSizesAreKept(t *testing.T) {
	for _, n := range []int{0, 1, 1024, 1025, 1 << 20, 1<<20 + 1, 1<<26 + 1} {
		b := Get(n)
		if len(b.B) != n {
			t.Errorf("asked for %d bytes, got %d", n, len(b.B))
		}
		b.Release()
	}
}

func TestMemoryFromElsewhereIsFreedOnce(t *testing.T) {
	freed := 0
	b := Wrap([]byte("x"), func() { freed++ })
	b.Retain()
	b.Release()
	b.Release()
	if freed != 1 {
		t.Errorf("freed %d times", freed)
	}
	Wrap(nil, nil).Release()
}

func TestNilStandsForMemoryThatNobodyCounts(*testing.T) {
	var b *Buf
	b.Retain()
	b.Release()
}

func TestAMistakeInCountingPanics(t *testing.T) {
	panics := func(name string, f func()) {
		t.Helper()
		defer func() {
			if recover() == nil {
				t.Errorf("%s went unnoticed", name)
			}
		}()
		f()
	}
	b := Wrap(nil, nil)
	b.Release()
	panics("a second release", b.Release)
	b = Wrap(nil, nil)
	b.Release()
	panics("a use after the last release", b.Retain)
}

func TestUsersMayComeAndGoConcurrently(t *testing.T) {
	before := Live()
	b := Get(100)
	var wg sync.WaitGroup
	for range 8 {
		b.Retain()
		wg.Go(func() {
			for range 1000 {
				b.Retain()
				b.Release()
			}
			b.Release()
		})
	}
	b.Release()
	wg.Wait()
	if Live() != before {
		t.Errorf("%d buffers are left", Live()-before)
	}
}

func TestSlicesComeBackAtAnyLength(t *testing.T) {
	var s Slices
	for _, n := range []int{0, 1, 1024, 1025, 1 << 20, 1<<26 + 1} {
		b := s.Get(n)
		if len(*b) != n {
			t.Errorf("asked for %d bytes, got %d", n, len(*b))
		}
		*b = (*b)[:0]
		s.Put(b)
		if b := s.Get(n); len(*b) != n {
			t.Errorf("asked for %d bytes again, got %d", n, len(*b))
		}
	}
}

func TestASliceThatGrewIsNotTakenForALargerOne(t *testing.T) {
	var s Slices
	odd := make([]byte, 3000)
	s.Put(&odd)
	for range 3 {
		if b := s.Get(4096); cap(*b) != 4096 {
			t.Errorf("%d bytes of room, want 4096", cap(*b))
		}
	}
}
